"""The comparison: the document's keys, refused rows, the verdict, and a paragraph made of its numbers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import moe_overlap as mo

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TOP = [
    "schema", "version", "sglang", "scenario", "hardware", "profile_sha256", "schedules", "best",
    "runner_up", "verdict", "margin_us", "noise_us", "why", "answers",
    "notes", "shortcuts",
]  # fmt: skip
ROW = [
    "name", "variant", "refused", "launch", "step_us", "layer_us", "band_us",
    "tokens_per_s_per_gpu", "exposed_comm_us", "sm_resident_fraction", "sm_spinning_fraction",
    "speedup_vs_baseline", "bounds_us", "critical_path", "bubbles_us", "cost_shares",
    "memory_gib", "max_batch_per_rank",
]  # fmt: skip
FIGURES = ROW[4:16]
EP8 = "deepseek-v3-h200-ep8-decode"
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.]*\w)")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return mo.compare(mo.load(EP8)).document()


def test_the_document_has_exactly_its_keys(document: dict[str, Any]) -> None:
    assert list(document) == TOP
    for row in document["schedules"]:
        assert list(row) == ROW
    assert [row["name"] for row in document["schedules"]] == [
        "sequential",
        "baseline",
        "sbo",
        "tbo",
    ]


def test_figures_hang_together(document: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in document["schedules"] if not row["refused"]}
    for row in rows.values():
        low, high = row["band_us"]
        assert max(row["bounds_us"].values()) <= row["step_us"]
        assert low <= row["step_us"] <= high
        assert 0 <= row["exposed_comm_us"] <= row["layer_us"] < row["step_us"]
        assert sum(entry["us"] for entry in row["critical_path"]) == pytest.approx(
            row["layer_us"], rel=0.01
        )
        assert sum(row["cost_shares"].values()) == pytest.approx(1, abs=0.01)
        assert 0 <= row["sm_spinning_fraction"] <= row["sm_resident_fraction"] <= 1
        assert row["tokens_per_s_per_gpu"] == pytest.approx(128e6 / row["step_us"], rel=1e-3)
        ratio = rows["baseline"]["step_us"] / row["step_us"]
        assert row["speedup_vs_baseline"] == pytest.approx(ratio, abs=1e-3)
    ranked = sorted(rows, key=lambda name: rows[name]["step_us"])
    assert document["best"] == ranked[0] and document["runner_up"] in ranked[1:]


def test_a_refused_schedule_has_its_reason_and_no_figures(document: dict[str, Any]) -> None:
    sbo = document["schedules"][2]
    assert sbo["refused"]["rule"] == "sbo.sm90"
    assert "startup error" in sbo["refused"]["reason"]
    assert all(sbo[key] is None for key in FIGURES)


def test_every_number_of_the_paragraph_is_in_the_document(document: dict[str, Any]) -> None:
    known = set(_numbers({key: value for key, value in document.items() if key != "why"}))
    found = [float(text) for text in NUMBER.findall(document["why"])]
    assert len(found) > 8
    assert set(found) <= known
    assert document["best"] in document["why"]
    uncertain = f"the {document['noise_us']} µs by which that difference is uncertain"
    assert uncertain in document["why"]


def test_allowed_refusals_are_predicted_and_never_win() -> None:
    scenario = mo.load(EP8, ["schedules=[sbo, sequential]"])
    result = mo.compare(scenario, allow_refused=True, fidelity="fast").document()
    sbo, sequential = result["schedules"]
    assert sbo["refused"]["rule"] == "sbo.sm90"
    assert sbo["step_us"] > 0 and sequential["step_us"] > 0
    assert (result["best"], result["runner_up"]) == ("sequential", None)


def test_a_batch_beyond_the_low_latency_cap_leaves_the_split_one() -> None:
    beyond = mo.load(EP8, ["phase.decode.batch_per_rank=200"])
    result = mo.compare(beyond, fidelity="fast").document()
    rules = {row["name"]: (row["refused"] or {}).get("rule") for row in result["schedules"]}
    assert rules == {
        "sequential": "a2a.low_latency_cap",
        "baseline": "a2a.low_latency_cap",
        "sbo": "sbo.sm90",
        "tbo": None,
    }
    assert (result["best"], result["runner_up"], result["margin_us"]) == ("tbo", None, None)


def test_the_same_input_gives_the_same_bytes() -> None:
    first, second = (json.dumps(mo.compare(mo.load("tiny")).document()) for _ in range(2))
    assert first == second


def test_a_users_schedule_is_compared(run: Run) -> None:
    ops = "P Q | C M G T | Da S | Db X Ca | Cb | O Z"
    done = run(
        "compare", "tiny", "--json", "--fidelity", "fast",
        "--set", f"schedules=[baseline, tbo, {{name: mine, ops: '{ops}', delta: 2}}]",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["schedules"]}
    assert rows["mine"]["step_us"] == pytest.approx(rows["tbo"]["step_us"], rel=0.02)


def test_json_is_alone_on_standard_output_and_a_page_is_written(run: Run, tmp_path: Path) -> None:
    done = run("compare", "tiny", "--json", "--html", "out/page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(json.loads(done.stdout)) == TOP
    page = (tmp_path / "out" / "page.html").read_text()
    assert "<html" in page
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["page.html"]


def test_the_table_names_rows_verdict_and_report(run: Run, tmp_path: Path) -> None:
    done = run("compare", EP8, "--fidelity", "fast")
    assert done.returncode == 0
    for word in ("sequential", "baseline", "sbo refused (sbo.sm90)", "tbo", "report: reports/"):
        assert word in done.stdout
    assert (tmp_path / "reports" / f"{EP8}.html").is_file()


def test_nothing_that_fits_is_status_one(run: Run) -> None:
    done = run("compare", EP8, "--set", "schedules=[sbo]", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["best"], document["verdict"]) == (None, None)
    assert document["why"].startswith("No schedule can run.")


def test_simulate_writes_a_timeline_that_view_reads(run: Run, tmp_path: Path) -> None:
    done = run("simulate", "tiny", "--schedule", "tbo", "-o", "tbo.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tbo.json").is_file()
    assert run("view", "tbo.json", "--term").stdout.count("rank ") >= 2
    seen = run("view", "tbo.json", "-o", "page.html")
    assert seen.stdout.strip() == "page.html"
    assert "tbo" in (tmp_path / "page.html").read_text()


def test_simulate_refuses_what_the_rules_refuse(run: Run, tmp_path: Path) -> None:
    done = run("simulate", EP8, "--schedule", "sbo", "-o", "sbo.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "sbo is refused (sbo.sm90)" in done.stderr
    assert not (tmp_path / "sbo.json").exists()
    assert (
        run("simulate", EP8, "--schedule", "sbo", "--allow-refused", "-o", "s.json").returncode == 0
    )
    assert "did you mean 'tbo'" in run("simulate", EP8, "--schedule", "tboo").stderr
    words = ("--set", "model=deepseek-v4-flash", "--allow-refused")
    nothing = run("simulate", EP8, "--schedule", "tbo", *words)
    assert nothing.returncode == 1 and "; there is nothing to build" in nothing.stderr


def test_where_the_rules_refuse_all_nothing_is_said_of_memory(run: Run) -> None:
    done = run("compare", EP8, "--set", "schedules=[sbo]", "--fidelity", "fast")
    assert done.returncode == 1
    assert "No schedule can run. sbo is refused (sbo.sm90)" in done.stdout
    assert "fits" not in done.stdout
