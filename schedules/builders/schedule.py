"""From a schedule's name to its program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from models.deployment import Batch, Deployment
from models.routing import Routing
from models.sglang_rules import Note, Refusal, Refused, Rules, load_rules
from schedules.builders.fused import fused_names, prepare
from schedules.builders.placing import check_flow
from schedules.builders.refuse import refusal_of, selected_variant
from schedules.builders.request import Fold, Launching, Request
from schedules.builders.silent import silent_rules
from schedules.builders.single import (
    LayerPlan,
    baseline_plan,
    build_single,
    lines_plan,
    sbo_plan,
    sequential_plan,
)
from schedules.builders.two_batch import build_two_batch, ops_plan, tbo_plan
from schedules.program import Program


def schedule_names(rules: Rules | None = None, *, fused: bool = False) -> tuple[str, ...]:
    """Names that need no lines of the user's; with `fused` also those with a fused shared expert."""
    variants = (rules or load_rules()).sbo.variants
    names = ("sequential", "baseline", "sbo", *(f"sbo.{name}" for name in variants), "tbo")
    return names + fused_names(names) if fused else names


def build(
    name: str,
    deployment: Deployment,
    batch: Batch,
    routing: Routing,
    *,
    layers: int,
    fold: Fold = True,
    rules: Rules | None = None,
    whole_step: bool = False,
    launch: Launching | None = None,
    env: Mapping[str, str] | None = None,
    sm_cap: int | None = None,
    threshold: float | None = None,
    cuda: tuple[int, int] = (12, 8),
    ops: str | None = None,
    delta: int | None = None,
    lines: str | tuple[str, ...] | None = None,
    other_mode_ranks: tuple[int, ...] = (),
    allow_refused: bool = False,
) -> Program:
    """The program of a schedule for `layers` MoE layers on all ranks.

    `name` is one of `schedule_names(fused=True)`, or any other with `ops` (and `delta`) for a
    two-batch operation list of the user's, or `lines` for stream lines of one layer. The other
    options are those of `Request`. `Refused` when SGLang does not run the schedule (`allow_refused` builds it
    all the same where it can be built); ValueError for an unknown name or options that do not fit.
    """
    request = Request(
        name=name,
        deployment=deployment,
        batch=batch,
        routing=routing,
        layers=layers,
        fold=fold,
        rules=rules or load_rules(),
        whole_step=whole_step,
        launch=launch,
        env=env or {},
        sm_cap=sm_cap,
        threshold=threshold,
        cuda=cuda,
        ops=ops,
        delta=delta,
        lines=lines,
        other_mode_ranks=other_mode_ranks,
    )
    return build_request(request, allow_refused=allow_refused)


def build_request(request: Request, *, allow_refused: bool = False) -> Program:
    """The program of a request; see `build`."""
    prepared = prepare(request)
    _check_name(prepared.request)
    refused = prepared.refusal or refusal_of(prepared.request)
    if refused is not None and not allow_refused:
        raise Refused(refused)
    return replace(_built(prepared.request), name=request.name)


def _built(request: Request) -> Program:
    if request.ops is not None:
        return _checked(build_two_batch(request, ops_plan(request)))
    if request.lines is not None:
        return _checked(build_single(request, lines_plan(request)))
    if request.name == "tbo":
        return build_two_batch(request, tbo_plan(request))
    return build_single(request, _single_plan(request))


def refusal(
    name: str, deployment: Deployment, batch: Batch, routing: Routing, **options: Any
) -> Refusal | None:
    """Why SGLang does not run a schedule, or None; the options are those of `build`."""
    options.setdefault("layers", 1)
    prepared = prepare(Request(name, deployment, batch, routing, **options))
    _check_name(prepared.request)
    return prepared.refusal or refusal_of(prepared.request)


def variant(
    name: str, deployment: Deployment, batch: Batch, routing: Routing, **options: Any
) -> str:
    """What a name stands for here: `sbo` is the variant that device, runner, environment and backend
    select; `sbo` itself when they select none. The options are those of `build`."""
    options.setdefault("layers", 1)
    base, plus, shared = name.partition("+")
    if base == "sbo":
        with suppress(Refused):
            base = f"sbo.{selected_variant(Request(base, deployment, batch, routing, **options))}"
    return base + plus + shared


def notes(
    name: str, deployment: Deployment, batch: Batch, routing: Routing, **options: Any
) -> tuple[Note, ...]:
    """What a schedule silently does not do here; the options are those of `build`."""
    options.setdefault("layers", 1)
    request = prepare(Request(name, deployment, batch, routing, **options)).request
    _check_name(request)
    return tuple(request.rules.note(rule) for rule in silent_rules(request))


def _checked(program: Program) -> Program:
    check_flow(program.classes[0].ops)
    return program


def _single_plan(request: Request) -> LayerPlan:
    if request.name == "sequential":
        return sequential_plan(request)
    if request.name == "baseline":
        return baseline_plan(request)
    return sbo_plan(request, selected_variant(request))


def _check_name(request: Request) -> None:
    own = request.ops is not None or request.lines is not None
    if request.ops is not None and request.lines is not None:
        raise ValueError(f"schedule {request.name!r} has both ops and lines; give one of them")
    known = schedule_names(request.rules, fused=True)
    if own and request.name in known:
        raise ValueError(f"schedule {request.name!r} is built in; give your own another name")
    if not own and request.name not in known:
        raise ValueError(f"unknown schedule {request.name!r}; known: {', '.join(known)}")
