"""What the production kernels of one rank share: libraries, weights, tokens of each child, caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from executor.layer_state import Part, parts_of
from executor.libraries import DeepEp, DeepGemm
from executor.production_weights import ProductionWeights
from models.deployment import Batch, Fusion, Model
from models.routing import Routing
from schedules.program import Op
from schedules.split import Cut

CACHE_PAD = 64


@dataclass(frozen=True)
class Tokens:
    """One (child) batch on the GPU: positions [T], ids int64 [T, k] that are dispatched, the sequence
    and the length (prefix and itself) of each token, and the pieces of sequences. `routed` [T, top_k]
    are the routed experts among the ids, `shared` float32 [T, k - top_k] the weights of a fused shared
    one: 1, since the routed weights carry the scaling factor already."""

    part: Part
    positions: torch.Tensor
    ids: torch.Tensor
    sequence: torch.Tensor
    lengths: torch.Tensor
    routed: torch.Tensor
    shared: torch.Tensor


@dataclass
class ProductionState:
    """One rank's state. All layers use the same weights: experts do not fit L2, so nothing is reused
    from cache that would not be otherwise. `cache` is the latent KV cache of each layer,
    [sequences, padded length, kv_lora + rope]. `num_physical` counts every row of the grouped GEMMs;
    a fused shared expert is the last one of every rank. `handles` are dispatches' by layer and child;
    `kept` is what launchers prepare once for all runs, each under a name of its own."""

    model: Model
    weights: ProductionWeights
    gemm: DeepGemm
    exchange: DeepEp
    tokens: Mapping[str, Tokens]
    cache: list[torch.Tensor]
    rank: int
    ranks: int
    num_physical: int
    handles: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def of(self, op: Op) -> Tokens:
        """The tokens of the op's child."""
        return self.tokens[op.child]

    def expected_rows(self, op: Op) -> int:
        """Rows per expert that the masked GEMM is told to expect, as SGLang tells it."""
        tokens, k = self.of(op).ids.shape
        return (tokens * self.ranks * k + self.num_physical) // self.num_physical


def tokens_by_child(
    batch: Batch,
    routing: Routing,
    rank: int,
    cut: Cut,
    device: torch.device,
    fusion: Fusion | None = None,
) -> dict[str, Tokens]:
    """Tokens of the whole batch ("") and of both children on the GPU."""
    parts = parts_of(batch, routing, rank, cut, fusion)
    rows = routing.experts_per_rank + fusion.slots if fusion and fusion.slots else 0
    return {child: _tokens(part, device, routing.top_k, rows) for child, part in parts.items()}


def _tokens(part: Part, device: torch.device, top_k: int, fused_rows: int) -> Tokens:
    positions = part.positions.to(device)
    ids = part.ids.to(device=device, dtype=torch.int64).contiguous()
    routed, shared = ids[:, :top_k], ids[:, top_k:]
    if fused_rows:
        routed = torch.where(routed < 0, routed, routed - routed // fused_rows)
    repeated = [torch.full((piece.length,), piece.sequence) for piece in part.pieces]
    sequence = torch.cat(repeated) if repeated else torch.zeros(0, dtype=torch.long)
    return Tokens(
        part,
        positions,
        ids,
        sequence.to(device),
        (positions + 1).to(torch.int32),
        routed.contiguous(),
        (shared >= 0).float(),
    )


def empty_caches(
    model: Model, batch: Batch, rank: int, layers: int, seed: int, device: torch.device
) -> list[torch.Tensor]:
    """Caches with random prefixes; what lies behind a sequence's tokens is 0."""
    att = model.attention
    pairs = list(zip(batch.new_tokens[rank], batch.prefix_tokens[rank], strict=True))
    longest = max((new + old for new, old in pairs), default=0)
    length = -(-longest // CACHE_PAD) * CACHE_PAD
    width = att.kv_lora_rank + att.qk_rope_head_dim
    generator = torch.Generator(device=device).manual_seed(seed * 31 + rank)
    caches = []
    for _ in range(layers):
        cache = torch.zeros(len(pairs), length, width, dtype=torch.bfloat16, device=device)
        for row, (_, old) in enumerate(pairs):
            cache[row, :old].normal_(generator=generator)
        caches.append(cache)
    return caches
