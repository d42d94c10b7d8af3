"""`moe-overlap fusion`: the three layers in text and JSON, and every refusal by its rule."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import pytest

import moe_overlap as mo

ROOT = Path(__file__).resolve().parents[2]
EP8 = "deepseek-v3-h200-ep8-decode"


class Run(Protocol):
    def __call__(self, *arguments: str) -> CompletedProcess[str]: ...


def test_three_layers_and_the_rule(run: Run) -> None:
    done = run("fusion", EP8)
    assert done.returncode == 0, done.stderr
    for part in ("Switch", "not fused", "deepseek.deepep", "Layout: none", "Scheduling", "0.5.14"):
        assert part in done.stdout


def test_json_of_an_enforced_private_slot(run: Run) -> None:
    done = run("fusion", EP8, "--json", "--set", "shared_experts.fusion=enforce")
    report = json.loads(done.stdout)
    assert report["switch"]["rule"] == "deepseek.enforce"
    layout = report["layout"]
    assert (layout["kind"], layout["expert_ids"], layout["rows_per_rank"]) == ("per_rank", 264, 33)
    assert (layout["shared_id_on_rank_0"], layout["shared_id_on_last_rank"]) == (32, 263)
    assert layout["shared_weight"] == 1 / 2.5
    assert {row["schedule"] for row in report["scheduling"]} == {"baseline", "sbo", "tbo"}


def test_waterfill_on_72_ranks_is_an_error_with_its_rule(run: Run) -> None:
    done = run(
        "fusion", "deepseek-v3-h100-ep72-decode", "--json", "--set", "shared_experts.waterfill=true"
    )
    switch = json.loads(done.stdout)["switch"]
    assert (switch["outcome"], switch["rule"]) == ("error", "waterfill.power_of_two")


def test_a_model_without_a_shared_expert_has_no_rule_and_no_hooks(run: Run) -> None:
    qwen = "qwen3-235b-h100-ep8-decode"
    done = run("fusion", qwen)
    assert "has no shared expert, so no rule decides" in done.stdout
    for part in ("Scheduling", "second stream", "operation S", "class.no_check"):
        assert part not in done.stdout
    report = json.loads(run("fusion", qwen, "--json").stdout)
    assert report["scheduling"] == [] and report["switch"]["outcome"] == "not fused"
    rules = {report["switch"]["rule"], *(one["rule"] for one in report["versions"].values())}
    assert rules == {None}


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        (EP8, ["model.base=glm-4.5"]),
        (EP8, ["shared_experts.fusion=enforce"]),
        ("deepseek-v3-gb200-ep48-decode", []),
        ("deepseek-v3-h100-ep72-decode", ["shared_experts.waterfill=true"]),
    ],
)
def test_what_compare_refuses_is_not_described(run: Run, name: str, sets: list[str]) -> None:
    few = [*sets, "schedules=[baseline, sbo, tbo]", "model.num_layers=5"]
    compared = mo.compare(mo.load(name, few), fidelity="fast").document()
    expected = {row["name"]: row["refused"] for row in compared["schedules"]}
    options = [part for setting in few for part in ("--set", setting)]
    rows = json.loads(run("fusion", name, "--json", *options).stdout)["scheduling"]
    assert {row["schedule"]: row["refused"] for row in rows} == expected
    text = run("fusion", name, *options).stdout
    for row in rows:
        assert (row["left"] is None) == (row["refused"] is not None)
        if row["refused"]:
            assert f"{row['schedule']:<10}refused [{row['refused']['rule']}]" in text


def test_an_unknown_backend_is_refused_with_its_key(run: Run) -> None:
    done = run("fusion", EP8, "--set", "a2a.backend=deepepp")
    assert done.returncode == 1 and not done.stdout
    assert "a2a.backend = 'deepepp': unknown" in done.stderr and "did you mean" in done.stderr


def test_the_document_is_what_docs_hold(run: Run) -> None:
    done = run("fusion", "--document")
    assert done.stdout == (ROOT / "docs" / "fusion-rules.md").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (EP8, "--document"),
        ("--document", "--product"),
        ("--product", "--set", "routing.seed=1"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("fusion", *arguments)
    assert done.returncode == 2 and "SCENARIO" in done.stderr and not done.stdout
