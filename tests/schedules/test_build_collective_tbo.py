"""Two-batch overlap without an all-to-all: the children's collectives share one stream."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

import moe_overlap as mo
from executor.execute import execute
from executor.recording import Recording
from models.machine import Gaps
from models.spin import spin
from schedules.builders import build, notes, refusal
from schedules.lint import lint
from schedules.program import HostWork, Launch, Program, Step
from simulator import simulate
from tests.simulator.spinning import US, machine, times

NAME = "deepseek-v3-h200-ep8-prefill"
SETS = [
    "a2a.backend=none",
    "model.num_layers=4",
    "parallel={ep: 2, attention_tp: 1, attention_dp: 2}",
    "phase.prefill={tokens_per_rank: 1024, sequence_tokens: 256}",
    "schedules=[tbo]",
]
V4 = [*SETS, "model.base=deepseek-v4-flash"]


@lru_cache
def case(*sets: str) -> tuple[Any, Any, Any]:
    found = mo.resolve(mo.load(NAME, list(sets)))
    return found.deployment, found.batch, found.routing


def program(**options: Any) -> Program:
    return build("tbo", *case(*V4), **options)


def streams(built: Program) -> dict[str, str]:
    """The stream of every op of the first class."""
    return {op.name: op.stream for op in built.classes[0].ops}


@pytest.mark.parametrize("layers", [1, 3])
def test_it_lints_clean_and_its_collectives_share_a_stream(layers: int) -> None:
    built = program(layers=layers)
    assert lint(built) == ()
    on = streams(built)
    shared = {name for name, stream in on.items() if stream == "dp_comm"}
    kinds = ("gather", "scatter")
    assert shared == {f"L{n}.{c}.{k}" for n in range(layers) for c in "ab" for k in kinds}
    assert {stream.name: stream.priority for stream in built.streams} == {"main": 0, "dp_comm": 0}
    assert {exchange.family for exchange in built.exchanges} == {"collective"}


def test_children_gather_their_own_tokens() -> None:
    built = program(layers=1)
    _, batch, _ = case(*V4)
    width = 4096 * 2
    moved = [built.exchange(f"L0.{child}.dispatch").bytes[0][1] for child in "ab"]
    assert sum(moved) == batch.tokens[0] * width
    assert moved[0] == moved[1]


def spun(step: Step) -> Step:
    """Attention 100 us and the experts 200 on 100 SMs, a gather 150 and a scatter 80 on 24, and the
    rest nothing: every kernel has room beside every other."""
    if not isinstance(step, Launch):
        return step
    took = {"attn": (100, 100), "gemm1": (100, 200), "gather": (24, 150), "scatter": (24, 80)}
    ctas, us = took.get(step.op.name.rpartition(".")[2], (1, 0))
    return replace(step, op=replace(step.op, work=spin(ctas, us * US, smem_bytes=204800)))


def test_a_layer_by_hand() -> None:
    built = program(layers=1)
    classes = tuple(replace(cls, steps=tuple(map(spun, cls.steps))) for cls in built.classes)
    still = Gaps(0, 0, 0, 0, 0, 0, 0)
    timeline = simulate(replace(built, classes=classes), machine(gaps=still))
    took = {
        name: tuple(map(round, times(timeline, f"L0.{name}")))
        for name in (f"{c}.{k}" for k in ("attn", "gather", "gemm1", "scatter") for c in "ab")
    }
    assert took == {
        # A's gather lies under B's attention. B's waits for the stream until 250.
        "a.attn": (0, 100),
        "b.attn": (100, 200),
        "a.gather": (100, 250),
        "b.gather": (250, 400),
        # A's experts wait for its gather, B's for A's experts; A's scatter lies under B's experts.
        "a.gemm1": (250, 450),
        "b.gemm1": (450, 650),
        "a.scatter": (450, 530),
        "b.scatter": (650, 730),
    }


def test_the_recording_kernels_run_it() -> None:
    built = program(layers=2)
    timeline = execute(built, Recording(), rank=1)
    launched = [op.name for op in built.classes[0].ops]
    assert [span.op for span in timeline.spans] == launched


def test_ranks_tell_each_other_their_childrens_lengths() -> None:
    steps = program(layers=1, whole_step=True).classes[0].steps
    assert steps[:2] == (HostWork("split_metadata"), HostWork("vote"))


def test_other_classes_have_no_halves_to_call() -> None:
    v3 = case(*SETS)
    found = refusal("tbo", *v3)
    assert found is not None
    assert (found.rule, found.instead) == ("tbo.no_halves", "")
    built = build("tbo", *v3, layers=2, allow_refused=True)
    assert set(streams(built).values()) == {"main"}
    assert [finding for finding in lint(built) if finding.severity == "error"] == []


def test_decode_of_deepseek_v4_is_not_split() -> None:
    sets = ["phase={decode: {batch_per_rank: 32, kv_tokens: 512}}"]
    found = refusal("tbo", *case(*V4, *sets))
    assert found is not None
    assert (found.rule, found.instead) == ("tbo.prefill_only", "baseline")


def test_a_users_list_may_put_the_collectives_where_it_likes() -> None:
    v3 = case(*SETS)
    built = build("mine", *v3, layers=1, ops="P Q C mM Ga | Gb Moe Ra | Rb mZ", delta=0)
    assert streams(built)["L0.a.gather"] == "dp_comm"
    with pytest.raises(ValueError, match="launches twice Ga"):
        build("mine", *v3, layers=1, ops="P Q C M Ga | Gb Moe Ra | Rb mZ", delta=0)
    with pytest.raises(ValueError, match="leaves out Ra"):
        build("mine", *v3, layers=1, ops="P Q C mM Ga | Gb Moe | mZ", delta=0)


def test_nothing_is_silent_about_it() -> None:
    assert notes("tbo", *case(*V4)) == ()
