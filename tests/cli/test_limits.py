"""The largest batch within a limit: curves by hand, on which every size is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from moe_overlap.answers.latency import largest_within

# Milliseconds of two-batch overlap by batch: up, down and up again.
UNEVEN = {1: 34.4, 2: 39.5, 3: 46.3, 4: 44.6, 5: 43.6, 6: 44.2, 7: 44.2, 8: 45.6, 9: 47.0, 10: 47.0}


def _searched(
    ms: Callable[[int], float], top: int, limit: float, least: int = 1
) -> tuple[int | None, list[int]]:
    looked: list[int] = []

    def within(size: int) -> bool:
        looked.append(size)
        return ms(size) <= limit

    return largest_within(within, top, least), looked


@pytest.mark.parametrize("answer", [1, 2, 24, 25, 63, 64, 65, 199])
def test_on_a_flat_curve_the_bracket_closes(answer: int) -> None:
    """A millisecond over 256 batches, that a guess by the ends' heights does not get off from."""
    found, looked = _searched(
        lambda size: 49 + size / 256 + 40 * (size == 256), 256, 49 + answer / 256
    )
    assert found == answer
    assert len({*looked}) <= 16


@pytest.mark.parametrize(("limit", "answer"), [(10.0, 3), (100.0, 6), (1e6, 19), (1e9, 29)])
def test_on_a_steep_curve(limit: float, answer: int) -> None:
    found, _ = _searched(lambda size: 2.0**size, 1000, limit)
    assert found == answer


def test_a_large_batch_is_found_to_a_hundredth() -> None:
    found, looked = _searched(lambda size: size / 1000, 65536, 30.0, least=4096)
    assert found is not None
    assert found <= 30000 < found + found // 100 + 1
    assert len(looked) < 20


def _largest(curve: Mapping[int, float], limit: float) -> int:
    return max(size for size, ms in curve.items() if ms <= limit)


@pytest.mark.parametrize("limit", [35, 40, 43.6, 44.0, 44.3, 44.7, 46.0, 46.5, 47.0])
def test_on_a_curve_that_falls_and_rises_again(limit: float) -> None:
    found, _ = _searched(UNEVEN.__getitem__, 10, limit)
    assert found == _largest(UNEVEN, limit)


def test_the_smallest_may_be_late_and_a_larger_one_not() -> None:
    found, looked = _searched(lambda size: abs(size - 33) + 5.0, 256, 8.0)
    assert found == 36
    assert 1 not in looked


def test_where_none_is_found_the_powers_of_two_were_looked_at() -> None:
    """The one size within the limit lies between them: nothing is claimed of it."""
    found, looked = _searched(lambda size: 1.0 + (size != 24), 100, 1.0)
    assert (found, looked) == (None, [100, 64, 32, 16, 8, 4, 2, 1])
    found, looked = _searched(lambda size: 2.0, 9000, 1.0, least=1500)
    assert (found, looked) == (None, [9000, 6000, 3000, 1500])
