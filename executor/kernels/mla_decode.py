# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""MLA attention of one query a sequence over cached latents, absorbed form; plain torch beside."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from executor.kernel_set import ExecutorError
from executor.kernels.gemm import SPECIALISED_REGISTERS, is_hopper, num_sms_of, swizzled
from executor.kernels.interpreted import dot
from executor.kernels.specialised_mla import specialised_mla_kernel

KEYS = 64


@triton.jit
def _attend(query, turned, latent, rope, live, scale, total, weight, highest, MASKED: tl.constexpr):
    """A block of keys added to the running softmax; `scale` is in powers of two."""
    scores = dot(query, tl.trans(latent), tl.zeros([query.shape[0], latent.shape[0]], tl.float32))
    scores = dot(turned, tl.trans(rope), scores) * scale
    if MASKED:
        scores = tl.where(live[None, :], scores, float("-inf"))
    new = tl.maximum(highest, tl.max(scores, 1))
    chance = tl.exp2(scores - new[:, None])
    shrink = tl.exp2(highest - new)
    weight = weight * shrink + tl.sum(chance, 1)
    total = dot(chance.to(tl.bfloat16), latent, total * shrink[:, None])
    return total, weight, new


@triton.jit
def _mla_kernel(
    q_latent, q_rope, cache, latents, ropes, lengths, out, parts, sums, scale, heads,
    ql_row, ql_head, qr_row, qr_head, cache_row, cache_token,
    LATENT: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One sequence, HEADS heads and one share of the keys: softmax while they stream by. Whole blocks
    of keys come through the descriptors `latents` and `ropes` of the cache, the last one masked."""
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
    share = tl.cdiv(tl.cdiv(length, tl.num_programs(2)), KEYS) * KEYS
    first = tl.program_id(2) * share
    last = tl.minimum(first + share, length)
    whole = first + tl.maximum(last - first, 0) // KEYS * KEYS
    highest = tl.full([HEADS], -1e30, tl.float32)
    weight = tl.zeros([HEADS], tl.float32)
    total = tl.zeros([HEADS, LATENT], tl.float32)
    key = whole + tl.arange(0, KEYS)
    live = key < last
    for start in range(first, whole, KEYS):
        latent = latents.load([tl.program_id(0), start, 0]).reshape(KEYS, LATENT)
        rope = ropes.load([tl.program_id(0), start, LATENT]).reshape(KEYS, ROPE)
        total, weight, highest = _attend(
            query, turned, latent, rope, live, scale, total, weight, highest, False
        )
    if whole < last:
        place = cache + row * cache_row + key[:, None] * cache_token
        latent = tl.load(place + wide[None, :], mask=live[:, None], other=0.0)
        rope = tl.load(place + LATENT + narrow[None, :], mask=live[:, None], other=0.0)
        total, weight, highest = _attend(
            query, turned, latent, rope, live, scale, total, weight, highest, True
        )
    if SPLIT:
        at = (row * tl.num_programs(2) + tl.program_id(2)) * heads + head
        tl.store(parts + at[:, None] * LATENT + wide[None, :], total, mask=some)
        tl.store(sums + at * 2, highest, mask=head < heads)
        tl.store(sums + at * 2 + 1, weight, mask=head < heads)
    else:
        to = out + (row * heads + head)[:, None] * LATENT + wide[None, :]
        tl.store(to, (total / weight[:, None]).to(tl.bfloat16), mask=some)


@triton.jit
def _merge_kernel(parts, sums, out, heads, splits, LATENT: tl.constexpr, SPLITS: tl.constexpr):
    """One sequence and head: the shares of its keys together."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, wide = tl.arange(0, SPLITS), tl.arange(0, LATENT)
    at = (row * splits + split) * heads + head
    highest = tl.load(sums + at * 2, mask=split < splits, other=-1e30)
    weight = tl.load(sums + at * 2 + 1, mask=split < splits, other=0.0)
    factor = tl.exp2(highest - tl.max(highest, 0))
    whole = tl.sum(factor * weight, 0)
    place = parts + at[:, None] * LATENT + wide[None, :]
    part = tl.load(place, mask=(split < splits)[:, None], other=0.0)
    total = tl.sum(part * factor[:, None], 0)
    tl.store(out + (row * heads + head) * LATENT + wide, (total / whole).to(tl.bfloat16))


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    splits: int | None = None,
    specialised: bool | None = None,
) -> torch.Tensor:
    """Mixed latents bf16 [B, heads, latent] of queries [B, heads, latent] and [B, heads, rope] over
    `cache` [B, L, latent + rope], of which `lengths` int32 [B] (at least 1) tokens are valid.

    `latent` and `rope` are powers of two, 16 at least. Keys are shared out to `splits` programs,
    by default as many as fill the GPU; the specialised kernel is the default on Hopper.
    """
    if cache.dtype != torch.bfloat16:
        raise ExecutorError(f"attention over a cache of {cache.dtype}; torch.bfloat16 is allowed")
    batch, heads, latent = q_latent.shape
    rope = q_rope.shape[-1]
    out = torch.empty(batch, heads, latent, dtype=torch.bfloat16, device=cache.device)
    if not batch:
        return out
    block = 16 if heads <= 16 else 64
    blocks = triton.cdiv(heads, block)
    if splits is None:
        splits = shares(batch * blocks, cache.shape[1], num_sms_of(cache.device))
    parts = sums = out
    if splits > 1:
        parts = torch.empty(batch, splits, heads, latent, device=cache.device)
        sums = torch.empty(batch, splits, heads, 2, device=cache.device)
    grid = (batch, blocks, splits)
    common = (lengths, out, parts, sums, scale / math.log(2), heads)
    strides = (*q_latent.stride()[:2], *q_rope.stride()[:2])
    if specialised is None:
        specialised = is_hopper(cache.device) and heads > 16 and cache.is_contiguous()
    if specialised:
        rows = cache.view(-1, latent + rope)
        tiles = (swizzled(rows, KEYS, latent), swizzled(rows, KEYS, rope))
        layout = tiles[0].layout
        specialised_mla_kernel[grid](
            q_latent, q_rope, *tiles, *common, cache.shape[1], *strides, Q_LATENT=layout,
            Q_ROPE=layout, CHANCES=layout, SPLIT=splits > 1, num_warps=8,
            maxnreg=SPECIALISED_REGISTERS,
        )  # fmt: skip
    else:
        latents = TensorDescriptor.from_tensor(cache, [1, KEYS, latent])
        ropes = TensorDescriptor.from_tensor(cache, [1, KEYS, rope])
        _mla_kernel[grid](
            q_latent, q_rope, cache, latents, ropes, *common, *strides, *cache.stride()[:2],
            LATENT=latent, ROPE=rope, HEADS=block, KEYS=KEYS, SPLIT=splits > 1, num_warps=8,
            num_stages=2,
        )  # fmt: skip
    if splits > 1:
        _merge_kernel[(batch, heads)](
            parts, sums, out, heads, splits, LATENT=latent,
            SPLITS=1 << (splits - 1).bit_length(), num_warps=4,
        )  # fmt: skip
    return out


def shares(programs: int, longest: int, num_sms: int) -> int:
    """Into how many parts keys are cut: as many as leave no SM without one, of at least 4 blocks."""
    return max(1, min(num_sms // programs, longest // (4 * KEYS)))


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
