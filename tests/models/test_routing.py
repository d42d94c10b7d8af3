"""Routing: distributions, limits, placement, and counts against plain loops."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from models.deployment import Attention, Model
from models.errors import InputError
from models.placement import eplb_placement, replica_table, trivial_placement
from models.routed_ids import read_ids
from models.routing import Routing, RoutingSpec, route
from models.topk_draw import draw_topk, power_law_popularity


def moe(n_routed: int = 256, top_k: int = 8, n_group: int = 8, topk_group: int = 4) -> Model:
    """A DeepSeek-V3-shaped model."""
    return Model(
        name="m",
        architecture="DeepseekV3ForCausalLM",
        model_type="deepseek_v3",
        hidden_size=7168,
        num_layers=61,
        first_k_dense=3,
        intermediate_size=18432,
        moe_intermediate_size=2048,
        n_routed_experts=n_routed,
        n_shared_experts=1,
        top_k=top_k,
        n_group=n_group,
        topk_group=topk_group,
        routed_scaling_factor=2.5,
        scoring="sigmoid",
        norm_topk_prob=True,
        vocab_size=129280,
        attention=Attention("mla", 128),
    )


SPECS = [
    RoutingSpec(),
    RoutingSpec("power_law", alpha=0.8, seed=3),
    RoutingSpec("power_law", alpha=1.2, seed=3, redundant_experts=32, eplb=True),
    RoutingSpec("histogram", histogram=tuple(range(1, 257)), redundant_experts=16),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.distribution}-{s.alpha}")
def test_rows_hold_distinct_valid_experts_within_the_group_limit(spec: RoutingSpec) -> None:
    routing = route(spec, [300, 0, 17, 300, 5, 5, 5, 300], moe())
    placement = trivial_placement(256, spec.redundant_experts) if not spec.eplb else None
    for rows in routing.ids:
        assert rows.dtype == np.int32 and rows.shape[1] == 8
        assert ((rows >= 0) & (rows < routing.num_physical)).all()
        if placement is not None:
            logical = placement[rows]
            for row in logical:
                assert len(set(row.tolist())) == 8
                assert len({e // 32 for e in row.tolist()}) <= 4


def test_same_seed_same_ids_and_another_seed_others() -> None:
    spec = RoutingSpec("power_law", alpha=0.8, seed=1)
    first, again = (route(spec, [64] * 4, moe()) for _ in range(2))
    other = route(RoutingSpec("power_law", alpha=0.8, seed=2), [64] * 4, moe())
    assert all((a == b).all() for a, b in zip(first.ids, again.ids, strict=True))
    assert any((a != b).any() for a, b in zip(first.ids, other.ids, strict=True))


@pytest.mark.parametrize("ep_size", [4, 128], ids=["one word of bits", "two words"])
def test_counts_equal_plain_loops(ep_size: int) -> None:
    tokens = [40, 7, 0, 23] * (ep_size // 4)
    routing = route(RoutingSpec("power_law", alpha=1.2), tokens, moe())
    ids = [rows.copy() for rows in routing.ids]
    ids[0][5:9] = -1
    ids[3][::4, 2] = -1
    routing = Routing(tuple(ids), 256, ep_size)
    slots, in_node = 256 // ep_size, 512 // ep_size
    copies = np.zeros((ep_size, ep_size), dtype=int)
    distinct = np.zeros((ep_size, ep_size), dtype=int)
    nodes = np.zeros((ep_size, ep_size // 2), dtype=int)
    experts = np.zeros(256, dtype=int)
    for source, rows in enumerate(ids):
        for row in rows.tolist():
            valid = [e for e in row if e >= 0]
            for e in valid:
                copies[source, e // slots] += 1
                experts[e] += 1
            for rank in {e // slots for e in valid}:
                distinct[source, rank] += 1
            for node in {e // in_node for e in valid}:
                nodes[source, node] += 1
    assert (routing.rank_copies() == copies).all()
    assert (routing.distinct_tokens() == distinct).all()
    assert (routing.node_tokens(2) == nodes).all()
    assert (routing.expert_tokens() == experts).all()


def test_distinct_ranks_per_token_follow_the_group_limit() -> None:
    """Without a limit 8 draws of 256 meet 8 (1 - C(224,8)/C(256,8)) = 5.30 of 8 ranks; with 4 of 8
    groups, one per rank, never more than 4."""
    free = route(RoutingSpec(grouped=False), [4096] * 8, moe())
    limited = route(RoutingSpec(), [4096] * 8, moe())
    tokens = 8 * 4096
    assert free.distinct_tokens().sum() / tokens == pytest.approx(5.30, abs=0.02)
    assert 3.4 < limited.distinct_tokens().sum() / tokens <= 4


@pytest.mark.parametrize(("ep_size", "low", "high"), [(8, 1.4, 1.9), (32, 1.9, 4.5)])
def test_power_law_imbalance_matches_the_public_tables(
    ep_size: int, low: float, high: float
) -> None:
    """Busiest rank over uniform at alpha 0.8 and 1.2 in the prefill rows of the public tables."""
    for alpha, published in ((0.8, low), (1.2, high)):
        ours = np.mean(
            [
                route(
                    RoutingSpec("power_law", alpha, seed, grouped=False), [1024] * ep_size, moe()
                ).imbalance()
                for seed in range(12)
            ]
        )
        assert ours == pytest.approx(published, rel=0.2)


def test_the_skew_grows_with_alpha_and_falls_again_above_two() -> None:
    def top(alpha: float) -> float:
        drawn = [
            power_law_popularity(256, alpha, 18_432, np.random.default_rng(seed)).max() * 256
            for seed in range(40)
        ]
        return float(np.median(drawn))

    assert top(0.6) < top(1.2) < top(1.5)
    assert top(1.8) > top(2.5) > top(4)


def test_alpha_zero_is_uniform() -> None:
    popularity = power_law_popularity(16, 0.0, 1000, np.random.default_rng(0))
    assert (popularity == 1 / 16).all()


def test_draws_follow_popularity() -> None:
    popularity = np.array([0.0, 0.5, 0.25, 0.0, 0.25, 0.0])
    ids = draw_topk(popularity, 40_000, 1, np.random.default_rng(5))
    shares = np.bincount(ids[:, 0], minlength=6) / 40_000
    assert shares == pytest.approx(popularity, abs=0.01)
    assert shares[popularity == 0].sum() == 0


def test_almost_all_weight_on_one_expert_still_draws_distinct_experts() -> None:
    popularity = np.array([1.0, 1e-12, 1e-12, 1e-12])
    ids = draw_topk(popularity, 500, 3, np.random.default_rng(0))
    assert all(len(set(row)) == 3 for row in ids.tolist())


def test_eplb_levels_a_skewed_load() -> None:
    before = route(RoutingSpec("power_law", 1.2, 0), [512] * 16, moe())
    after = route(
        RoutingSpec("power_law", 1.2, 0, redundant_experts=32, eplb=True), [512] * 16, moe()
    )
    assert before.imbalance() > 1.5
    assert after.imbalance() < 1.15


def test_eplb_places_every_expert_and_fills_ranks_evenly() -> None:
    popularity = power_law_popularity(64, 1.2, 10_000, np.random.default_rng(1))
    placement = eplb_placement(popularity, 8, 8)
    assert len(placement) == 72 and set(placement.tolist()) == set(range(64))
    hottest = int(np.argmax(popularity))
    assert (placement == hottest).sum() > 1
    assert all(len(set(rank)) == 9 for rank in placement.reshape(8, 9).tolist())


def test_a_rank_holds_an_expert_twice_only_where_it_must() -> None:
    popularity = np.array([10.0, 1.0, 1.0, 1.0])
    placement = eplb_placement(popularity, 2, 3).reshape(3, 2)
    assert all(0 in rank for rank in placement.tolist())
    assert sorted(placement.ravel().tolist()) == [0, 0, 0, 1, 2, 3]
    alone = eplb_placement(np.array([10.0, 1.0]), 2, 1)
    assert alone.tolist() == [0, 0, 0, 1]


def test_a_batch_without_tokens_routes_nothing() -> None:
    routing = route(RoutingSpec("power_law", 0.8), [0, 0], moe())
    assert routing.tokens == (0, 0) and routing.top_k == 8
    assert routing.rank_copies().sum() == 0 and routing.imbalance() == 1.0
    assert routing.with_shared_slot().top_k == 9


def test_a_source_prefers_its_own_replica() -> None:
    placement = np.array([0, 1, 2, 0], dtype=np.int32)
    table = replica_table(placement, 3, 2)
    assert table.tolist() == [[0, 1, 2], [3, 1, 2]]


def test_slices_of_a_batch_add_up() -> None:
    whole = route(RoutingSpec("power_law", 0.8), [33] * 4, moe())
    a = whole.slice([0] * 4, [16] * 4)
    b = whole.slice([16] * 4, [33] * 4)
    assert (a.rank_copies() + b.rank_copies() == whole.rank_copies()).all()
    assert a.tokens == (16,) * 4


def test_shared_slot_adds_one_loopback_copy_per_valid_token() -> None:
    plain = route(RoutingSpec("power_law", 0.8), [33] * 4, moe())
    rows = plain.ids[1].copy()
    rows[-3:] = -1
    plain = Routing((plain.ids[0], rows, *plain.ids[2:]), 256, 4)
    fused = plain.with_shared_slot()
    assert fused.num_physical == 260 and fused.experts_per_rank == 65 and fused.top_k == 9
    extra = fused.rank_copies() - plain.rank_copies()
    assert extra.tolist() == np.diag([33, 30, 33, 33]).tolist()
    assert fused.local_expert_tokens()[:, 64].tolist() == [33, 30, 33, 33]
    assert (fused.local_expert_tokens()[:, :64] == plain.local_expert_tokens()).all()


def test_shared_slot_goes_where_it_is_told() -> None:
    plain = route(RoutingSpec(), [4, 4], moe())
    fused = plain.with_shared_slot([np.array([1, 0, 1, 1]), np.array([0, 0, 0, 1])])
    assert fused.local_expert_tokens()[:, 128].tolist() == [4, 4]


def test_recorded_ids_are_dealt_to_ranks_in_order(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(16), (10, 1)), axis=1)[:, :2]
    np.save(tmp_path / "ids.npy", ids)
    spec = RoutingSpec("file", path=str(tmp_path / "ids.npy"))
    routing = route(spec, [3, 5], moe(16, 2, 1, 1))
    assert routing.ids[0].tolist() == ids[:3].tolist()
    assert routing.ids[1].tolist() == ids[3:8].tolist()


def test_what_does_not_fit_is_refused_with_its_key(tmp_path: Path) -> None:
    np.save(tmp_path / "bad.npy", np.full((9, 8), 256))
    cases = [
        (RoutingSpec("histogram", histogram=(1.0,)), "routing: histogram"),
        (RoutingSpec("power_law", alpha=-1), "routing: alpha"),
        (RoutingSpec(redundant_experts=1), "routing: redundant_experts"),
        (RoutingSpec("file", path=str(tmp_path / "none.npy")), "routing.path"),
        (RoutingSpec("file", path=str(tmp_path / "bad.npy")), "ids from -1 to 255"),
        (RoutingSpec("histogram", histogram=(1.0,) * 7 + (0.0,) * 249), "top_k 8"),
        (RoutingSpec("histogram", histogram=(0.0,) * 256), "routing: histogram"),
        (RoutingSpec("histogram", histogram=(-1.0,) + (1.0,) * 255), "routing: histogram"),
        (RoutingSpec("histogram", histogram=(np.nan,) + (1.0,) * 255), "routing: histogram"),
        (RoutingSpec("histogram", histogram=(np.inf,) + (1.0,) * 255), "routing: histogram"),
    ]
    for spec, message in cases:
        with pytest.raises(InputError, match=message):
            route(spec, [1, 1], moe())


@pytest.mark.parametrize("count", [5e-324, 1e-300, 3.0, 1e308])
def test_only_the_ratio_of_counts_matters(count: float) -> None:
    recorded = RoutingSpec("histogram", histogram=(count,) * 256, redundant_experts=16, eplb=True)
    plain = RoutingSpec("histogram", histogram=(1.0,) * 256, redundant_experts=16, eplb=True)
    ours, theirs = (np.concatenate(route(spec, [9] * 8, moe()).ids) for spec in (recorded, plain))
    assert (ours == theirs).all()


def test_popularity_that_sums_past_the_largest_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        draw_topk(np.array([1e308, 1e308, 1.0]), 3, 2, np.random.default_rng(0))


def npy(header: str) -> bytes:
    """A numpy file with this header and 4 KiB of zeros."""
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4096)


def array_header(dtype: str, shape: str) -> str:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n"


BROKEN_FILES = {
    "empty": b"",
    "text": b"3 4 5\n",
    "a broken archive": b"PK\x03\x04 and no more",
    "magic alone": b"\x93NUMPY\x01\x00",
    "an open bracket": npy("{" + "(" * 100),
    "too deep": npy("-" * 9000 + "1"),
    "a header of numbers": npy("{1: 2, 'a': 3}"),
    "sizes past 64 bits": npy(array_header("<i8", f"({10**20}, 8)")),
    "sizes that overflow": npy(array_header("<i8", f"({2**62}, 8)")),
    "true as a size": npy(array_header("<i8", "(True, 8)")),
    "a negative size": npy(array_header("<i8", "(-4, 8)")),
    "objects": npy(array_header("O", "(4, 8)")),
    "numbers with a fraction": npy(array_header("<f8", "(4, 8)")),
    "one row": npy(array_header("<i8", "(8,)")),
    "another k": npy(array_header("<i8", "(4, 7)")),
    "too few rows": npy(array_header("<i8", "(3, 8)")),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_file_without_usable_ids_is_refused_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ids é.npy"
    path.write_bytes(BROKEN_FILES[name])
    with pytest.raises(InputError) as caught:
        read_ids(str(path), 4, moe())
    assert str(caught.value).count("routing.path") == 1 and str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("loop", "pipe", "none", "."):
        with pytest.raises(InputError, match="no regular file"):
            read_ids(str(tmp_path / name), 4, moe())


@pytest.mark.parametrize("value", [2**32 + 3, 256, -2, -(2**63)])
def test_ids_are_checked_before_they_are_narrowed(value: int, tmp_path: Path) -> None:
    ids = np.tile(np.arange(8), (4, 1))
    ids[2, 5] = value
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(InputError, match=rf"{value} is not usable; allowed: ids from -1 to 255"):
        read_ids(str(tmp_path / "ids.npy"), 4, moe())
    assert read_ids(str(tmp_path / "ids.npy"), 2, moe()).tolist() == [list(range(8))] * 2


@pytest.mark.parametrize("dtype", [">i4", "u1", "i2", "<u8"])
def test_any_integer_type_and_order_is_read(dtype: str, tmp_path: Path) -> None:
    ids = np.asfortranarray(np.tile(np.arange(8), (4, 1)).astype(dtype))
    np.save(tmp_path / "ids.npy", ids)
    assert read_ids(str(tmp_path / "ids.npy"), 4, moe()).tolist() == ids.tolist()


def test_a_recording_larger_than_memory_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    path.write_bytes(npy(array_header("<i8", f"({1_562_500_000}, 8)")))
    os.truncate(path, 100 * 10**9 + 4096)
    assert read_ids(str(path), 4, moe()).tolist() == [[0] * 8] * 4
