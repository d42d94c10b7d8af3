"""The search for the nearest flip against looking at every size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log, log2, pow

import pytest

import moe_overlap as mo
from moe_overlap.answers import flip
from moe_overlap.answers.flip import Direction, Flip, Looks, along_sizes, nearest_flip, sizes
from scenarios.resolve import ScheduleChoice

NOW = 64
Lead = Callable[[int], float | None]


def size_at(now: int, sign: int, octaves: float) -> int:
    return max(1, round(now * 2 ** (sign * octaves)))


def searched(
    monkeypatch: pytest.MonkeyPatch, lead: Lead, *, close: bool = False, alternate: bool = False
) -> tuple[Flip | None, list[int]]:
    """What is found from `NOW` within two octaves, and the sizes that were looked at, in order."""
    looked: list[int] = []

    def look(way: Direction, best: object, rival: object, octaves: float) -> float | None:
        looked.append(round(way.value(octaves)))
        return lead(looked[-1])

    monkeypatch.setattr(flip, "_lead", look)
    ways = [
        Direction(
            "batch",
            NOW,
            lambda octaves: resolved(),
            partial(size_at, NOW, sign),
            alternate=alternate,
        )
        for sign in (-1, 1)
    ]
    now = lead(NOW)
    assert now is not None and now >= 0
    looks = Looks(ScheduleChoice("best"), ScheduleChoice("rival"))
    found = along_sizes(looks, ways, now, 2.0, close=close)
    assert len(looked) == len(set(looked))
    return min(found, key=lambda one: one.octaves, default=None), looked


def resolved() -> mo.Resolved:
    raise AssertionError("no scenario is needed")


def nearest(lead: Lead) -> int | None:
    """By looking at every size, as far as both run."""
    found = []
    for way in (range(NOW - 1, NOW // 4 - 1, -1), range(NOW + 1, 4 * NOW + 1)):
        for size in way:
            value = lead(size)
            if value is None:
                break
            if value < 0:
                found.append(size)
                break
    return min(found, key=lambda size: abs(log2(size / NOW)), default=None)


@pytest.mark.parametrize("crossing", [*range(17, 64, 3), *range(65, 256, 13)])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_where_the_lead_changes_steadily_the_size_is_the_nearest_or_next_to_it(
    monkeypatch: pytest.MonkeyPatch, crossing: int, power: float
) -> None:
    """To the next size or two hundredths: a few looks are all that is spent."""
    sign = 1 if crossing < NOW else -1

    def lead(size: int) -> float:
        return sign * (pow(size, power) - pow(crossing, power) - sign * 1e-6) / pow(NOW, power)

    best = nearest(lead)
    found, looked = searched(monkeypatch, lead)
    assert best is not None and found is not None
    assert lead(round(found.value)) < 0
    assert found.value == pytest.approx(best, rel=0.02, abs=1)
    assert len(looked) <= 11


def test_a_flip_between_two_sizes_that_do_not_flip_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a quarter of the batch the order is as it was; the sizes next to the change are told from it."""
    found, _ = searched(monkeypatch, lambda size: -0.01 if 20 <= size <= 40 else 0.01)
    assert found is not None and found.value in (39, 40)


def test_a_way_is_looked_at_up_to_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of more than 80 do not run; half way to the first that does not, a flip is seen."""
    found, looked = searched(
        monkeypatch, lambda size: None if size > 80 else (-0.01 if size >= 76 else 0.01)
    )
    assert found is not None and found.value == 76
    assert max(looked) == 91


def test_of_sizes_that_alternate_the_next_of_the_same_kind_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lead(size: int) -> float:
        return log(size / (41 if size % 2 else 43))

    found, _ = searched(monkeypatch, lead, alternate=True)
    assert found is not None and found.value == nearest(lead) == 42


@pytest.mark.parametrize("size", [63, 65])
def test_where_it_is_close_the_next_sizes_are_seen(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    found, looked = searched(monkeypatch, lambda n: -0.01 if n == size else 0.01, close=True)
    assert found is not None and found.value == size
    assert sorted(looked) == [63, 65]


@pytest.mark.parametrize(
    ("name", "best", "sets"),
    [
        ("deepseek-v3-h100-ep72-decode", "tbo", ["phase.decode.batch_per_rank=112"]),
        ("deepseek-v3-h200-ep2-decode", "baseline", ["phase.decode.batch_per_rank=8"]),
    ],
)
def test_no_batch_nearer_than_the_one_that_is_found_flips(
    name: str, best: str, sets: list[str]
) -> None:
    """Every size in between is predicted."""
    at = mo.resolve(mo.load(name, [*sets, "schedules=[baseline, tbo]", "model.num_layers=8"]))
    (rival,) = (choice for choice in at.schedules if choice.name != best)
    looks = Looks(at.choice(best), rival)
    search = nearest_flip(at, looks.best, rival, 0.01, octaves=0.5, close=True)
    reach = search.flip.octaves if search.flip is not None else 0.5
    for way in sizes(at):
        size, step = round(way.now), round(way.value(1.0) - way.now)
        while (size := size + (1 if step > 0 else -1)) and abs(log2(size / way.now)) < reach - 1e-9:
            lead = looks.lead(way, abs(log2(size / way.now)))
            assert lead is None or lead >= 0
    assert (search.flip is not None) == (best == "tbo")
