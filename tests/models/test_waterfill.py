"""Waterfill against a plain transcription of its rules, one token at a time, and its properties."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import InputError
from models.routing import Routing
from models.waterfill import (
    MIN_BATCH,
    Plan,
    check_ranks,
    choose_ranks,
    dynamic_plan,
    expand,
    static_plan,
    waterfill_ranks,
)


def scalar_choice(row: list[int], i: int, n: int, s: int, plan: Plan) -> int:
    """The rules for token `i` of rank `s`, with Python integers and loops only."""
    load, world, k = plan.load, len(plan.load), len(row)
    visited = [e // n for e in row if e >= 0]
    if not visited:
        return -1
    level = plan.target
    if level <= 0:
        entries = sum(load)
        level = (entries + entries // k + world - 1) // world
    weights = []
    for q in range(world):
        w = max(0, level - load[q])
        if q != s:
            w = w * 10 // 11
        if not plan.allow_all and q != s and q not in visited:
            w = 0
        weights.append(w)
    if sum(weights) == 0:
        best = s
        for q in range(world) if plan.allow_all else visited:
            if load[q] * 11 < load[best] * 10:
                best = q
        return best
    seed = ((i ^ (s * 0x9E3779B9)) * 1664525 + 1013904223) % 2**32
    u = seed % sum(weights)
    for q in range(world):
        if u < weights[q]:
            return q
        u -= weights[q]
    raise AssertionError("u lies in no interval")


def test_vectorised_choice_equals_the_scalar_rules_in_ten_thousand_cases() -> None:
    draw = random.Random(11)
    for _ in range(10_000):
        world = draw.choice([1, 2, 4, 8, 16, 32])
        n, k, rows = draw.randint(1, 40), draw.randint(1, 9), draw.randint(1, 4)
        valid = draw.choice([1.0, 1.0, 0.7, 0.2])
        ids = [
            [draw.randrange(world * n) if draw.random() < valid else -1 for _ in range(k)]
            for _ in range(rows)
        ]
        top = draw.choice([1, 4, 300, 10**6])
        load = tuple(draw.randint(0, top) for _ in range(world))
        target = draw.choice([0, 0, 1, top // 2, top, 2 * top])
        plan = Plan(load, target, draw.random() < 0.4)
        source = draw.randrange(world)
        expected = [scalar_choice(row, i, n, source, plan) for i, row in enumerate(ids)]
        assert choose_ranks(np.array(ids), n, source, plan).tolist() == expected


def test_rows_past_one_chunk_keep_their_own_index() -> None:
    ids = np.random.default_rng(0).integers(0, 32, (70_000, 2))
    plan = Plan((30, 10, 20, 40), 50, False)
    got = choose_ranks(ids, 8, 2, plan)
    for i in (0, 32_767, 32_768, 65_536, 69_999):
        assert got[i] == scalar_choice(ids[i].tolist(), i, 8, 2, plan)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(1, 12), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_each_valid_token_reaches_one_shared_slot(seed: int, log_w: int, n: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    world = 2**log_w
    ids = rng.integers(-1, world * n, (rows, 3))
    weights = rng.random((rows, 3), dtype=np.float32)
    source = int(rng.integers(world))
    ranks = choose_ranks(ids, n, source, static_plan(ids, n, world))
    wide, gates = expand(ids, weights, ranks, n, 0.4)
    valid = (ids >= 0).any(axis=1)
    shared_slots = (wide >= 0) & (wide % (n + 1) == n)
    assert (shared_slots.sum(axis=1) == valid).all()
    assert (gates[:, -1] == np.where(valid, np.float32(0.4), 0)).all()
    assert (gates[:, :-1] == np.where(ids >= 0, weights, 0)).all()
    # Routed ids keep their rank and row; nothing else lands on a shared row.
    assert (wide[:, :-1][ids >= 0] // (n + 1) == ids[ids >= 0] // n).all()
    assert (wide[:, :-1][ids >= 0] % (n + 1) == ids[ids >= 0] % n).all()


def test_ids_of_a_narrow_type_do_not_wrap() -> None:
    ids = np.array([[120, -1]])
    gates, ranks = np.ones((1, 2), np.float32), np.array([15])
    wide, _ = expand(ids.astype(np.int8), gates, ranks, 8, 1.0)
    assert wide.tolist() == expand(ids, gates, ranks, 8, 1.0)[0].tolist() == [[135, -1, 143]]


def test_below_the_threshold_the_shared_expert_stays_at_home() -> None:
    rng = np.random.default_rng(1)
    whole = Routing(
        tuple((rng.integers(0, 64, (64, 4)) // 8).astype(np.int32) for _ in range(4)), 64, 4
    )
    assert {tuple(set(r.tolist())) for r in waterfill_ranks(whole)} != {(0,), (1,), (2,), (3,)}
    child = whole.slice([0] * 4, [MIN_BATCH - 1] * 4)
    assert [set(r.tolist()) for r in waterfill_ranks(child)] == [{0}, {1}, {2}, {3}]


def test_dynamic_ranks_decide_one_by_one() -> None:
    assert dynamic_plan(MIN_BATCH - 1, [10, 0], [63, 64], 2) is None
    plan = dynamic_plan(MIN_BATCH, [200, 60], [63, 64], 2)
    assert plan == Plan((263, 124), 259, False)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_waterfill_levels_the_received_copies(mode: str) -> None:
    rng = np.random.default_rng(2)
    hot = np.minimum(rng.integers(0, 96, (512, 4)), 63)
    routing = Routing(tuple(np.roll(hot, r, axis=0).astype(np.int32) for r in range(8)), 64, 8)
    home = routing.with_shared_slot()
    filled = routing.with_shared_slot(
        waterfill_ranks(routing, "static" if mode == "static" else "dynamic")
    )
    assert filled.imbalance() < home.imbalance()
    assert filled.rank_copies().sum() == home.rank_copies().sum()


@pytest.mark.parametrize("ep_size", [0, 3, 12, 64])
def test_rank_counts_that_the_kernel_cannot_take_are_refused(ep_size: int) -> None:
    with pytest.raises(InputError, match="power of two up to 32"):
        check_ranks(ep_size)
