"""Properties of both slot layouts: ids are a bijection, and one shared copy a token is counted once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.experts import (
    IdRows,
    Platform,
    Slots,
    append_shared,
    empty_width,
    post_process,
    shared_weight,
    slot_layout,
    slots_from_total,
)
from models.router import grouped_topk

layouts = st.sampled_from(["global", "per_rank"])
slots_of_any_size = st.builds(
    Slots, layouts, st.integers(1, 32), st.integers(1, 40), st.integers(0, 2)
)


@given(slots_of_any_size)
@settings(max_examples=200, deadline=None)
def test_ids_are_a_bijection_onto_the_rows_of_all_ranks(slots: Slots) -> None:
    routed = np.arange(slots.routed)
    wide = slots.widen(routed)
    assert (slots.narrow(wide) == routed).all()
    shared = {e for rank in range(slots.ep_size) for e in slots.shared_ids(rank)}
    assert shared.isdisjoint(wide.tolist())
    assert sorted([*shared, *wide.tolist()]) == list(range(slots.total_ids))
    assert (slots.narrow(np.array(sorted(shared), dtype=int)) == -1).all()
    assert slots.widen(np.array([-1])).tolist() == slots.narrow(np.array([-1])).tolist() == [-1]


@given(slots_of_any_size)
@settings(max_examples=100, deadline=None)
def test_every_checkpoint_expert_has_a_row_and_rows_do_not_clash(slots: Slots) -> None:
    experts = np.arange(slots.routed + slots.shared)
    owners = np.zeros(len(experts), dtype=int)
    for rank in range(slots.ep_size):
        rows = slots.local_rows(rank, experts)
        used = rows[rows >= 0]
        assert sorted(used.tolist()) == list(range(slots.rows_per_rank))
        owners += rows >= 0
    assert (owners[: slots.routed] == 1).all()
    assert (owners[slots.routed :] == slots.ep_size).all()


@given(slots_of_any_size)
def test_the_number_of_ids_gives_the_layout_back(slots: Slots) -> None:
    again = slots_from_total(slots.layout, slots.ep_size, slots.total_ids, slots.shared)
    assert again == slots


@pytest.mark.parametrize("layout", ["global", "per_rank"])
def test_shared_weights_over_all_ranks_add_up_to_the_unfused_layer(layout: str) -> None:
    """The unfused layer adds the shared expert once with weight 1, after scaling routed ones by c."""
    c, world = 2.5, 4
    rng = np.random.default_rng(0)
    backend = "deepep" if layout == "per_rank" else "none"
    slots = Slots(slot_layout(backend), world, 8, 1)
    ids = rng.integers(0, slots.routed, (20, 4))
    weights = rng.random((20, 4), dtype=np.float32)
    gate = shared_weight(c, folded=False)
    if layout == "global":
        wide, gates = append_shared(ids, weights, slots, 1, gate)
        out = post_process(wide, gates, slots, 1, shared_gate=gate, scale=1 / world)
        computed_by = world
    else:
        out = post_process(ids, weights, slots, 1, shared_gate=gate)
        computed_by = 1
    is_shared = slots.narrow(out.ids) < 0
    assert (is_shared.sum(axis=1) == 1).all()
    total = (out.weights * is_shared).sum(axis=1) * computed_by * c
    assert total == pytest.approx(np.ones(20), rel=1e-6)
    assert (out.weights[:, :-1] == weights).all()
    assert (out.recorded == ids).all()


@pytest.mark.parametrize("layout", ["global", "per_rank"])
def test_ids_outgrow_a_narrow_type_without_wrapping(layout: str) -> None:
    slots = Slots("per_rank" if layout == "per_rank" else "global", 16, 8, 1)
    ids = np.array([[120, 127]])
    wanted, _ = append_shared(ids, np.ones((1, 2), np.float32), slots, 15, 1.0)
    got, _ = append_shared(ids.astype(np.int8), np.ones((1, 2), np.float32), slots, 15, 1.0)
    assert got.tolist() == wanted.tolist()
    kept = slots.widen(ids.astype(np.int16))
    assert kept.dtype == np.int16


def scalar_rows(
    ids: list[list[int]], slots: Slots, rank: int, valid: int, hip: bool
) -> list[list[int]]:
    """Ids that are dispatched, one by one: the shared slot, then padding from row `valid` on."""
    n, s = slots.per_rank, slots.shared
    private = slots.layout == "per_rank"
    rows = []
    for i, row in enumerate(ids):
        shared = [rank * (n + s) + n + j if private else slots.ep_size * n + j for j in range(s)]
        routed = [e + e // n * s for e in row] if private else list(row)
        if i >= valid and hip:
            # The kernel of the global layout zeroes the shared column as well.
            routed, shared = [0] * len(row), shared if private else [0] * s
        elif i >= valid:
            routed, shared = [-1] * len(row), [-1] * s if private else shared
        rows.append(routed + shared)
    return rows


@given(slots_of_any_size, st.integers(0, 6), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_padding_equals_the_rules_row_by_row(
    slots: Slots, valid: int, hip: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(slots.ep_size))
    routed = rng.integers(0, slots.routed, (int(rng.integers(7)), 3))
    gates = rng.random(routed.shape, dtype=np.float32)
    ids: IdRows = routed
    weights = gates
    if slots.layout == "global":
        ids, weights = append_shared(routed, gates, slots, rank, 0.4)
    platform: Platform = "hip" if hip else "cuda"
    out = post_process(
        ids, weights, slots, rank, shared_gate=0.4, scale=0.5, non_padded=valid, platform=platform
    )
    assert out.ids.tolist() == scalar_rows(routed.tolist(), slots, rank, valid, hip)
    scale = 0.5 if slots.layout == "global" else 1.0
    wanted = np.column_stack([gates, np.full((len(gates), slots.shared), np.float32(0.4) * scale)])
    wanted[valid:] *= 0 if hip else 1
    assert (out.weights == wanted.astype(np.float32)).all()


def test_padding_never_reaches_a_private_slot_on_cuda() -> None:
    slots = Slots("per_rank", 4, 8, 1)
    ids = np.tile(np.arange(4), (6, 1))
    out = post_process(
        ids, np.ones((6, 4), np.float32), slots, 2, shared_gate=0.4, non_padded=4, platform="cuda"
    )
    assert (out.ids[4:] == -1).all() and (out.ids[:4] >= 0).all()


def test_an_empty_batch_is_as_wide_as_the_others() -> None:
    full = append_shared(
        np.zeros((1, 8), dtype=int), np.ones((1, 8), np.float32), Slots("per_rank", 4, 8, 1), 0, 1.0
    )
    assert empty_width(8, 1, "per_rank", waterfill=False) == full[0].shape[1] == 9


def test_router_respects_groups_and_leaves_the_shared_column_out_of_the_sum() -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((50, 32)).astype(np.float32)
    ids, weights = grouped_topk(
        logits,
        4,
        n_group=8,
        topk_group=2,
        renormalise=True,
        factor=2.5,
        folded=False,
        bias=(rng.standard_normal(32) / 10).astype(np.float32),
        shared=1,
    )
    assert all(len(set(row // 4)) <= 2 and len(set(row)) == 4 for row in ids[:, :4])
    assert (ids[:, 4] == 32).all()
    assert weights[:, :4].sum(axis=1) == pytest.approx(np.ones(50), rel=1e-5)
