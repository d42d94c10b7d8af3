"""Which experts every token goes to, and the loads and traffic that follow.

`route` draws or reads the top-k ids of one MoE layer; `Routing` holds physical expert ids per source
rank and counts messages, tokens and GEMM rows. The ids are the ones that a run on GPUs uses too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from models.deployment import Model
from models.errors import InputError
from models.placement import eplb_placement, replica_table, trivial_placement
from models.routed_ids import read_ids
from models.topk_draw import MAX_EXPERTS, Floats, Ids, draw_topk, power_law_popularity

Counts = npt.NDArray[np.int64]
Distribution = Literal["uniform", "power_law", "histogram", "file"]
# Beyond it one expert holds all tokens that it can; the formula would only overflow.
_ALPHA_LIMIT = 20
_WORD = 64


@dataclass(frozen=True)
class RoutingSpec:
    """How tokens choose experts; the `routing:` part of a scenario.

    `alpha` skews `power_law` (`models.topk_draw.power_law_popularity`). `histogram` holds one
    recorded count per logical expert. `path` names a numpy file of logical ids, integers
    [tokens, k] with -1 for invalid; its rows are dealt to the ranks in order. `grouped` applies the
    model's own group limit; `eplb` places experts by their load, else they stay in order, and
    `redundant_experts` adds replicas either way.
    """

    distribution: Distribution = "uniform"
    alpha: float = 0.0
    seed: int = 0
    redundant_experts: int = 0
    eplb: bool = False
    histogram: tuple[float, ...] = ()
    path: str = ""
    grouped: bool = True


@dataclass(frozen=True, eq=False)
class Routing:
    """Physical expert ids of every token of one layer, by source rank.

    `ids[r]` is int32[T_r, k], -1 for invalid; physical expert `e` is row `e % n` of rank `e // n`,
    with `n = num_physical / ep_size` rows a rank, fused shared slots included.
    """

    ids: tuple[Ids, ...]
    num_physical: int
    ep_size: int

    def __post_init__(self) -> None:
        if len(self.ids) != self.ep_size:
            raise ValueError(f"{len(self.ids)} source ranks for ep_size {self.ep_size}")
        if self.num_physical % self.ep_size:
            raise ValueError(
                f"{self.num_physical} physical experts do not divide over {self.ep_size} ranks"
            )

    @property
    def top_k(self) -> int:
        """Columns of `ids`: routed experts and fused shared slots of a token."""
        return int(self.ids[0].shape[1])

    @property
    def experts_per_rank(self) -> int:
        """Rows of the grouped GEMM on one rank."""
        return self.num_physical // self.ep_size

    @property
    def tokens(self) -> tuple[int, ...]:
        """Rows per source rank, padding included."""
        return tuple(len(rows) for rows in self.ids)

    @cached_property
    def _columns(self) -> npt.NDArray[np.int32]:
        """Ids of all ranks, [k, tokens]: counting works column by column."""
        columns = np.empty((self.top_k, sum(self.tokens)), dtype=np.int32)
        for rows, start in zip(self.ids, self._starts, strict=True):
            columns[:, start : start + len(rows)] = rows.T
        return columns

    @cached_property
    def _starts(self) -> Counts:
        """Index of each source rank's first token among those of all ranks, int64[W]."""
        return np.cumsum([0, *self.tokens[:-1]])

    @cached_property
    def _destinations(self) -> npt.NDArray[np.int16]:
        """Destination rank of every id, [k, tokens]; -1 stays -1."""
        return np.floor_divide(self._columns, self.experts_per_rank).astype(np.int16)

    @cached_property
    def _rank_copies(self) -> Counts:
        size = self.ep_size
        total = np.zeros(size**2, dtype=np.int64)
        rows = np.repeat(np.arange(size, dtype=np.int32) * size, self.tokens)
        for column in self._destinations:
            valid = column >= 0
            keys = rows + column
            total += np.bincount(keys if valid.all() else keys[valid], minlength=size**2)
        return _frozen(total.reshape(size, size))

    @cached_property
    def _distinct_tokens(self) -> Counts:
        return _frozen(self._distinct(self._destinations, self.ep_size))

    @cached_property
    def _node_tokens(self) -> dict[int, Counts]:
        """What `node_tokens` has counted, by GPUs per node."""
        return {}

    @cached_property
    def _slices(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], Routing]:
        """What `slice` has made, by starts and stops."""
        return {}

    @cached_property
    def _expert_tokens(self) -> Counts:
        total = np.zeros(self.num_physical, dtype=np.int64)
        for column in self._columns:
            total += np.bincount(column[column >= 0], minlength=self.num_physical)
        return _frozen(total)

    def rank_copies(self) -> Counts:
        """(token, expert) pairs from source to destination, int64[W, W]: low-latency messages."""
        return self._rank_copies

    def distinct_tokens(self) -> Counts:
        """Tokens of a source with at least one expert on a destination, int64[W, W]: what normal
        mode sends, once per rank."""
        return self._distinct_tokens

    def node_tokens(self, gpus_per_node: int) -> Counts:
        """Tokens of a source with at least one expert on a node, int64[W, nodes]: what normal mode
        sends across nodes, once per node."""
        counts = self._node_tokens.get(gpus_per_node)
        if counts is None:
            places = np.floor_divide(self._destinations, gpus_per_node)
            counts = _frozen(self._distinct(places, -(-self.ep_size // gpus_per_node)))
            self._node_tokens[gpus_per_node] = counts
        return counts

    def _distinct(self, places: npt.NDArray[np.int16], size: int) -> Counts:
        """Tokens by source and place, int64[W, size], each once however many of its ids lie there. A
        token's places are the bits of a word, and a shift by more than a word leaves none."""
        total = np.zeros((self.ep_size, size), dtype=np.int64)
        sources = np.flatnonzero(self.tokens)  # `reduceat` knows no empty part
        if not len(sources):
            return total
        for low in range(0, size, _WORD):
            word = np.zeros(places.shape[1], dtype=np.uint64)
            for column in places:
                word |= np.left_shift(np.uint64(1), (column - low).astype(np.uint64))
            for place in range(low, min(low + _WORD, size)):
                met = (word >> np.uint64(place - low)) & np.uint64(1)
                total[sources, place] = np.add.reduceat(met, self._starts[sources])
        return total

    def expert_tokens(self) -> Counts:
        """Tokens of every physical expert, int64[num_physical]."""
        return self._expert_tokens

    def local_expert_tokens(self) -> Counts:
        """Tokens of every row of every rank's grouped GEMM, int64[W, n]."""
        return self.expert_tokens().reshape(self.ep_size, self.experts_per_rank)

    def imbalance(self) -> float:
        """Copies that the busiest rank receives over the mean of all ranks (1 when there are none)."""
        received = self.rank_copies().sum(axis=0)
        mean = float(received.mean())
        return float(received.max()) / mean if mean else 1.0

    def slice(self, starts: Sequence[int], stops: Sequence[int]) -> Routing:
        """The routing of a child batch: rows `starts[r]:stops[r]` of every rank. The same rows are the
        same object, so that what was counted of them stays known."""
        key = tuple(starts), tuple(stops)
        child = self._slices.get(key)
        if child is None:
            ids = tuple(rows[a:b] for rows, a, b in zip(self.ids, starts, stops, strict=True))
            child = self._slices[key] = Routing(ids, self.num_physical, self.ep_size)
        return child

    def with_shared_slot(self, ranks: Sequence[npt.NDArray[np.integer]] | None = None) -> Routing:
        """The routing with one fused shared slot at the end of every rank's rows.

        `ranks[r][i]` is the rank that computes the shared expert of token `i` of rank `r` (Waterfill);
        by default its own rank, whose copy is loopback. A row without a valid id gets no slot.
        """
        n = self.experts_per_rank
        widened = []
        for source, rows in enumerate(self.ids):
            home = np.full(len(rows), source) if ranks is None else np.asarray(ranks[source])
            shared = np.where((rows >= 0).any(axis=1), home * (n + 1) + n, -1)
            routed = np.where(rows >= 0, rows + rows // n, -1)
            widened.append(np.column_stack([routed, shared]).astype(np.int32))
        return Routing(tuple(widened), self.num_physical + self.ep_size, self.ep_size)


def _frozen(counts: Counts) -> Counts:
    """Counts are computed once and shared, so nobody may write to them."""
    counts.flags.writeable = False
    return counts


def route(spec: RoutingSpec, tokens_per_rank: Sequence[int], model: Model) -> Routing:
    """The routing of one layer for `tokens_per_rank` tokens on each rank; one rank per entry.

    The same spec, tokens and model give the same ids. InputError names the key when the histogram
    or the file does not fit the model, or when the experts do not divide over the ranks.
    """
    ep_size, num_experts = len(tokens_per_rank), model.n_routed_experts
    num_physical = num_experts + spec.redundant_experts
    if num_experts > MAX_EXPERTS:
        raise InputError("routing", "n_routed_experts", num_experts, f"at most {MAX_EXPERTS}")
    if num_physical % ep_size:
        raise InputError(
            "routing",
            "redundant_experts",
            spec.redundant_experts,
            f"a number that makes {num_experts} experts and these divide over {ep_size} ranks",
        )
    logical, popularity = _logical_ids(spec, sum(tokens_per_rank), model)
    if spec.eplb:
        placement = eplb_placement(popularity, spec.redundant_experts, ep_size)
    else:
        placement = trivial_placement(num_experts, spec.redundant_experts)
    table = replica_table(placement, num_experts, ep_size)
    bounds = np.cumsum([0, *tokens_per_rank])
    ids = tuple(_physical(table[r], logical[bounds[r] : bounds[r + 1]]) for r in range(ep_size))
    return Routing(ids, num_physical, ep_size)


def _physical(table: Ids, logical: Ids) -> Ids:
    valid = logical >= 0
    ids = table[logical]
    return ids if valid.all() else np.where(valid, ids, np.int32(-1))


def _logical_ids(spec: RoutingSpec, num_tokens: int, model: Model) -> tuple[Ids, Floats]:
    """Logical ids [num_tokens, k] and the expert popularity that a placement may rely on."""
    if spec.distribution == "file":
        ids = read_ids(spec.path, num_tokens, model)
        counts = np.bincount(ids[ids >= 0], minlength=model.n_routed_experts)
        return ids, counts.astype(np.float64)
    rng = np.random.default_rng(spec.seed)
    popularity = _popularity(spec, num_tokens, model, rng)
    limited = spec.grouped and model.n_group > 1
    groups = (model.n_group, model.topk_group) if limited else (1, 1)
    try:
        ids = draw_topk(
            popularity, num_tokens, model.top_k, rng, n_group=groups[0], topk_group=groups[1]
        )
    except ValueError as error:
        if spec.distribution != "histogram":
            raise
        raise InputError("routing", "histogram", spec.histogram, str(error)) from error
    return ids, popularity


def _popularity(
    spec: RoutingSpec, num_tokens: int, model: Model, rng: np.random.Generator
) -> Floats:
    num_experts = model.n_routed_experts
    if spec.distribution == "power_law":
        if not 0 <= spec.alpha <= _ALPHA_LIMIT:
            raise InputError("routing", "alpha", spec.alpha, f"0 to {_ALPHA_LIMIT}")
        return power_law_popularity(num_experts, spec.alpha, num_tokens, rng)
    if spec.distribution == "histogram":
        if len(spec.histogram) != num_experts:
            raise InputError(
                "routing", "histogram", spec.histogram, f"{num_experts} counts, one per expert"
            )
        counts = np.asarray(spec.histogram, dtype=np.float64)
        if not np.isfinite(counts).all() or counts.min() < 0:
            raise InputError("routing", "histogram", spec.histogram, "finite counts from 0")
        # By a power of two, which is exact: sums of counts then stay clear of overflow.
        exponent = int(np.frexp(counts.max())[1])
        return np.asarray(np.ldexp(counts, -exponent), dtype=np.float64)
    return np.full(num_experts, 1.0 / num_experts)
