"""Programs that the builders' tests share: DeepSeek-V3 layers on 8 ranks, skewed routing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from models.deployment import Batch, Deployment
from models.routing import Routing, RoutingSpec, route
from schedules.builders import build
from schedules.program import Launch, Op, Program, Record, Step, Wait
from tests.models.layer_cases import decode, deployment, prefill

DECODE, PREFILL = "decode", "prefill"
BLACKWELL: dict[str, Any] = {"num_sms": 148, "compute_capability": (10, 0)}


def case(
    phase: str, model: str = "deepseek-v3", *, tokens: int = 128, **machine: Any
) -> tuple[Deployment, Batch, Routing]:
    """Decode of `tokens` sequences a rank under low latency, or prefill of `tokens` in sequences of
    256 under normal mode; `machine` replaces fields of the machine."""
    mode = "low_latency" if phase == DECODE else "normal"
    base = deployment(model, mode=mode)
    base = replace(base, machine=replace(base.machine, **machine))
    base = replace(base, a2a=replace(base.a2a, max_dispatch_tokens_per_rank=128))
    batch = decode(8, tokens, 64) if phase == DECODE else prefill(8, tokens // 256, 256)
    return base, batch, _route(model, batch.tokens)


@lru_cache
def _route(model: str, tokens: tuple[int, ...]) -> Routing:
    spec = RoutingSpec(distribution="power_law", alpha=0.6)
    return route(spec, tokens, deployment(model).model)


def program(name: str, phase: str, *, layers: int = 2, **options: Any) -> Program:
    """A program of the shared case, refused or not."""
    tokens = 128 if phase == DECODE else 1024
    return build(name, *case(phase, tokens=tokens), layers=layers, allow_refused=True, **options)


def kernel(op: Op) -> str:
    """The op's name without layer and child."""
    head = f"L{op.layer}.{op.child}." if op.child else f"L{op.layer}."
    return op.name.removeprefix(head)


def ops(steps: Iterable[Step]) -> list[Op]:
    """Launched ops in host order."""
    return [step.op for step in steps if isinstance(step, Launch)]


def device_order(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """(stream, action) of one layer in the short words of the reference: kernels of attention left
    out, the shared expert's kernels as one, `rec`/`wait` with the event's plain name, and the wait of
    a stream for all that another holds as `wait STREAM`."""
    previous = None
    for step in steps:
        if isinstance(step, Launch):
            word = _word(step.op)
            if word and (step.op.stream, word) != previous:
                previous = (step.op.stream, word)
                yield previous
        elif isinstance(step, Record | Wait):
            event = step.event.removeprefix("L0.")
            joined = event.rpartition(".")[2] if event.startswith("join") else None
            if joined is None:
                verb = "rec" if isinstance(step, Record) else "wait"
                yield step.stream, f"{verb} {event}"
            elif isinstance(step, Wait):
                yield step.stream, f"wait {joined}"
            previous = None


def _word(op: Op) -> str | None:
    name = kernel(op)
    if name.startswith("shared."):
        return "shared"
    before_gate = ("norm1", "q", "kv", "rope", "attn", "v_bmm", "o_proj", "norm2")
    return None if name.startswith(before_gate) and name != "quantise" else name
