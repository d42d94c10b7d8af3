"""Published rows: what is read from them, what ran in them, and the experiments on their causes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import moe_overlap as mo
from benchmarks.published_causes import PARTS, variants
from benchmarks.published_changes import longer, low_latency_lines, without_budget
from benchmarks.published_classes import class_of, classes_in, layers_of
from benchmarks.published_document import FINDINGS
from benchmarks.published_rows import DECODE, OFF, ON, PREFILL, load, published, published_classes
from schedules.program import Begin, Program
from simulator import simulate


def test_a_step_is_its_tokens_over_the_published_rate() -> None:
    rows = {(row.scenario, row.size): row for row in published()}
    # 8 GPUs of 256 sequences a node at 17,777 and 22,310 tokens/s a node
    assert rows[DECODE, 256].off_ms == pytest.approx(2048 / 17.777, rel=1e-6)
    assert rows[DECODE, 256].on_ms == pytest.approx(2048 / 22.310, rel=1e-6)
    ratios = {key: row.ratio for key, row in rows.items()}
    assert ratios == pytest.approx(
        {(PREFILL, 8192): 1.324, (DECODE, 256): 1.255, (DECODE, 32): 0.730}, abs=5e-4
    )


def test_a_published_layer_is_the_sum_of_its_classes_and_launches() -> None:
    found = published_classes("TBO_256")
    whole = found.pop("Overall")
    assert sum(found.values()) == pytest.approx(whole, rel=0.02)
    barred = published_classes("noTBO_8k", barriers=False)
    # 3.6 ms of the combine are a barrier
    assert published_classes("noTBO_8k")["Combine"] - barred["Combine"] == pytest.approx(3601.6)
    assert published_classes("UnitTest", phase="decode")["Dispatch"] == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("kind", "op", "expected"),
    [
        ("silu_mul", "L3.a.act", "MoE"),
        ("silu_mul", "L3.a.shared.act", "Other Kernels"),
        ("flight", "L0.combine", "Combine"),
        ("notify", "L0.b.dispatch.notify", "Dispatch"),
        ("bmm", "L0.q_bmm", "GEMM"),
        ("topk", "L0.topk", "Other Kernels"),
    ],
)
def test_kernels_have_the_published_classes(kind: str, op: str, expected: str) -> None:
    assert class_of(kind, op) == expected


def test_off_is_one_stream_with_the_shared_expert_before_the_dispatch() -> None:
    lines = low_latency_lines().replace("\n", "\\n")
    scenario = load(DECODE, 64, 0.6, f'schedules=[sequential, {{name: off, lines: "{lines}"}}]')
    resolved = mo.resolve(scenario)
    own, ours = (mo.simulate(resolved, name, layers=2) for name in ("off", OFF))
    order = [span.op for span in own.spans if span.layer == 0 and span.rank == own.ranks[0]]
    assert order.index("L0.shared.down") < order.index("L0.dispatch.send")
    assert own.makespan_ns == ours.makespan_ns


def test_decode_yields_once_more_than_today() -> None:
    resolved = mo.resolve(load(DECODE, 64, 0.6))
    then, today = (mo.build(resolved, name, layers=2) for name in (ON[DECODE], "tbo"))
    assert _stages(then) == 2 * 5 * 2  # five stages a layer of each child
    assert _stages(today) == 2 * (5 * 2 + 1)


def _stages(program: Program) -> int:
    steps = program.classes[0].steps
    return sum(isinstance(step, Begin) and step.kind == "stage" for step in steps)


@pytest.fixture(scope="module")
def layers() -> tuple[Program, mo.Resolved]:
    return layers_of(DECODE, OFF, 64, 0.6)


def test_only_the_named_class_takes_longer(layers: tuple[Program, mo.Resolved]) -> None:
    program, resolved = layers
    machine = resolved.deployment.machine
    before, after = (
        classes_in(simulate(program, each))
        for each in (machine, longer(machine, program, {"MoE": 1.5}))
    )
    assert after.pop("MoE") == pytest.approx(1.5 * before.pop("MoE"), rel=1e-4)
    assert after == pytest.approx(before, rel=0.02)


def test_only_named_kinds_lose_their_budget() -> None:
    program, _ = layers_of(PREFILL, ON[PREFILL], 2048, 0.6)
    freed = without_budget(program, ("gemm",))
    budgets = {
        (op.work.kind, op.grid.enforced_budget) for op in freed.classes[0].ops if op.grid.sm_budget
    }
    assert ("grouped_gemm_contiguous", 108) in budgets
    assert "gemm" not in {kind for kind, _ in budgets}
    kept = {op.name for op in program.classes[0].ops}
    assert {op.name for op in freed.classes[0].ops} == kept
    assert replace(freed, classes=program.classes) == program


def test_every_experiment_has_a_finding_and_every_hypothesis_a_name() -> None:
    assert FINDINGS.keys() == PARTS.keys()
    names = [variant.name for variant in variants()]
    assert len(set(names)) == len(names)
