"""Buffers, budgets, signals and classes of built programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.exchanges import payload_bytes
from schedules.builders import build, schedule_names
from schedules.lint import lint
from schedules.program import Program, Record, Wait
from tests.models.layer_cases import spread
from tests.schedules.build_cases import BLACKWELL, DECODE, PREFILL, case, kernel, program

SINGLE = [name for name in schedule_names() if name != "tbo"]
BUILDS = [(name, DECODE) for name in schedule_names()]
BUILDS += [(name, PREFILL) for name in ("sequential", "baseline", "tbo")]


@pytest.mark.parametrize(("name", "phase"), BUILDS)
def test_every_read_has_a_writer_before_it(name: str, phase: str) -> None:
    built = program(name, phase, layers=3, whole_step=True)
    for cls in built.classes:
        written: set[str] = set()
        for op in cls.ops:
            assert set(op.reads) <= written, op.name
            written.update(op.writes)


@pytest.mark.parametrize(("name", "phase"), BUILDS)
def test_one_writer_a_buffer_and_known_sizes(name: str, phase: str) -> None:
    for cls in program(name, phase, layers=3).classes:
        writes = [buffer for op in cls.ops for buffer in op.writes]
        assert len(writes) == len(set(writes))
        inputs = {read for op in cls.ops for read in op.reads} - set(writes)
        assert all(name.startswith("in.") and name.endswith(".hidden") for name in inputs)
        sizes = {buffer.name: buffer.nbytes for buffer in cls.buffers}
        assert sizes.keys() == set(writes) | inputs
        assert all(sizes[name] > 0 for name in inputs)


@pytest.mark.parametrize("name", SINGLE)
def test_layers_form_a_chain(name: str) -> None:
    ops = {op.name: op for op in program(name, DECODE, layers=3).classes[0].ops}
    assert ops["L0.norm1"].reads == ("in.hidden",)
    assert ops["L0.add"].writes == ("L0.hidden",)
    assert ops["L1.norm1"].reads == ("L0.hidden",)
    assert set(ops["L2.add"].reads) == {"L2.residual", "L2.routed", "L2.shared"}


def test_all_schedules_do_the_same_work() -> None:
    def flops(name: str) -> int:
        return sum(op.work.total_flops for op in program(name, DECODE).classes[0].ops)

    assert {flops(name) for name in schedule_names()} == {flops("sequential")}


def test_whole_step_stands_around_the_moe_layers() -> None:
    ops = program("tbo", DECODE, whole_step=True).classes[0].ops
    assert [op.name for op in ops[:2]] == ["embed", "L0.norm1"]
    # DeepSeek-V3 has three dense layers; its MoE layers begin at 3, split in two.
    assert {op.child for op in ops if op.layer in (0, 1, 2)} == {""}
    assert {op.layer for op in ops if op.child} == {3, 4}
    by_name = {op.name: op for op in ops}
    assert by_name["L3.a.norm1"].reads == by_name["L3.b.norm1"].reads == ("L2.hidden",)
    assert ops[-2].reads == ("L4.a.hidden", "L4.b.hidden")
    assert ops[-1].name == "lm_head"


def budgets(built: Program) -> dict[str, tuple[int | None, str]]:
    return {kernel(op): (op.grid.sm_budget, op.grid.limited_by) for op in built.classes[0].ops}


def test_sm_split_on_hopper() -> None:
    found = budgets(program("sbo.v1", DECODE))
    assert found["gemm2"] == (129, "grid")
    assert found["combine.send"] == (3, "grid")
    assert {found[name][0] for name in ("gemm1", "shared.down", "combine.recv")} == {None}


@pytest.mark.parametrize(
    ("env", "compute"), [({}, 116), ({"SGLANG_DEEPEP_LL_COMBINE_SEND_NUM_SMS": "20"}, 128)]
)
def test_sm_split_on_blackwell(env: dict[str, str], compute: int) -> None:
    found = budgets(build("sbo", *case(DECODE, **BLACKWELL), layers=1, env=env))
    assert found["shared.gate_up"] == found["shared.down"] == (compute, "grid")
    assert found["shared.act"] == (compute, "ignored")
    assert found["gemm2"][0] is None
    # The combine's send is not told how many SMs to take there; it keeps to the rest all the same.
    assert found["combine.send"] == (148 - compute, "grid")


def test_a_bad_number_of_send_sms_is_one_message() -> None:
    env = {"SGLANG_DEEPEP_LL_COMBINE_SEND_NUM_SMS": "148"}
    with pytest.raises(ValueError, match="allowed: 1 to 147"):
        build("sbo", *case(DECODE, **BLACKWELL), layers=1, env=env)


def test_hopper_signals_stand_for_64_rows() -> None:
    built = program("sbo.v1", DECODE, fold=False)
    _, _, routing = case(DECODE)
    for rank, cls in enumerate(built.classes):
        raising = [op for op in cls.ops if op.raises]
        polling = [op for op in cls.ops if op.polls]
        assert [kernel(op) for op in raising] == ["gemm2"] * 2
        assert [op.polls for op in polling] == [op.raises for op in raising]
        rows = routing.local_expert_tokens()[rank]
        signal = next(s for s in built.signals if s.name == raising[0].raises)
        assert signal.blocks == int(np.ceil(rows / 64).sum())
        assert raising[0].work.block_rows == 64
        # Columns of the down GEMM in tiles of 256: 7168 / 256.
        assert signal.threshold == 28


def test_blackwell_signals_stand_for_whole_experts() -> None:
    built = program("sbo.v2", DECODE)
    assert {(signal.blocks, signal.threshold) for signal in built.signals} == {(32, 100)}


@pytest.mark.parametrize("name", ["baseline", "tbo"])
def test_exact_classes_are_the_unfolded_ranks(name: str) -> None:
    full, exact = (program(name, DECODE, fold=fold) for fold in (False, "exact"))
    assert [cls.ranks for cls in full.classes] == [(rank,) for rank in range(8)]
    for rank in range(8):
        assert exact.rank_class(rank).steps == full.rank_class(rank).steps
    assert exact.exchanges == full.exchanges


def test_equal_ranks_fold_into_one_class() -> None:
    deployment, batch, _ = case(DECODE)
    built = build("baseline", deployment, batch, spread(8, 128), layers=1, fold="exact")
    assert [cls.ranks for cls in built.classes] == [tuple(range(8))]


def test_representative_classes_keep_the_busiest_rank_apart() -> None:
    _, _, routing = case(DECODE)
    received = routing.rank_copies().sum(axis=0)
    built = program("baseline", DECODE, fold="representative")
    alone, rest = sorted(built.classes, key=lambda cls: len(cls.ranks))
    assert alone.ranks == (int(received.argmax()),)
    full = program("baseline", DECODE, fold=False)
    assert alone.steps == full.rank_class(alone.ranks[0]).steps
    # The others do the work of one of them, and the exchanges keep every rank's bytes.
    assert rest.steps in [full.rank_class(rank).steps for rank in rest.ranks]
    assert built.exchanges == full.exchanges


@pytest.mark.parametrize("phase", [DECODE, PREFILL])
def test_bytes_follow_the_routing(phase: str) -> None:
    deployment, _, routing = case(phase, tokens=128 if phase == DECODE else 1024)
    built = program("baseline", phase, layers=1)
    copies = routing.rank_copies() if phase == DECODE else routing.distinct_tokens()
    for name, matrix in (("dispatch", copies), ("combine", copies.T)):
        expected = matrix * payload_bytes(deployment, name)
        assert (np.array(built.exchange(f"L0.{name}").bytes) == expected).all()


def test_equal_layers_share_one_matrix() -> None:
    built = program("baseline", DECODE, layers=4)
    matrices = {id(e.bytes) for e in built.exchanges if e.name.endswith("dispatch")}
    assert len(matrices) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "at least one layer"),
        ({"fold": "some"}, "allowed: True, False, 'exact', 'representative'"),
        ({"ops": "P", "lines": "main: P", "name": "mine"}, "both ops and lines"),
        ({"name": "tbb"}, "unknown schedule 'tbb'; known: sequential, baseline, sbo"),
        ({"ops": "P", "name": "tbo"}, "is built in; give your own another name"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"name": "baseline", "layers": 1, **options}
    name = arguments.pop("name")
    with pytest.raises(ValueError, match=message):
        build(name, *case(DECODE), **arguments)


def test_ranks_must_agree() -> None:
    deployment, batch, _ = case(DECODE)
    _, _, other = case(PREFILL, tokens=256)
    with pytest.raises(ValueError, match="128 tokens in the batch and 256 in the routing"):
        build("baseline", deployment, batch, other, layers=1)


@pytest.mark.parametrize("whole_step", [False, True])
@pytest.mark.parametrize(("name", "phase"), BUILDS)
def test_lint_has_no_objection(name: str, phase: str, whole_step: bool) -> None:
    found = lint(program(name, phase, layers=3, whole_step=whole_step))
    # SGLang joins streams where fewer waits would do; that is reported, and is no fault.
    assert [str(item) for item in found if item.severity != "info"] == []
    assert {item.rule for item in found} <= {"excess-wait"}


@pytest.mark.parametrize(("name", "phase"), BUILDS)
def test_lint_objects_to_every_edge_that_is_taken_away(name: str, phase: str) -> None:
    built = program(name, phase, layers=1)
    first, *others = built.classes
    excess = {item.step for item in lint(built) if item.rule == "excess-wait"}  # same in each class
    for index, step in enumerate(first.steps):
        if isinstance(step, Wait | Record) and index not in excess:
            steps = first.steps[:index] + first.steps[index + 1 :]
            changed = replace(built, classes=(replace(first, steps=steps), *others))
            assert any(item.severity == "error" for item in lint(changed)), step


def test_extreme_ranks_stand_alone() -> None:
    # Whoever is busiest in receiving, in the whole batch or in one child, is a class of its own, and
    # the classes still hold every rank once.
    _, _, routing = case(DECODE)
    built = program("tbo", DECODE, fold="extremes")
    alone = {cls.ranks[0] for cls in built.classes if len(cls.ranks) == 1}
    half = [tokens // 2 for tokens in routing.tokens]
    first = routing.slice([0] * 8, half).rank_copies().sum(axis=0)
    second = routing.slice(half, list(routing.tokens)).rank_copies().sum(axis=0)
    for received in (routing.rank_copies().sum(axis=0), first, second):
        assert int(received.argmax()) in alone
    assert sorted(rank for cls in built.classes for rank in cls.ranks) == list(range(8))
