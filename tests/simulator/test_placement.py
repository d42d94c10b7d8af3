"""Grouped placement against a plain list of SMs that are looked at one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.machine import Footprint, SmResources
from simulator.placement import Room
from tests.simulator.plain_room import Free, PlainRoom

SM = SmResources(threads=2048, registers=65536, smem_bytes=200_000, cta_slots=8)
SET_BY_THE_FIRST = replace(SM, carveouts=(0, 8_000, 100_000, 200_000))
CTAS = st.builds(
    Footprint,
    ctas=st.just(1),
    threads=st.sampled_from([0, 128, 384, 1024]),
    registers=st.sampled_from([0, 8192, 30000]),
    smem_bytes=st.sampled_from([0, 1000, 90_000, 200_000]),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from([SM, SET_BY_THE_FIRST]),
    st.integers(1, 12),
    st.lists(st.tuples(CTAS, st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_groups_of_sms_hold_what_single_sms_hold(
    sm_kind: SmResources, num_sms: int, actions: list[tuple[Footprint, int, int]]
) -> None:
    room, plain = Room(num_sms, sm_kind), PlainRoom(num_sms, sm_kind)
    placed: dict[int, list[tuple[int, Free]]] = {}
    for number, (cta, wanted, release) in enumerate(actions):
        if release == 0 and placed:
            oldest = min(placed)
            room.release(oldest)
            for held in placed.pop(oldest):
                plain.add(*held, 1)
        need = (cta.threads, cta.registers, cta.smem_bytes, 1)
        fits = room.fits(cta, wanted)
        assert fits == plain.count(need, wanted)
        if fits:
            placed[number] = []
            for _ in range(fits):
                sm = plain.best(need)
                assert sm is not None
                plain.add(sm, need, -1)
                placed[number].append((sm, need))
            assert room.take(number, cta, fits) == len({sm for sm, _ in placed[number]})
        assert room.resident_sms == plain.resident_sms
    for number in placed:
        room.release(number)
    assert room.resident_sms == 0


def test_a_cta_too_large_for_an_sm_is_an_error() -> None:
    with pytest.raises(ValueError, match="takes a CTA of"):
        SM.ctas(Footprint(1, smem_bytes=200_001))
