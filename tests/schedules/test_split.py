"""What a split must keep, whatever the batch; the exact cuts are in the golden data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.deployment import Batch
from models.routing import Routing
from models.sglang_rules import Refused
from schedules.split import (
    child_lens,
    dealt,
    non_padded,
    split_batch,
    split_decode,
    split_extend,
    split_graph_replay,
    split_mode,
    split_routing,
)

LENS = st.lists(st.integers(0, 4096), min_size=1, max_size=12)
THRESHOLD = st.sampled_from([0.0, 0.1, 0.3, 0.48, 0.5])


@given(LENS, THRESHOLD)
def test_no_token_is_lost_and_none_is_moved(lens: list[int], threshold: float) -> None:
    cut = split_extend(lens, threshold)
    left, right = child_lens(lens, cut)
    assert sum(left) == cut.token_index
    if cut.two_chunk:
        assert left[-1] + right[0] == lens[cut.seq_index]
        assert [*left[:-1], lens[cut.seq_index], *right[1:]] == lens
    else:
        assert [*left, *right] == lens


@given(LENS, THRESHOLD)
def test_inside_a_sequence_the_children_differ_by_one_token_at_most(
    lens: list[int], threshold: float
) -> None:
    cut = split_extend(lens, threshold)
    if cut.two_chunk:
        left, right = child_lens(lens, cut)
        assert 0 <= sum(right) - sum(left) <= 1


@given(LENS)
def test_threshold_zero_never_cuts_a_sequence(lens: list[int]) -> None:
    assert not split_extend(lens, 0.0).two_chunk


@given(LENS, st.floats(0.01, 0.5))
def test_an_uneven_cut_is_kept_only_for_want_of_tokens(lens: list[int], threshold: float) -> None:
    cut = split_extend(lens, threshold)
    total = sum(lens)
    if not cut.two_chunk and min(cut.token_index, total - cut.token_index) < total * threshold:
        # One sequence more than tokens in child A would be the alternative.
        inside = next((i for i in range(len(lens)) if sum(lens[: i + 1]) > total // 2), None)
        assert inside is None or inside + 1 > total // 2


@pytest.mark.parametrize("threshold", [-0.1, 0.51, float("nan")])
def test_threshold_out_of_range(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in 0 to 0\.5"):
        split_extend([4, 4], threshold)


def test_child_b_sees_the_piece_of_a_as_cached() -> None:
    batch = Batch("prefill", ((100, 900), (512, 512)), ((7, 9), (0, 5)))
    a, b, cuts = split_batch(batch)
    # Rank 0 is cut inside its second sequence at half of 1000 tokens, rank 1 between sequences.
    assert a.new_tokens == ((100, 400), (512,))
    assert b.new_tokens == ((500,), (512,))
    assert a.prefix_tokens == ((7, 9), (0,))
    assert b.prefix_tokens == ((9 + 400,), (5,))
    assert [cut.two_chunk for cut in cuts] == [True, False]


def test_decode_cuts_by_sequences_and_keeps_draft_tokens() -> None:
    batch = Batch("decode", ((4,) * 5, (4,) * 2), ((10,) * 5, (20,) * 2))
    a, b, cuts = split_batch(batch)
    assert a.tokens == (8, 4)
    assert b.tokens == (12, 4)
    assert [cut.token_index for cut in cuts] == [8, 4]
    assert split_decode(20, 4).token_index == 8


def test_one_sequence_leaves_child_a_empty() -> None:
    a, b, _ = split_batch(Batch("decode", ((1,),), ((64,),)))
    assert a.tokens == (0,)
    assert b.prefix_tokens == ((64,),)


def test_an_attention_group_is_cut_once_and_padded_to_its_ranks() -> None:
    """Two ranks of five sequences share attention. The group's ten are cut at five; five rows pad to six,
    three a rank. Cut rank by rank, child A would have four."""
    batch = Batch("decode", ((1,) * 5,) * 2, ((10, 11, 12, 13, 14), (20, 21, 22, 23, 24)))
    a, b, cuts = split_batch(batch, attention_tp=2)
    assert a.prefix_tokens == ((10, 11, 12, 13, 14), ())
    assert b.prefix_tokens == ((20, 21, 22, 23, 24), ())
    assert a.tokens == b.tokens == (3, 3)
    assert [cut.token_index for cut in cuts] == [5, 5]
    ids = (
        np.arange(10, dtype=np.int32).reshape(5, 2),
        np.arange(10, 20, dtype=np.int32).reshape(5, 2),
    )
    left, right = split_routing(Routing(ids, 20, 2), cuts, 2)
    assert [rows.tolist() for rows in left.ids] == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [8, 9], [-1, -1]],
    ]
    assert [rows.tolist() for rows in right.ids] == [
        [[10, 11], [12, 13], [14, 15]],
        [[16, 17], [18, 19], [-1, -1]],
    ]


def test_a_group_of_prompts_is_cut_inside_the_longer_one() -> None:
    """8 + 5 tokens: the cut between them (8 against 5) is too uneven, so A takes 6 of the 8, three rows a
    rank; B has 2 + 5 and one row of padding, four a rank."""
    batch = Batch("prefill", ((8,), (5,)), ((1,), (2,)))
    a, b, cuts = split_batch(batch, attention_tp=2)
    assert (a.new_tokens, a.tokens) == (((6,), ()), (3, 3))
    assert (b.new_tokens, b.tokens) == (((2, 5), ()), (4, 4))
    assert b.prefix_tokens == ((1 + 6, 2), ())
    assert all(cut.two_chunk for cut in cuts)


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=4, max_size=4),
    st.sampled_from([1, 2, 4]),
)
def test_children_of_groups_lose_no_token(lens: list[list[int]], tp: int) -> None:
    new = tuple(map(tuple, lens))
    batch = Batch("prefill", new, tuple((0,) * len(rank) for rank in new))
    *children, cuts = split_batch(batch, attention_tp=tp)
    for first in range(0, 4, tp):
        group = range(first, first + tp)
        real = [sum(sum(child.new_tokens[rank]) for rank in group) for child in children]
        shares = [[child.tokens[rank] for rank in group] for child in children]
        assert sum(real) == sum(batch.tokens[rank] for rank in group)
        for tokens, rows in zip(real, shares, strict=True):
            assert len(set(rows)) == 1
            assert 0 <= sum(rows) - tokens < tp
    ids = tuple(np.zeros((tokens, 1), np.int32) for tokens in batch.tokens)
    routed = split_routing(Routing(ids, 4, 4), cuts, tp)
    assert [part.tokens for part in routed] == [child.tokens for child in children]
    assert sum(int((rows >= 0).sum()) for part in routed for rows in part.ids) == sum(batch.tokens)


def test_a_whole_batch_is_dealt_evenly_to_its_group() -> None:
    """Ranks of 5 and 2 sequences pad to 8 rows, 4 a rank; the second group needs nothing."""
    batch = Batch("decode", ((1,) * 5, (1,) * 2, (1,), (1,)), ((9,) * 5, (9,) * 2, (9,), (9,)))
    ids = np.split(np.arange(18, dtype=np.int32).reshape(9, 2), [5, 7, 8])
    whole, routing = dealt(batch, Routing(tuple(ids), 20, 4), 2)
    assert whole.tokens == routing.tokens == (4, 4, 1, 1)
    assert (whole.new_tokens, whole.prefix_tokens) == (batch.new_tokens, batch.prefix_tokens)
    assert routing.ids[0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert routing.ids[1].tolist() == [[8, 9], [10, 11], [12, 13], [-1, -1]]
    assert [rows.tolist() for rows in routing.ids[2:]] == [[[14, 15]], [[16, 17]]]


def test_equal_ranks_hold_what_they_bring() -> None:
    batch = Batch("decode", ((1,) * 3,) * 2, ((9,) * 3,) * 2)
    routing = Routing((np.zeros((3, 1), np.int32),) * 2, 4, 2)
    assert dealt(batch, routing, 2) == (batch, routing)
    uneven = Batch("decode", ((1,) * 3, (1,)), ((9,) * 3, (9,)))
    alone = Routing((np.zeros((3, 1), np.int32), np.zeros((1, 1), np.int32)), 4, 2)
    assert dealt(uneven, alone, 1) == (uneven, alone)


def test_modes_without_a_split_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        split_mode("SPLIT_PREFILL", lens=[4, 4])
    assert caught.value.refusal.rule == "tbo.split_mode"
    with pytest.raises(ValueError, match="has no graph"):
        split_graph_replay("IDLE", 16)


def test_padding_falls_on_child_b() -> None:
    assert non_padded(128, 100) == (100, 0)
    assert non_padded(128, 200) == (128, 72)
