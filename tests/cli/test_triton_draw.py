"""The cases of the Triton set that were drawn before anybody measured them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.triton_draw import (
    CASES,
    EARLIER,
    PROFILE,
    by_hosts,
    compared,
    lines,
    main,
    predicted,
)
from benchmarks.validation_cases import groups
from executor.calibrate.triton_plan import triton_plan
from executor.job import GATE_NS
from models.profile import load_machine

ONE = """layers: 1
groups:
  - {name: prefill 2 x 512 tokens, phase: prefill, tokens: 1024, sequence: 512, num_sms: 8,
     schedules: [sequential, tbo]}
"""
Files = tuple[Path, Path, Path]


def test_the_cases_are_what_the_seed_draws_and_hold_every_schedule_of_the_set() -> None:
    assert "\n".join(lines(44)) + "\n" == CASES.read_text(encoding="utf-8")
    found = [(group, name) for group in groups(CASES) for name in group.schedules]
    assert len(found) >= 24
    of_phase = {
        phase: {n for g, n in found if g.batch.phase == phase} for phase in ("decode", "prefill")
    }
    assert of_phase["decode"] == {"sequential", "baseline", "sbo.v1", "sbo.v2", "tbo"}
    assert of_phase["prefill"] == {"sequential", "baseline", "tbo"}


def test_no_batch_nor_half_of_it_was_calibrated_or_seen_before() -> None:
    grid = {made.number("tokens") for made in triton_plan() if made.kind == "layers"}
    seen = {group.batch.tokens[0] for group in groups(EARLIER)}
    sizes = [group.batch.tokens[0] for group in groups(CASES)]
    assert len(set(sizes)) == len(sizes)
    for tokens in sizes:
        assert not {tokens, tokens // 2} & (grid | seen)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """One group of small batches, bound by the host: cases, predictions, and as measured what its host
    would make of it in exactly the predicted times."""
    folder = tmp_path_factory.mktemp("one")
    cases, predictions, measured = (folder / name for name in ("cases", "predicted", "measured"))
    cases.write_text(ONE, encoding="utf-8")
    predictions.write_text("\n".join(predicted(cases, PROFILE)), encoding="utf-8")
    records = [json.loads(line) for line in predictions.read_text(encoding="utf-8").splitlines()]
    times = {record["schedule"]: [record["ns"]] * 3 for record in records}
    entry = {"group": records[0]["group"], "layers": 1, "makespans_ns": times}
    measured.write_text(json.dumps(entry), encoding="utf-8")
    return cases, predictions, measured


def with_hosts(files: Files, folder: Path, *slower: float) -> list[str]:
    """The page of the cases where the host was probed so many times as slow as the profile's."""
    cases, predictions, measured = files
    known = dict(load_machine(PROFILE).host.by_class)
    entry: dict[str, Any] = json.loads(measured.read_text(encoding="utf-8"))
    entry["probe"] = [{kind: round(ns * by) for kind, ns in known.items()} for by in slower]
    probed = folder / "probed"
    probed.write_text(json.dumps(entry), encoding="utf-8")
    return list(compared(probed, predictions, cases))


def errors(page: list[str], column: int) -> dict[str, float]:
    """Of each schedule in the table, from one of its columns."""
    rows = [line.split(" | ") for line in page if line.startswith("| prefill")]
    return {row[1]: float(row[column].rstrip("% |")) for row in rows}


def test_without_a_probe_only_what_was_predicted_is_compared(files: Files) -> None:
    cases, predictions, measured = files
    page = list(compared(measured, predictions, cases))
    assert "With the probed hosts:" not in page
    assert errors(page, 4) == {"sequential": 0.0, "tbo": 0.0}


def test_a_probed_host_takes_the_place_of_the_profiles_and_the_first_error_stays(
    files: Files, tmp_path: Path
) -> None:
    same, half = (with_hosts(files, tmp_path, *by) for by in ((1.0, 1.0), (0.4, 0.6)))
    assert errors(same, 4) == {"sequential": 0.0, "tbo": 0.0}
    for page in (same, half):
        assert page.index("As predicted:") < page.index("With the probed hosts:")
        assert errors(page, -1) == {"sequential": 0.0, "tbo": 0.0}
    # Were it bound by launches throughout, half their cost would be half the time since the gate began.
    records = [json.loads(line) for line in files[1].read_text(encoding="utf-8").splitlines()]
    ns = {record["schedule"]: record["ns"] for record in records}["tbo"]
    found = ns * (1 + errors(half, 4)["tbo"] / 100)
    assert 0.5 <= (found + GATE_NS) / (ns + GATE_NS) < 0.7


def test_a_case_is_predicted_with_each_host_that_was_seen_beside_it(
    files: Files, tmp_path: Path
) -> None:
    cases, _, measured = files
    known = dict(load_machine(PROFILE).host.by_class)
    slower, faster = ({kind: round(ns * by) for kind, ns in known.items()} for by in (1.5, 0.5))
    entry: dict[str, Any] = json.loads(measured.read_text(encoding="utf-8"))
    entry |= {"probe": [slower, faster], "host": {"sequential": known, "tbo": known}}
    probed = tmp_path / "probed"
    probed.write_text(json.dumps(entry), encoding="utf-8")
    *_, row = by_hosts(probed, cases, PROFILE)
    name, own, first, last, both, run, free = row.strip("| ").split(" | ")[1:]
    assert (name, own) == ("tbo", "+0.0%")
    assert own == both == run
    errors = [float(cell.rstrip("%")) for cell in (free, last, own, first)]
    assert errors == sorted(errors) and len(set(errors)) == len(errors)


def test_predictions_of_another_profile_are_compared_as_they_were_written_only(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases, predictions, measured = files
    other = tmp_path / "other"
    records = [json.loads(line) for line in predictions.read_text(encoding="utf-8").splitlines()]
    other.write_text("\n".join(json.dumps(r | {"sha256": "0123"}) for r in records))
    main(["compare", str(measured), "--cases", str(cases), "--predicted", str(other)])
    told = capsys.readouterr().out
    assert "As predicted:" in told
    assert "With the probed hosts: not told" in told and "0123" in told and PROFILE in told
