"""The cases of the Triton set that were drawn before anybody measured them."""

from __future__ import annotations

from benchmarks.triton_draw import CASES, EARLIER, lines
from benchmarks.validation_cases import groups
from executor.calibrate.triton_plan import triton_plan


def test_the_cases_are_what_the_seed_draws_and_hold_every_schedule_of_the_set() -> None:
    assert "\n".join(lines(30)) + "\n" == CASES.read_text(encoding="utf-8")
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
