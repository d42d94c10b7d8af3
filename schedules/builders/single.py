"""Schedules that keep the batch whole: sequential, baseline, single-batch overlap, a user's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from models.deployment import LayerKernels
from models.layer import layer_kernels
from models.sglang_rules import Refused
from models.sglang_sbo import SboFlags, overlap_args
from schedules.builders.assemble import ClassSteps, assemble, transfers_of
from schedules.builders.classes import rank_classes
from schedules.builders.completion import Grain, signals_of, static_tokens, with_grain
from schedules.builders.layer_steps import (
    catalogue_of,
    drop_idle_streams,
    expand,
    honest,
    on_one_stream,
    ranks_key,
)
from schedules.builders.placing import Place, flow_of, handed_on, put
from schedules.builders.request import Request
from schedules.builders.whole_step import first_layer, step_begin, step_end
from schedules.program import Launch, Program, Signal, Step
from schedules.stream_lines import StreamLines, parse_stream_lines


@dataclass(frozen=True)
class LayerPlan:
    """One layer of a schedule: its stream lines (or letter runs), the SM budgets that they may name,
    whether all of it runs on one stream, what a signal of the down GEMM stands for, and whether the
    lines are the user's."""

    entries: Sequence[str]
    budgets: Mapping[str, int] = field(default_factory=dict)
    one_stream: bool = False
    grain: Grain = "rows"
    own: bool = False


@dataclass(frozen=True)
class _Layer:
    """A layer's steps on one rank, with the streams and signals that its lines declare."""

    kernels: LayerKernels
    lines: StreamLines
    steps: tuple[Step, ...]


def sequential_plan(request: Request) -> LayerPlan:
    """One stream, nothing overlaps."""
    return LayerPlan(request.rules.layers["sequential"], one_stream=True)


def baseline_plan(request: Request) -> LayerPlan:
    """Every flag off: the shared expert runs beside routing and routed experts."""
    return LayerPlan(request.rules.layers["baseline"])


def sbo_plan(request: Request, variant: str) -> LayerPlan:
    """A variant of single-batch overlap, with the SM split of the device that selects it; `Refused`
    in normal mode, whose exchanges have no halves to overlap."""
    rules, rule = request.rules, request.rules.sbo.variants[variant]
    if not request.low_latency and not rule.collective:
        raise Refused(rules.refusal("sbo.normal_mode"))
    flags = SboFlags(
        combine_down=rule.signals,
        combine_shared=rule.blackwell and not rule.outside,
        dispatch_shared=not rule.blackwell,
    )
    args = overlap_args(
        rules,
        flags,
        blackwell=rule.blackwell,
        num_sms=request.deployment.machine.num_sms,
        local_experts=request.deployment.slots_per_rank,
        static_tokens=static_tokens(request),
        env_comm_sms=request.env_comm_sms,
    )
    budgets = {"comp": args.compute_sms, "comm": args.comm_sms} if args else {}
    return LayerPlan(rule.layer, budgets, grain="experts" if rule.blackwell else "rows")


def lines_plan(request: Request) -> LayerPlan:
    """A user's own stream lines of one layer; `@comm` is the exchange's number of SMs there, `@comp`
    the rest."""
    lines = request.lines or ()
    comm = request.deployment.a2a.num_sms
    budgets = {"comm": comm, "comp": request.deployment.machine.num_sms - comm}
    return LayerPlan(lines.split("\n") if isinstance(lines, str) else lines, budgets, own=True)


def build_single(request: Request, plan: LayerPlan) -> Program:
    """The program of a plan: the same steps for every layer and class, with each class's work."""
    routing, batch = request.dispatched, request.whole

    def kernels(rank: int) -> LayerKernels:
        return layer_kernels(request.deployment, batch, routing, rank)

    classes = rank_classes(request.fold, batch, routing, lambda r: ranks_key({"": kernels(r)}))
    built: list[ClassSteps] = []
    signals: list[Signal] = []
    layers: list[_Layer] = []
    for index, ranks in enumerate(classes):
        layer = _layer_of(request, plan, kernels(ranks.example))
        suffix = f".c{index}" if len(classes) > 1 else ""
        one = _class_steps(request, ranks.example, layer, suffix)
        ops = [step.op for step in one.steps if isinstance(step, Launch)]
        signals += signals_of(request, ops, ranks.example, plan.grain, layer.lines.signals, suffix)
        built.append(one)
        layers.append(layer)
    transfers = {"": transfers_of(request.deployment, routing, layers[0].kernels)}
    members = [item.ranks for item in classes]
    return assemble(request, members, built, transfers, signals, layers[0].lines.streams)


def _layer_of(request: Request, plan: LayerPlan, kernels: LayerKernels) -> _Layer:
    halves = request.rules.halves_of(request.deployment.a2a.backend, request.deployment.a2a.mode)
    entries = plan.entries if plan.own else expand(plan.entries, halves)
    lines = parse_stream_lines(entries, catalogue_of(kernels), plan.budgets)
    if plan.own:
        _check_complete(request, kernels, lines)
    steps = with_grain(request, lines.steps, plan.grain)
    if plan.one_stream:
        steps = on_one_stream(steps)
    elif not plan.own:
        steps = drop_idle_streams(steps)
    return _Layer(kernels, lines, honest(steps, request.deployment))


def _check_complete(request: Request, kernels: LayerKernels, lines: StreamLines) -> None:
    launched = {step.op.name for step in lines.steps if isinstance(step, Launch)}
    names = [kernel.name for group in kernels.groups.values() for kernel in group]
    missing = [name for name in names if name not in launched]
    if missing:
        raise ValueError(f"the lines of {request.name!r} leave out {', '.join(missing)}")


def _class_steps(request: Request, rank: int, layer: _Layer, suffix: str) -> ClassSteps:
    built = ClassSteps()
    inherited = step_begin(request, rank, built)
    flow, start = flow_of(layer.kernels), first_layer(request)
    for index in range(start, start + request.layers):
        place = Place(index, flow, inherited, signal_suffix=suffix)
        built.steps.extend(put(layer.steps, place))
        built.own(place, layer.kernels.buffers)
        inherited = handed_on(place)
    step_end(request, rank, built, inherited)
    return built
