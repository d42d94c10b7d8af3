"""What one rank holds while the layers of a program run: weights, tokens of each child, KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from executor.plain_layer import RankState
from executor.weights import ExpertWeights, LayerWeights
from models.deployment import Batch, Fusion, Model
from models.fused_routing import fused_routing
from models.routing import Routing
from schedules.split import Cut


@dataclass(frozen=True)
class Piece:
    """Rows `row` to `row + length` of a (child) batch: tokens of `sequence` from `start` on."""

    sequence: int
    start: int
    length: int
    row: int

    @property
    def rows(self) -> slice:
        """Its rows in the batch."""
        return slice(self.row, self.row + self.length)

    @property
    def stop(self) -> int:
        """Position after its last token."""
        return self.start + self.length


@dataclass(frozen=True)
class Part:
    """A whole batch or a child of it on one rank: its pieces of sequences and its tokens' ids."""

    pieces: tuple[Piece, ...]
    ids: torch.Tensor

    @property
    def positions(self) -> torch.Tensor:
        """Position of every row in its sequence, [T]."""
        ranges = [torch.arange(piece.start, piece.stop) for piece in self.pieces]
        return torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.long)


@dataclass
class Cache:
    """Latents [n, kv_lora] and rotated keys [n, rope] of one sequence; NaN where nothing is yet."""

    latent: torch.Tensor
    rope: torch.Tensor

    def store(self, piece: Piece, latent: torch.Tensor, rope: torch.Tensor) -> None:
        """Fill the positions of a piece from its rows."""
        self.latent[piece.start : piece.stop] = latent[piece.rows]
        self.rope[piece.start : piece.stop] = rope[piece.rows]


@dataclass(frozen=True)
class Attended:
    """One piece with the cache that it attends to, up to its own last token."""

    piece: Piece
    cache: Cache

    @property
    def rows(self) -> slice:
        """Its rows in the batch."""
        return self.piece.rows

    @property
    def start(self) -> int:
        """Tokens before it."""
        return self.piece.start

    @property
    def stop(self) -> int:
        """Tokens before it and its own."""
        return self.piece.stop

    @property
    def positions(self) -> torch.Tensor:
        """Positions of its tokens."""
        return torch.arange(self.start, self.stop)


@dataclass
class LayerState:
    """One rank's state. `parts` are keyed by child, "" for the whole batch; `experts` are built once
    and kept. `num_physical` expert slots are spread evenly over `ranks` ranks; with `fused` the last
    one of every rank is the shared expert."""

    model: Model
    weights: Sequence[LayerWeights]
    parts: Mapping[str, Part]
    rank: int
    ranks: int
    num_physical: int
    caches: list[list[Cache]]
    fused: bool = False
    experts: dict[tuple[int, int], ExpertWeights] = field(default_factory=dict)

    @property
    def experts_per_rank(self) -> int:
        """Rows of the grouped GEMM."""
        return self.num_physical // self.ranks

    def part(self, child: str) -> Part:
        """The child's tokens."""
        return self.parts[child]

    def cache(self, layer: int, sequence: int) -> Cache:
        """KV cache of one sequence."""
        return self.caches[layer][sequence]

    def attended(self, layer: int, child: str) -> Iterator[Attended]:
        """Every piece of the child with its sequence's cache."""
        for piece in self.part(child).pieces:
            yield Attended(piece, self.cache(layer, piece.sequence))

    def local_expert(self, layer: int, row: int) -> ExpertWeights:
        """Weights of one row of this rank's grouped GEMM."""
        n = self.experts_per_rank - self.fused
        if row == n:
            shared = self.weights[layer].shared
            assert shared is not None, "a fused slot without a shared expert"
            return shared
        key = (layer, self.rank * n + row)
        if key not in self.experts:
            self.experts[key] = self.weights[layer].expert(key[1])
        return self.experts[key]

    def routed_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [T, k] of physical routed experts, without the column of a fused slot."""
        if not self.fused:
            return ids
        routed = ids[:, :-1]
        return torch.where(routed < 0, routed, routed - routed // self.experts_per_rank)


def layer_state(
    model: Model,
    weights: Sequence[LayerWeights],
    batch: Batch,
    routing: Routing,
    rank: int,
    cut: Cut,
    state: RankState,
    fusion: Fusion | None = None,
) -> LayerState:
    """The state of `rank` before the first layer, with the whole batch and both children of `cut`.
    `routing` holds routed experts only; `fusion` adds the shared slot."""
    fusion = fusion or Fusion()
    parts = parts_of(batch, routing, rank, cut, fusion)
    whole = parts[""].pieces
    caches = [
        [_cache(piece, *old) for piece, old in zip(whole, layer, strict=True)]
        for layer in state.prefix
    ]
    slots = routing.num_physical + routing.ep_size * fusion.slots
    return LayerState(
        model, weights, parts, rank, routing.ep_size, slots, caches, fused=fusion.slots > 0
    )


def parts_of(
    batch: Batch, routing: Routing, rank: int, cut: Cut, fusion: Fusion | None = None
) -> dict[str, Part]:
    """The whole batch of a rank ("") and both children of its cut, each with the ids that it
    dispatches: Waterfill chooses the ranks of a child's shared copies by the child's own rows."""
    whole = tuple(_pieces(batch.new_tokens[rank], batch.prefix_tokens[rank]))
    tokens, at = len(routing.ids[rank]), cut.token_index

    def ids(start: int, stop: int) -> torch.Tensor:
        starts, stops = [0] * routing.ep_size, list(routing.tokens)
        starts[rank], stops[rank] = start, stop
        child = fused_routing(routing.slice(starts, stops), fusion or Fusion())
        return torch.as_tensor(child.ids[rank])

    return {
        "": Part(whole, ids(0, tokens)),
        "a": Part(tuple(_clipped(whole, 0, at)), ids(0, at)),
        "b": Part(tuple(_clipped(whole, at, tokens)), ids(at, tokens)),
    }


def _pieces(new_tokens: Sequence[int], prefix: Sequence[int]) -> Iterator[Piece]:
    row = 0
    for sequence, (length, start) in enumerate(zip(new_tokens, prefix, strict=True)):
        yield Piece(sequence, start, length, row)
        row += length


def _clipped(pieces: Sequence[Piece], first: int, last: int) -> Iterator[Piece]:
    """The pieces between two rows of the whole batch, with rows counted from `first`."""
    for piece in pieces:
        low, high = max(piece.row, first), min(piece.row + piece.length, last)
        if low < high:
            skipped = low - piece.row
            yield Piece(piece.sequence, piece.start + skipped, high - low, low - first)


def _cache(piece: Piece, latent: torch.Tensor, rope: torch.Tensor) -> Cache:
    def grown(old: torch.Tensor) -> torch.Tensor:
        new = torch.full((piece.length, old.shape[1]), float("nan"), dtype=old.dtype)
        return torch.cat((old, new))

    return Cache(grown(latent), grown(rope))
