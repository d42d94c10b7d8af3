"""Each way in which overlap silently does nothing, reproduced by a scenario and named by the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import moe_overlap as mo
from models.profile import load_machine
from viz.answers import answers_html

LIBRARY = Path(mo.__file__).resolve().parents[1] / "scenarios" / "library"
DECODE, PREFILL = "deepseek-v3-h200-ep16-decode", "deepseek-v3-h200-ep8-prefill"
ONE_NODE = "deepseek-v3-h200-ep8-decode"
TWO_RANKS = "deepseek-v3-h200-ep2-decode"
BLACKWELL = "deepseek-v3-gb200-ep48-decode"
COLLECTIVE = ["a2a.backend=none", "a2a.mode=auto", "phase.decode.batch_per_rank=16"]
SHALLOW = "model.num_layers=5"

# scenario, overrides, schedule, rule
CASES = [
    # Two-batch overlap is on and nothing overlaps: one sequence per rank, so one child is empty.
    (DECODE, ["phase.decode.batch_per_rank=1"], "tbo", "tbo.empty_child"),
    # ... no dense layer before the sparse ones: no branch of the forward splits.
    (DECODE, ["model.first_k_dense=0"], "tbo", "tbo.no_dense_prefix"),
    # ... one node, whose low-latency sends leave nothing in flight.
    (ONE_NODE, [], "tbo", "tbo.no_flight"),
    # ... a backend whose exchanges run whole.
    (DECODE, ["a2a.backend=pplx"], "tbo", "tbo.whole_exchange"),
    # Silently off for prefill when the exchange is low latency.
    (
        PREFILL,
        [
            "a2a.mode=low_latency",
            "a2a.max_dispatch_tokens_per_rank=1024",
            "phase.prefill.tokens_per_rank=1024",
        ],
        "tbo",
        "tbo.extend_low_latency",
    ),
    # ... or for decode, where the model's forward splits prefill only.
    (DECODE, ["model.base=deepseek-v4-flash"], "tbo", "tbo.prefill_only"),
    # One rank that prefills disables it for all.
    (DECODE, ["runtime.other_mode_ranks=[3]"], "tbo", "tbo.vote"),
    # ... and with deepep-mode auto turns every exchange to normal mode.
    (DECODE, ["runtime.other_mode_ranks=[3]", "a2a.mode=auto"], "tbo", "a2a.auto_extend"),
    # The SM limit of prefill has nobody to limit.
    (PREFILL, ["runtime.moe_runner=triton"], "tbo", "tbo.sm_limit_unused"),
    # Single-batch overlap with a backend that ignores its arguments.
    (BLACKWELL, ["a2a.backend=mooncake"], "sbo", "sbo.hooks_unused"),
    # ... and with a model that never asks whether it is on.
    (BLACKWELL, ["model.base=glm-4.5", "routing.redundant_experts=32"], "sbo", "sbo.no_effect"),
    # ... and, without an all-to-all, with experts that write over what the shared one still reads.
    (BLACKWELL, [*COLLECTIVE, "runtime.moe_runner=triton"], "sbo", "sbo.in_place"),
]


def _compared(name: str, sets: list[str], schedule: str) -> dict[str, Any]:
    listed = f"schedules=[baseline, {schedule}]"
    return mo.compare(mo.load(name, [SHALLOW, *sets, listed]), fidelity="fast").document()


@pytest.mark.parametrize(("name", "sets", "schedule", "rule"), CASES, ids=[c[3] for c in CASES])
def test_the_report_names_it(name: str, sets: list[str], schedule: str, rule: str) -> None:
    document = _compared(name, sets, schedule)
    notes = [note for note in document["notes"] if note["rule"] == rule]
    assert len(notes) == 1
    assert schedule in notes[0]["schedule"]
    assert f'data-rule="{rule}"' in answers_html(document)


@pytest.mark.parametrize(
    ("name", "sets", "schedule", "rule"),
    [
        # A family without an operation list, and one whose list calls halves that no collective has.
        (DECODE, ["model.base=glm-4.5"], "tbo", "tbo.no_strategy"),
        (PREFILL, ["a2a.backend=none"], "tbo", "tbo.no_halves"),
        (DECODE, [], "sbo", "sbo.sm90"),
        (BLACKWELL, ["a2a.mode=normal"], "sbo", "sbo.normal_mode"),
    ],
)
def test_what_fails_aloud_is_a_row_with_its_rule(
    name: str, sets: list[str], schedule: str, rule: str
) -> None:
    row = _compared(name, sets, schedule)["schedules"][1]
    assert (row["name"], row["refused"]["rule"]) == (schedule, rule)
    assert row["step_us"] is None


def test_a_fused_slot_and_an_empty_child_do_not_hang() -> None:
    # Children had different widths of top-k ids once, and ranks waited for each other for ever.
    sets = ["phase.decode.batch_per_rank=[1" + ", 2" * 15 + "]"]
    row = _compared(DECODE, sets, "tbo+fused")["schedules"][1]
    assert row["refused"] is None and row["step_us"] > 0


def test_healthy_scenarios_have_no_note() -> None:
    for name in (DECODE, PREFILL):
        document = mo.compare(mo.load(name, [SHALLOW]), fidelity="fast").document()
        assert document["notes"] == []


@pytest.mark.parametrize(
    ("name", "machine", "said"),
    [
        (ONE_NODE, "h200-2x-nvlink-measured", "between 2 ranks only; between 8 ranks over 4 nodes"),
        (PREFILL, "h200-2x-nvlink-measured", "between 2 ranks only; between 8 ranks over 4 nodes"),
        (TWO_RANKS, "h200-1x-measured", "within 1 rank only; between 2 ranks"),
        (TWO_RANKS, "h200-2x-nvlink-measured", ""),
        (TWO_RANKS, "h200-2x-nvlink", ""),
    ],
)
def test_exchanges_of_ranks_that_nobody_measured_are_a_note(
    name: str, machine: str, said: str
) -> None:
    document = _compared(name, [f"hardware={machine}"], "tbo")
    notes = [note for note in document["notes"] if note["rule"] == "ranks not measured"]
    assert len(notes) == bool(said)
    assert all(note["schedule"] == "hardware" and said in note["text"] for note in notes)
    assert ("ranks not measured" in answers_html(document)) == bool(said)


def test_a_prediction_of_one_schedule_says_so_too() -> None:
    sets = ["hardware=h200-2x-nvlink-measured"]
    assert any("extrapolated" in str(n) for n in mo.resolve(mo.load(ONE_NODE, sets)).notes())


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ("", True),
        ("routing: {redundant_experts: 32}", True),
        ("routing: {distribution: uniform}", False),
        ("routing: {distribution: power_law, alpha: 0.8}", False),
    ],
    ids=["none", "no distribution", "uniform", "skewed"],
)
def test_routing_that_is_assumed_is_a_note(routing: str, said: bool, tmp_path: Path) -> None:
    text = (LIBRARY / f"{ONE_NODE}.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(re.sub(r"^routing:.*$", routing, text, flags=re.MULTILINE))
    sets = [SHALLOW, "schedules=[baseline]"]
    document = mo.compare(mo.load(own, sets), fidelity="fast").document()
    assert [note["rule"] for note in document["notes"]] == ["routing assumed"] * said
    assert ('data-rule="routing assumed"' in answers_html(document)) == said
    assert any("uniform is assumed" in str(n) for n in mo.resolve(mo.load(own)).notes()) == said
    # what it advises is accepted, and ends it
    told = re.findall(r"--set (\S+?)(?=[) ])", document["notes"][0]["text"]) if said else []
    assert not mo.resolve(mo.load(own, told)).notes()


def test_experts_that_leave_their_input_alone_have_no_hazard() -> None:
    notes = _compared(BLACKWELL, COLLECTIVE, "sbo")["notes"]
    assert [(note["schedule"], note["rule"]) for note in notes] == [
        ("a2a.max_dispatch_tokens_per_rank", "no effect")  # there are no low-latency buffers
    ]


def test_what_does_not_run_has_no_other_note() -> None:
    # Split or not, nothing would be in flight on one node; but this batch is not split.
    document = _compared(ONE_NODE, ["model.base=deepseek-v4-flash"], "tbo")
    assert [note["rule"] for note in document["notes"]] == ["tbo.prefill_only"]


def test_a_failed_vote_says_what_the_lost_graph_costs() -> None:
    document = _compared(DECODE, ["runtime.other_mode_ranks=[3]"], "tbo")
    text = document["notes"][0]["text"]
    graph, eager = (float(us) for us in re.findall(r"([0-9.]+) \u00b5s", text))
    assert graph == document["schedules"][0]["step_us"] < eager
    alone = mo.load(DECODE, [SHALLOW, "schedules=[baseline]", "runtime.launch=eager"])
    assert mo.compare(alone, fidelity="fast").document()["schedules"][0]["step_us"] == eager


def test_ranks_without_a_batch_do_not_vote() -> None:
    batches = ", ".join(["128"] * 15)
    sets = [f"phase.decode.batch_per_rank=[0, {batches}]"]
    document = _compared(DECODE, sets, "tbo")
    assert document["schedules"][1]["refused"] is None


def test_a_rank_that_does_not_exist_is_one_message() -> None:
    with pytest.raises(mo.ScenarioError, match=r"runtime\.other_mode_ranks.*is no rank.*0 to 15"):
        mo.resolve(mo.load(DECODE, ["runtime.other_mode_ranks=[16]"]))


@pytest.mark.parametrize("layers", [2, 20], ids=["whole", "extrapolated"])
def test_loads_that_did_not_settle_are_a_note(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after one pass, which no schedule's load is guessed right for."""
    name = "deepseek-v3-h200-ep2-prefill"
    sets = ["hardware=h200-2x-nvlink-measured", f"model.num_layers={3 + layers}"]
    assert _compared(name, sets, "tbo")["notes"] == []
    monkeypatch.setattr("simulator.load.PASSES", 1)
    notes = _compared(name, sets, "tbo")["notes"]
    assert {note["rule"] for note in notes} == {"power limit"}
    offs = [float(re.findall(r"load is ([0-9.]+) off", note["text"])[0]) for note in notes]
    assert all(0.005 <= off < 1 for off in offs)


def test_what_the_note_says_of_exchanges_that_nobody_measured_is_so() -> None:
    """Between eight ranks they take as long as on the profile below, between two they do not."""
    below = load_machine("h200-2x-nvlink")
    for name, same in ((PREFILL, True), ("deepseek-v3-h200-ep2-prefill", False)):
        resolved = mo.resolve(mo.load(name, ["hardware=h200-2x-nvlink-measured"]))
        measured, program = resolved.deployment.machine, mo.build(resolved, "baseline", layers=1)
        works = {op.work for op in program.launches(0) if op.work.kind in ("dispatch", "combine")}
        assert len(works) == 2
        for work in works:
            times = {m.costs.alone(work, m.grid(work.kind), 20).ns for m in (measured, below)}
            assert len(times) == (1 if same else 2)
