# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""MLA attention of one query a sequence over cached latents, absorbed form; plain torch beside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from executor.kernels.interpreted import dot


@triton.jit
def _mla_kernel(
    q_latent, q_rope, cache, lengths, out, scale, heads,
    ql_row, ql_head, qr_row, qr_head, cache_row, cache_token,
    LATENT: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One sequence and HEADS heads: softmax over its keys while they stream by."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    wide, narrow = tl.arange(0, LATENT), tl.arange(0, ROPE)
    some = (head < heads)[:, None]
    query = tl.load(
        q_latent + row * ql_row + head[:, None] * ql_head + wide[None, :], mask=some, other=0.0
    )
    turned = tl.load(
        q_rope + row * qr_row + head[:, None] * qr_head + narrow[None, :], mask=some, other=0.0
    )
    length = tl.load(lengths + row)
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    weight = tl.zeros([HEADS], tl.float32)
    total = tl.zeros([HEADS, LATENT], tl.float32)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        live = key < length
        place = cache + row * cache_row + key[:, None] * cache_token
        latent = tl.load(place + wide[None, :], mask=live[:, None], other=0.0)
        rope = tl.load(place + LATENT + narrow[None, :], mask=live[:, None], other=0.0)
        scores = dot(query, tl.trans(latent), tl.zeros([HEADS, KEYS], tl.float32))
        scores = dot(turned, tl.trans(rope), scores) * scale
        scores = tl.where(live[None, :], scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, 1))
        chance = tl.exp(scores - new[:, None])
        shrink = tl.exp(highest - new)
        weight = weight * shrink + tl.sum(chance, 1)
        total = dot(chance.to(tl.bfloat16), latent, total * shrink[:, None])
        highest = new
    to = out + (row * heads + head)[:, None] * LATENT + wide[None, :]
    tl.store(to, (total / weight[:, None]).to(tl.bfloat16), mask=some)


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Mixed latents bf16 [B, heads, latent] of queries [B, heads, latent] and [B, heads, rope] over
    `cache` [B, L, latent + rope], of which `lengths` int32 [B] (at least 1) tokens are valid.

    `latent` and `rope` are powers of two, 16 at least.
    """
    batch, heads, latent = q_latent.shape
    out = torch.empty(batch, heads, latent, dtype=torch.bfloat16, device=cache.device)
    block = 16 if heads <= 16 else 64
    if batch:
        _mla_kernel[(batch, triton.cdiv(heads, block))](
            q_latent, q_rope, cache, lengths, out, scale, heads, *q_latent.stride()[:2],
            *q_rope.stride()[:2], *cache.stride()[:2], LATENT=latent, ROPE=q_rope.shape[-1],
            HEADS=block, KEYS=32, num_warps=8, num_stages=2,
        )  # fmt: skip
    return out


def plain_mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """The same in float32."""
    latent = q_latent.shape[-1]
    query = torch.cat((q_latent, q_rope), dim=-1).float()
    outs = []
    for row, length in enumerate(lengths.tolist()):
        keys = cache[row, :length].float()
        chances = (query[row] @ keys.T * scale).softmax(-1)
        outs.append(chances @ keys[:, :latent])
    return torch.stack(outs) if outs else q_latent.float()
