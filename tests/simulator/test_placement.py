"""Grouped placement against a plain list of SMs that are looked at one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Footprint, SmResources
from simulator.placement import Room

SM = SmResources(threads=2048, registers=65536, smem_bytes=200_000, cta_slots=8)
CTAS = st.builds(
    Footprint,
    ctas=st.just(1),
    threads=st.sampled_from([0, 128, 384, 1024]),
    registers=st.sampled_from([0, 8192, 30000]),
    smem_bytes=st.sampled_from([0, 1000, 90_000, 200_000]),
)
Free = tuple[int, int, int, int]


class PlainRoom:
    """Every SM by itself: a CTA goes to the SM with most free."""

    def __init__(self, num_sms: int) -> None:
        self.free: list[Free] = [(2048, 65536, 200_000, 8)] * num_sms
        self.placed: dict[int, list[tuple[int, Free]]] = {}

    def best(self, need: Free) -> int | None:
        """The emptiest SM that takes a CTA."""
        able = [
            (free, -index)
            for index, free in enumerate(self.free)
            if all(have >= want for have, want in zip(free, need, strict=True))
        ]
        return -max(able)[1] if able else None

    def take(self, allocation: int, cta: Footprint, at_most: int) -> tuple[int, int]:
        """(CTAs placed, SMs that hold them)."""
        need = (cta.threads, cta.registers, cta.smem_bytes, 1)
        placed = self.placed.setdefault(allocation, [])
        while len(placed) < at_most and (index := self.best(need)) is not None:
            self._add(index, need, -1)
            placed.append((index, need))
        return len(placed), len({index for index, _ in placed})

    def release(self, allocation: int) -> None:
        """Give every CTA back."""
        for index, need in self.placed.pop(allocation):
            self._add(index, need, 1)

    def _add(self, index: int, need: Free, sign: int) -> None:
        a, b, c, d = (have + sign * want for have, want in zip(self.free[index], need, strict=True))
        self.free[index] = (a, b, c, d)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(CTAS, st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_groups_of_sms_hold_what_single_sms_hold(
    num_sms: int, actions: list[tuple[Footprint, int, int]]
) -> None:
    room, plain = Room(num_sms, SM), PlainRoom(num_sms)
    alive: list[int] = []
    for number, (cta, wanted, release) in enumerate(actions):
        if release == 0 and alive:
            oldest = alive.pop(0)
            room.release(oldest)
            plain.release(oldest)
        fits = room.fits(cta, wanted)
        ctas, sms = plain.take(number, cta, wanted)
        assert fits == ctas
        if fits:
            assert room.take(number, cta, fits) == sms
            alive.append(number)
        assert room.resident_sms == sum(free[3] < 8 for free in plain.free)
    for number in alive:
        room.release(number)
    assert room.resident_sms == 0


def test_a_cta_too_large_for_an_sm_is_an_error() -> None:
    with pytest.raises(ValueError, match="takes a CTA of"):
        SM.ctas(Footprint(1, smem_bytes=200_001))
