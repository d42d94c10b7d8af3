"""The whole-program cases of the validation, and what its page says of predictions and measurements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.validation import (
    DATA,
    PREDICTED,
    PROFILES,
    PUBLIC,
    compared,
    on_probed_hosts,
    predict,
)
from benchmarks.validation_cases import CASES, UNSEEN, Group, groups
from benchmarks.validation_document import (
    BEGIN,
    END,
    by_kind,
    document,
    predictors,
    readme_block,
    summary,
    table,
    targets,
    twice,
    with_block,
)
from benchmarks.validation_draw import lines
from benchmarks.validation_files import read
from benchmarks.validation_outcome import Case, cases
from benchmarks.validation_predictors import by_plain
from executor.calibrate.plan import DECODE_TOKENS, PREFILL_TOKENS
from executor.job import GATE_NS
from models.machine import HostCosts
from models.profile import load_machine
from moe_overlap.gated import GATE, gated, makespan_ns, predicted
from moe_overlap.uncertain import Prediction

ROOT = Path(__file__).parents[2]


@cache
def known(path: Path) -> tuple[Group, ...]:
    return tuple(groups(path))


@pytest.mark.parametrize("path", [CASES, UNSEEN], ids=["seen", "unseen"])
def test_the_cases_are_as_many_and_as_different_as_promised(path: Path) -> None:
    chosen = known(path)
    found = [(group, name) for group in chosen for name in group.schedules]
    assert len(found) >= 24
    for phase in ("prefill", "decode"):
        sizes = {group.batch.tokens[0] for group in chosen if group.batch.phase == phase}
        assert len(sizes) >= 3
    names = {name for _, name in found}
    assert {"sequential", "baseline", "tbo", "tbo@0", "sbo.v3"} <= names
    prefill = [group for group in chosen if group.batch.phase == "prefill"]
    exchange_sms = {group.deployment.a2a.num_sms for group in prefill}
    assert min(exchange_sms) <= 10
    assert max(exchange_sms) >= 26
    assert any("skewed" in group.name for group in chosen)
    assert any(group.launch == "eager" for group in chosen)


def test_unseen_cases_hold_one_gpu_too_and_are_what_the_seed_draws() -> None:
    one = [group for group in known(UNSEEN) if group.ranks == 1]
    assert len({group.batch.tokens for group in one}) >= 3
    assert {group.launch for group in one} == {None, "eager"}
    for group in one:
        assert {"sequential", "baseline", "tbo", "sbo.v3"} == set(group.schedules)
        assert group.deployment.experts_per_rank == 64
    seen = {(g.batch.phase, g.batch.tokens) for g in known(CASES)}
    assert not seen & {(g.batch.phase, g.batch.tokens) for g in known(UNSEEN)}
    assert "\n".join(lines(44, 44)) + "\n" == UNSEEN.read_text(encoding="utf-8")


def test_the_committed_predictions_are_of_these_cases() -> None:
    wanted = [(g.name, name) for g in known(UNSEEN) for name in g.schedules]
    assert [(r["group"], r["schedule"]) for r in read(PREDICTED)] == wanted


def test_no_batch_nor_half_of_it_is_on_the_calibrations_grid() -> None:
    grid = {*PREFILL_TOKENS, *DECODE_TOKENS}
    for group in (*known(CASES), *known(UNSEEN)):
        tokens = group.batch.tokens[0]
        assert not {tokens, tokens // 2} & grid


def test_the_gate_holds_every_stream_and_is_no_part_of_the_makespan() -> None:
    group = next(group for group in known(CASES) if group.name == "decode 32 tokens")
    machine = load_machine("h200-2x-nvlink")
    timeline = predicted(group.program("tbo", eager=True), machine)
    gate_end = max(span.end_ns for span in timeline.spans if span.op == GATE)
    others = [span for span in timeline.spans if span.op != GATE]
    assert min(span.start_ns for span in others) > gate_end
    assert makespan_ns(timeline) == max(span.end_ns for span in others) - gate_end


def test_a_host_that_is_ahead_does_not_show_behind_the_gate() -> None:
    group = next(group for group in known(CASES) if group.name == "decode 32 tokens")
    machine = load_machine("h200-2x-nvlink")
    free = replace(machine, host=HostCosts(tuple((name, 0) for name, _ in machine.host.by_class)))
    program = replace(group, layers=1).program("sequential", eager=True)
    assert makespan_ns(predicted(program, machine)) == makespan_ns(predicted(program, free))
    assert len(gated(program).classes[0].steps) == len(program.classes[0].steps) + 2


def case(
    schedule: str, predicted_us: float, measured_us: float, first: tuple[float, float], noise: float
) -> Case:
    """A case of one layer with repeats within 1 % and `first` = (predicted, measured) sequential."""
    around = (0.995, 1.0, 1.005)
    return Case(
        "g",
        schedule,
        1,
        schedule != "sequential",
        tuple(round(1e3 * measured_us * f) for f in around),
        tuple(round(1e3 * first[1] * f) for f in around),
        Prediction(1e3 * predicted_us, {}, (0.95, 1.05)),
        1e3 * first[0],
        1e3 * noise,
        {
            "public profile": 1e3 * predicted_us,
            **dict.fromkeys(("sum", "max", "SM share", "roofline"), 1e3),
        },
        {
            "public profile": 1e3 * first[0],
            **dict.fromkeys(("sum", "max", "SM share", "roofline"), 1e3),
        },
    )


def test_errors_gains_signs_and_bands_are_those_of_the_definitions() -> None:
    good = case("tbo", 100, 104, (120, 120), noise=5)
    assert good.error == pytest.approx(100 / 104 - 1)
    assert good.gain == pytest.approx(120 / 104 - 1)
    assert good.predicted_gain == pytest.approx(0.2)
    assert (good.apart, good.tie, good.in_band) == (True, False, True)
    close = case("tbo", 118, 130, (120, 120), noise=5)
    assert (close.tie, close.in_band) == (True, False)
    first = case("sequential", 120, 120, (120, 120), noise=0)
    assert not first.apart
    text = "\n".join(summary([good, close, first]))
    errors = sorted(abs(c.error) for c in (good, close))
    assert f"overlapped | 2 | {median(errors):.1%}" in text
    assert "| 1 of 2 (50%) |" in text
    assert "| 1 of 2 | 1 of 2 |" in text
    page = document([good, close, first], {"gpu": "G", "torch": "t"}, {"p": "0" * 64})
    assert page.count("| g |") == 3
    assert any(line.startswith("| engine, this profile") for line in predictors([good, close]))


def test_predictors_are_told_apart_by_what_limits_a_case() -> None:
    prefill = replace(case("tbo", 100, 104, (120, 120), noise=5), group="prefill 1")
    eager = replace(case("tbo", 130, 104, (120, 120), noise=5), group="decode 8 eager")
    told = by_kind([prefill, eager])
    assert told[0] == "| predictor | prefill (1) | decode, eager (1) |"
    assert told[2] == "| engine, this profile | 3.8% | 25.0% |"
    assert told[4].startswith("| sum | 99.0% |")


def test_two_measurements_of_a_case_are_compared() -> None:
    chosen = replace(case("tbo", 100, 104, (120, 120), noise=5), group="prefill 1")
    other = replace(chosen, group="prefill 2")
    earlier = [{"group": "prefill 1", "makespans_ns": {"tbo": [130_000, 130_000], "sbo": [1]}}]
    assert twice([chosen, other], earlier) == [
        "The same cases on another run of the machine: prefill: 1 cases, median 20.0%, worst 20.0%.",
        "",
    ]
    assert twice([other], earlier) == []


def test_targets_are_met_or_not_by_the_overlapped_cases() -> None:
    good = replace(case("tbo", 100, 104, (120, 120), noise=5), unseen=True, hidden_share=0.2)
    seen = case("tbo", 100, 150, (120, 120), noise=5)
    told = {line.split(" | ")[0]: line for line in targets([good, seen])}
    assert told["| makespan error, median"].endswith("| 5 % | 3.8% | yes |")
    assert told["| signs beyond the noise"].endswith("| all | 1 of 1 | yes |")
    assert told["| bands hold"].endswith("| 100% | no |")
    name = "| median error of the best plainer predictor, communication hidden"
    assert told[name].endswith("| x2 | x1.0 (engine on the public profile) | no |")


def test_cases_come_from_predictions_and_measurements_by_name() -> None:
    def record(schedule: str, ns: float, doubt: float) -> dict[str, Any]:
        plain = {"sum": ns}
        return {"group": "g", "schedule": schedule, "layers": 2, "overlapped": schedule == "tbo",
                "ns": ns, "low_ns": ns - 9, "high_ns": ns + 9, "doubt_ns": {"gemm": doubt},
                "others": plain, "ranks": 2, "unseen": True}  # fmt: skip

    measured = [
        {"group": "other", "makespans_ns": {}},
        {"group": "g", "makespans_ns": {"sequential": [100, 110], "tbo": [80, 84]},
         "clocks": {"tbo": [[[1800, 9], None, [1810, 9]], [[1790, 9], [1, 9], [1820, 9]]],
                    "sequential": [[1700, 9], [1710, 9]]}},
        {"group": "g", "hidden": {"tbo": [40, 20.5]}},
    ]  # fmt: skip
    first, overlapped = cases([record("sequential", 104, 3), record("tbo", 90, 7)], measured)
    assert (first.gain, first.hidden_share, first.mhz) == (0.0, None, (1700.0, 1710.0))
    assert overlapped.gain == pytest.approx(105 / 82 - 1)
    assert overlapped.predicted_gain == pytest.approx(104 / 90 - 1)
    assert overlapped.hidden_share == pytest.approx(20.5 / 82)
    assert overlapped.hides
    assert overlapped.mhz == (1790.0, 1810.0)
    assert overlapped.noise_ns == pytest.approx((4**2 + 2**2 + 6**2) ** 0.5)
    assert overlapped.by("sum") == (90, 104)


def test_a_probed_group_is_predicted_again_with_its_host_and_no_other() -> None:
    """A host that is twice as slow as the profile's: an op-by-op case takes up to twice as long from
    the start of launching on, which is ahead behind the gate; a CUDA graph as long as before, and a group without a probe stays what was written down."""
    machine = load_machine(PROFILES[2])
    public = load_machine(PUBLIC)
    names = (
        "decode 68 tokens 3584 KV",
        "decode 44 tokens 5376 KV eager",
        "prefill 2048 tokens 12 SMs",
    )
    chosen = [g for g in (*known(UNSEEN), *known(CASES)) if g.name in names]
    records = [predict(g, "sequential", machine, public) | {"unseen": True} for g in chosen]
    slow = {kind: 2 * ns for kind, ns in machine.host.by_class if kind in ("gemm", "norm", "event")}
    entries = [
        {"group": name, "probe": [slow, slow], "probe_spread": [0.0, 0.03],
         "makespans_ns": {"sequential": [10_000_000]}}
        for name in names[:2]
    ]  # fmt: skip
    entries.append({"group": names[2], "makespans_ns": {"sequential": [10_000_000]}})
    again = {r["group"]: r for r in on_probed_hosts(records, entries)}
    ratios = {r["group"]: again[r["group"]]["ns"] / r["ns"] for r in records}
    assert ratios[names[0]] == pytest.approx(1.0, abs=0.02)
    before = next(r["ns"] for r in records if r["group"] == names[1])
    assert 1.5 * before < again[names[1]]["ns"] <= 2 * before + GATE_NS
    assert again[names[2]] in records
    plain = ("sum", "max", "SM share", "roofline")
    for record in records:
        assert [again[record["group"]]["others"][p] for p in plain] == [
            record["others"][p] for p in plain
        ]
    found = cases(list(again.values()), entries)
    assert [c.host for c in found] == [pytest.approx(2.0), pytest.approx(2.0), None]
    eager = again[names[1]]
    assert 0 < eager["doubt_ns"]["host"] < 0.05 * eager["ns"]
    kept = [{**r, "ns": 7} for r in again.values() if "probe" in r]
    assert [r["ns"] for r in on_probed_hosts(records, entries, kept) if "probe" in r] == [7, 7]
    moved = [e | {"probe": [slow, slow | {"gemm": 1}]} for e in entries[:1]]
    assert on_probed_hosts(records[:1], moved, kept)[0]["ns"] != 7
    other = [r | {"sha256": "0"} for r in records]
    with pytest.raises(ValueError, match="another one"):
        on_probed_hosts(other, entries)


def test_hosts_are_told_in_the_table_and_in_a_row_of_the_summary() -> None:
    own = [
        case("sequential", 120, 100, (120, 100), noise=1),
        case("tbo", 90, 80, (120, 100), noise=1),
    ]
    found = [
        replace(case("sequential", 101, 100, (101, 100), noise=1), host=0.71),
        case("tbo", 81, 80, (101, 100), noise=1),
    ]
    rows = table(found, own)
    assert rows[0].endswith("| MHz | host over profile's | error, the profile's own host |")
    assert rows[2].endswith("| 0.71 | +20.0% |")
    assert rows[3].endswith("| – | +12.5% |")
    assert all(row.count("|") == rows[0].count("|") for row in rows)
    assert not any("host" in row for row in table(own))
    told = summary(found, own)
    at = next(i for i, row in enumerate(told) if row.startswith("| seen, two GPUs: overlapped |"))
    assert told[at].startswith("| seen, two GPUs: overlapped | 1 | 1.2% |")
    assert told[at + 1].startswith(
        "| seen, two GPUs: overlapped; the profile's own host | 1 | 12.5% |"
    )
    page = document(found, {}, {}, (), own)
    assert "A probe of fixed size" in page
    assert "validation_probed.jsonl" in page
    assert "A probe of fixed size" not in document(own, {}, {})


def test_readmes_table_is_renewed_between_its_marks() -> None:
    block = readme_block([case("tbo", 100, 104, (120, 120), noise=5)])
    assert "| overlapped, all | 1 | 3.8% | 3.8% | 99.0% |" in block
    once = with_block(f"a\n{BEGIN}\nold\n{END}\nz\n", block)
    assert "old" not in once
    assert with_block(once, block) == once
    assert once.startswith("a\n")
    assert once.endswith("\nz\n")
    with pytest.raises(ValueError, match="no part between"):
        with_block("no marks", block)


def test_plain_predictors_add_up_what_does_not_overlap() -> None:
    group = next(group for group in known(CASES) if group.name == "decode 64 tokens")
    machine = load_machine("h200-2x-nvlink")
    alike = by_plain(group, "sequential", machine)
    assert alike["sum"] == alike["max"] == alike["SM share"] > alike["roofline"]
    overlapped = by_plain(group, "tbo", machine)
    assert overlapped["max"] < overlapped["sum"]


def test_the_page_and_readmes_table_are_what_the_data_say(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text(encoding="utf-8"))
    page = compared(read(PREDICTED), read(DATA / "validation_h200_2x.jsonl"), readme)
    assert page == (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    assert readme.read_text(encoding="utf-8") == (ROOT / "README.md").read_text(encoding="utf-8")
