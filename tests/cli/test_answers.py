"""Capacity, latency limits and flips: what is said holds when the scenario is predicted there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moe_overlap as mo
from models.errors import InputError
from moe_overlap.answers import capacity, latency
from moe_overlap.answers.variation import size_of
from moe_overlap.answers.words import answer_lines

Run = Callable[..., "subprocess.CompletedProcess[str]"]
EP8 = "deepseek-v3-h200-ep8-decode"
EP8_PREFILL = "deepseek-v3-h200-ep8-prefill"
PREFILL = "qwen3-30b-h100-ep8-prefill"
SMALL = ["schedules=[baseline, tbo]", "model.num_layers=8"]
# Under a limit that nothing reaches: the largest batches, and no other question.
LARGEST: dict[str, Any] = {"fidelity": "fast", "limit_ms": 1e6}


@cache
def _document(name: str, *sets: str, **options: Any) -> dict[str, Any]:
    return mo.compare(mo.load(name, [*SMALL, *sets]), **options).document()


def _steps(document: dict[str, Any]) -> dict[str, float]:
    return {row["name"]: row["step_us"] for row in document["schedules"] if not row["refused"]}


def test_a_low_latency_buffer_holds_a_batch_or_half_of_one() -> None:
    # Buffers of 128 tokens: a whole batch of 128, or two children of 128 each. Memory would hold more.
    answers = _document(EP8, limit_ms=4.0)["answers"]
    largest = answers["largest"]
    assert (largest["baseline"]["batch_per_rank"], largest["tbo"]["batch_per_rank"]) == (128, 256)
    assert largest["baseline"]["limited_by"] == "a2a.low_latency_cap"
    best = max(largest, key=lambda name: largest[name]["tokens_per_s_per_gpu"])
    assert answers["best_at_largest"] == best


@pytest.mark.parametrize(("tokens", "size"), [(1300, 20), (1364, 20), (1365, 21)])
def test_the_largest_batch_fills_the_pool(tokens: int, size: int) -> None:
    """Sequences of 64 cached tokens and a new one, 65 each."""
    scenario = mo.load("tiny", ["schedules=[tbo]", f"runtime.max_total_tokens={tokens}"])
    largest = mo.compare(scenario, **LARGEST).document()["answers"]["largest"]
    assert (largest["tbo"]["batch_per_rank"], largest["tbo"]["limited_by"]) == (size, "memory")


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    # A cap that does not bind: memory decides.
    sets = [
        "a2a.max_dispatch_tokens_per_rank=1024",
        "phase.decode.kv_tokens=30000",
        "phase.decode.batch_per_rank=8",
    ]
    largest = _document(EP8, *sets, **LARGEST)["answers"]["largest"]["baseline"]
    assert largest["limited_by"] == "memory"
    size = largest["batch_per_rank"]
    for batch, refused in ((size, False), (round(size * 1.03) + 1, True)):
        there = _document(EP8, *sets, f"phase.decode.batch_per_rank={batch}", fidelity="fast")
        assert bool(there["schedules"][0]["refused"]) is refused


def test_a_limit_on_latency_is_kept_and_nearly_reached() -> None:
    document = _document(EP8, limit_ms=4.0)
    answers = document["answers"]
    assert (answers["latency"], answers["limit_ms"]) == ("itl", 4.0)
    for name, found in answers["under_limit"].items():
        assert found["latency_ms"] <= 4.0
        assert found["latency_ms"] == pytest.approx(found["step_us"] / 1000, abs=1e-3)
        more = round(found["batch_per_rank"] * 1.05) + 2
        if found["limited_by"] == "latency":
            there = _document(EP8, f"phase.decode.batch_per_rank={more}", fidelity="fast")
            assert _steps(there)[name] > 4000
    assert document["answers"]["best_under_limit"] in answers["under_limit"]


def test_an_impossible_limit_is_said() -> None:
    document = _document(EP8, limit_ms=0.01, fidelity="fast")
    assert document["answers"]["best_under_limit"] is None
    assert answer_lines(document)[-1] == (
        "No schedule was found within 0.01 ms between tokens; looked at batch per rank "
        "1, 2, 4, 8, 16, 32, 64, 128 and 256."
    )


def test_the_largest_batch_within_a_limit_beside_all_batches() -> None:
    """Every batch of `tiny` by itself, at limits from below the fastest to above the slowest. Only a gap
    of more than four sizes, or a set without a power of two, may hide a larger one."""
    resolved = mo.resolve(mo.load("tiny", ["runtime.max_total_tokens=1300"]))
    sizes, choice = capacity.Sizes(resolved, {}), resolved.choice("tbo")
    every = [capacity.operating(sizes, choice, size, "memory") for size in range(1, 21)]
    curve = {one.size: one for one in every if one is not None}
    ms = sorted(one.step_us / 1000 for one in curve.values())
    exact = 0
    for limit in [0.9 * ms[0], *ms[::4], ms[-1]]:
        within = [size for size, one in curve.items() if one.step_us / 1000 <= limit]
        found = latency.under_limit(sizes, choice, curve[20], limit).found
        gaps = any(above - below > 4 for below, above in pairwise(within))
        if not gaps and {1, 2, 4, 8, 16, 20} & {*within}:
            assert found == replace(curve[within[-1]], limited_by=found.limited_by if found else "")
            exact += 1
        elif found is None:
            assert not {1, 2, 4, 8, 16, 20} & {*within}
        else:
            assert found.size in within
            assert not {*range(found.size + 1, found.size + 5)} & {*within}
    assert exact >= 3


def test_a_schedule_without_a_batch_within_the_limit_is_named() -> None:
    document = _document(EP8, limit_ms=4.0)
    answers = document["answers"]
    answers = {**answers, "under_limit": {"baseline": answers["largest"]["baseline"]}}
    answers["under_limit_looked"] = {"baseline": [128], "tbo": [1, 2, 256]}
    line = answer_lines({**document, "answers": answers})[-1]
    assert line.startswith("Within 4 ms between tokens: baseline 128 (")
    assert line.endswith(" None of tbo was found: looked at batch per rank 1, 2 and 256.")


def test_the_key_of_the_low_latency_buffer_is_named_where_it_limits() -> None:
    key = "The low-latency buffer is set by a2a.max_dispatch_tokens_per_rank."
    limited = answer_lines(_document(EP8, limit_ms=4.0))
    assert sum(key in line for line in limited) == 1
    assert not any(key in line for line in answer_lines(_document(PREFILL, **LARGEST)))


def test_a_prompt_in_chunks_waits_for_all_of_them() -> None:
    sets = ["phase.prefill.tokens_per_rank=2048", "phase.prefill.sequence_tokens=4096"]
    document = _document(PREFILL, *sets, fidelity="fast")
    for name, us in _steps(document).items():
        assert document["answers"]["latency_ms"][name] == pytest.approx(2 * us / 1000, abs=1e-3)


def test_the_flip_flips() -> None:
    name = "deepseek-v3-h100-ep72-decode"
    document = _document(name)
    flip = document["answers"]["flip"]
    assert flip["key"] == "batch per rank"
    at_flip = _steps(
        _document(name, f"phase.decode.batch_per_rank={flip['value']}", fidelity="fast")
    )
    looked = document["answers"]["flip_looked"]["batch per rank"]
    nearer = min(size for size in looked if size > flip["value"])
    before = _steps(_document(name, f"phase.decode.batch_per_rank={nearer}", fidelity="fast"))
    loser = document["best"]
    assert at_flip[flip["winner"]] < at_flip[loser]
    assert before[flip["winner"]] > before[loser]
    *first, last = map(str, looked)
    assert answer_lines(document)[0] == (
        f"Nearest flip found: {flip['winner']} would be the faster at batch per rank {flip['value']} "
        f"instead of 256; looked at {', '.join(first)} and {last}."
    )


def test_without_a_flip_all_that_was_looked_at_is_said() -> None:
    document = _document(EP8)
    answers = document["answers"]
    assert answers["flip"] is None
    line = answer_lines(document)[0]
    assert line.startswith("No flip found: tbo would not be the faster at batch per rank ")
    for key, values in answers["flip_looked"].items():
        assert f"{key} " in line
        assert all(f"{int(value):,}" in line for value in values if value == int(value))
    assert {32, 45, 64, 91} <= set(answers["flip_looked"]["batch per rank"])


def test_fast_says_nothing_that_it_did_not_look_for() -> None:
    document = _document(EP8, fidelity="fast")
    assert answer_lines(document) == []
    assert document["shortcuts"] == {"fidelity": "fast", "error": {"baseline": None, "tbo": None}}


@pytest.mark.parametrize(
    ("name", "option", "word"), [(EP8, "--ttft-ms", "--itl-ms"), (PREFILL, "--itl-ms", "--ttft-ms")]
)
def test_the_limit_of_the_other_phase_is_a_usage_error(
    run: Run, name: str, option: str, word: str
) -> None:
    done = run("compare", name, option, "5", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_the_command_takes_limit_and_fidelity(run: Run) -> None:
    done = run("compare", "tiny", "--itl-ms", "2", "--fidelity", "fast", "--json")
    answers = json.loads(done.stdout)["answers"]
    assert (answers["limit_ms"], answers["flip"]) == (2.0, None)


def test_a_search_that_ends_before_memory_does_says_how_far_it_went() -> None:
    document = _document(EP8_PREFILL, "phase.prefill.tokens_per_rank=60000", **LARGEST)
    largest = document["answers"]["largest"]
    assert {one["limited_by"] for one in largest.values()} == {"search"}
    assert {one["batch_per_rank"] for one in largest.values()} == {524_288 // 8}
    (line,) = [line for line in answer_lines(document) if line.startswith("Each at its own")]
    assert line.endswith("Batches of more than 524,288 tokens over all ranks were not looked at.")
    bound = answer_lines(_document(EP8, limit_ms=4.0))
    assert not any("not looked at" in line for line in bound)


def test_only_a_batch_too_large_means_that_a_size_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = mo.resolve(mo.load("tiny", ["schedules=[tbo]", "runtime.max_total_tokens=1300"]))
    sizes, choice = capacity.Sizes(resolved, {}), resolved.choice("tbo")
    assert capacity.operating(sizes, choice, 20, "memory") is not None
    assert capacity.operating(sizes, choice, 21, "memory") is None

    def broken(*_: object) -> None:
        raise InputError("profile", "gaps", 1, "another")

    monkeypatch.setattr(capacity, "at_size", broken)
    with pytest.raises(InputError, match="another"):
        capacity.operating(sizes, choice, 22, "memory")


@pytest.mark.parametrize(("rows", "most"), [(1.0, 16), (1.5, 24)])
def test_a_file_of_ids_holds_so_many_tokens(tmp_path: Path, rows: float, most: int) -> None:
    resolved = mo.resolve(mo.load("tiny", ["schedules=[tbo]"]))
    assert size_of(resolved) == 16
    ids, tokens = tmp_path / "ids.npy", round(rows * sum(resolved.batch.tokens))
    np.save(ids, np.tile(np.arange(resolved.deployment.model.top_k), (tokens, 1)))
    sets = ["schedules=[tbo]", f"routing={{distribution: file, path: {ids}}}"]
    sizes = capacity.Sizes(mo.resolve(mo.load("tiny", sets)), {})
    choice = resolved.choice("tbo")
    assert capacity.operating(sizes, choice, most, "memory") is not None
    assert capacity.operating(sizes, choice, most + 1, "memory") is None
