"""What each schedule puts on which stream, in the order in which the device sees it.

The expected lists are those of the SGLang reference for one layer; kernels of attention stand before
the gate and are left out.
"""

from __future__ import annotations

import pytest

from schedules.builders import build
from schedules.builders.request import Launching
from schedules.program import Begin, End, HostWait, Launch
from tests.schedules.build_cases import BLACKWELL, DECODE, PREFILL, case, device_order, program

LOW_LATENCY = {
    "sequential": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, gemm2, combine.send, "
            "combine.recv, shared, add"
        ),
    },
    "baseline": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, gemm2, combine.send, "
            "combine.recv, wait shared, add"
        ),
        "alt": "wait main, shared, rec shared",
    },
    "sbo.v1": {
        "main": (
            "gate, topk, dispatch.send, shared, dispatch.recv, gemm1, act, rec experts, "
            "gemm2, wait alt, add"
        ),
        "alt": "wait experts, combine.send, wait main, combine.recv",
    },
    "sbo.v1b": {
        "main": (
            "gate, topk, dispatch.send, shared, dispatch.recv, gemm1, act, gemm2, "
            "combine.send, combine.recv, add"
        ),
    },
    "sbo.v2": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, rec experts, gemm2, "
            "shared, wait alt, add"
        ),
        "alt": "wait experts, combine.send, wait main, combine.recv",
    },
    "sbo.v3": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, gemm2, rec experts, "
            "shared, wait alt, add"
        ),
        "alt": "wait experts, combine.send, wait main, combine.recv",
    },
    "sbo.v3b": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, gemm2, shared, "
            "combine.send, combine.recv, add"
        ),
    },
    "sbo.v4": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, rec experts, gemm2, "
            "wait alt, wait shared, add"
        ),
        "alt": (
            "wait main, shared, rec shared, wait experts, combine.send, wait main, combine.recv"
        ),
    },
    "sbo.v4b": {
        "main": (
            "gate, topk, dispatch.send, dispatch.recv, gemm1, act, gemm2, combine.send, "
            "combine.recv, wait shared, add"
        ),
        "alt": "wait main, shared, rec shared",
    },
}
NORMAL = {
    "sequential": {
        "main": (
            "gate, topk, quantise, layout, dispatch.notify, rec dispatch.counts, dispatch, "
            "permute, gemm1, act, gemm2, unpermute, combine.notify, combine, shared, add"
        ),
    },
    "baseline": {
        "main": (
            "gate, topk, quantise, rec dispatch.ready, wait dispatch.done, permute, gemm1, "
            "act, gemm2, unpermute, rec combine.ready, wait combine.done, wait shared, "
            "add"
        ),
        "alt": "wait main, shared, rec shared",
        "comm": (
            "wait dispatch.ready, layout, dispatch.notify, rec dispatch.counts, dispatch, "
            "rec dispatch.done, wait combine.ready, combine.notify, combine, "
            "rec combine.done"
        ),
    },
}
CASES = [(DECODE, name, order) for name, order in LOW_LATENCY.items()]
CASES += [(PREFILL, name, order) for name, order in NORMAL.items()]


@pytest.mark.parametrize(("phase", "name", "expected"), CASES, ids=lambda v: str(v)[:16])
def test_order_of_each_stream(phase: str, name: str, expected: dict[str, str]) -> None:
    built = program(name, phase, layers=1)
    seen: dict[str, list[str]] = {}
    for stream, word in device_order(built.classes[0].steps):
        seen.setdefault(stream, []).append(word)
    assert {stream: ", ".join(words) for stream, words in seen.items()} == expected
    assert {stream.name for stream in built.streams} == expected.keys()


@pytest.mark.parametrize(("name", "before"), [("sbo.v2", "shared.down"), ("sbo.v3", "shared.down")])
def test_combine_is_sent_after_the_shared_expert_in_host_order(name: str, before: str) -> None:
    built = program(name, DECODE, layers=1, fold=False, env={})
    names = [op.name for op in built.classes[0].ops]
    assert names.index("L0.combine.send") > names.index(f"L0.{before}")


def test_the_host_waits_for_counts_between_notify_and_transfer() -> None:
    steps = program("baseline", PREFILL, layers=1).classes[0].steps
    order = [
        step.op.name if isinstance(step, Launch) else "host wait"
        for step in steps
        if isinstance(step, HostWait) or (isinstance(step, Launch) and step.op.stream == "comm")
    ]
    notify = order.index("L0.dispatch.notify")
    assert order[notify : notify + 3] == ["L0.dispatch.notify", "host wait", "L0.dispatch"]


def test_a_library_call_brackets_its_kernels() -> None:
    steps = program("baseline", PREFILL, layers=1).classes[0].steps
    begin = steps.index(Begin("call", "deepep.dispatch"))
    end = steps.index(End("call", "deepep.dispatch"))
    inside = [step.op.name for step in steps[begin:end] if isinstance(step, Launch)]
    assert inside == ["L0.layout", "L0.dispatch.notify", "L0.dispatch"]


@pytest.mark.parametrize(
    ("phase", "launch", "graph"),
    [(DECODE, None, True), (DECODE, "eager", False), (PREFILL, None, False)],
)
def test_a_graph_holds_the_whole_step_or_nothing(
    phase: str, launch: Launching | None, graph: bool
) -> None:
    steps = program("baseline", phase, launch=launch).classes[0].steps
    assert (steps[0] == Begin("graph", "step")) is graph
    assert (steps[-1] == End("graph", "step")) is graph
    assert sum(isinstance(s, Begin) and s.kind == "graph" for s in steps) == graph


def test_a_model_without_a_shared_expert_does_not_fork() -> None:
    built = build("baseline", *case(DECODE, "qwen3-30b-a3b"), layers=1)
    assert [stream.name for stream in built.streams] == ["main"]
    assert {stream for stream, _ in device_order(built.classes[0].steps)} == {"main"}


def test_variants_on_blackwell_keep_their_order() -> None:
    built = build("sbo", *case(DECODE, **BLACKWELL), layers=1)
    words = [word for stream, word in device_order(built.classes[0].steps) if stream == "main"]
    assert ", ".join(words) == LOW_LATENCY["sbo.v3"]["main"]
