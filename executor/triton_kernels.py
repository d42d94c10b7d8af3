# mypy: disable-error-code="no-untyped-def,untyped-decorator,name-defined,no-untyped-call"
"""The kernels themselves, in Triton's own language: types are Triton's, not Python's.

`executor.small_kernels` allocates, picks grids and says what each computes.
"""

import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    x, add, weight, out, total, stride, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(add + row * size + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * size + at, value.to(tl.bfloat16), mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / size + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, (value * scale * w).to(tl.bfloat16), mask=inside)


@triton.jit
def quantise_kernel(
    x,
    out,
    scales,
    counts,
    columns,
    row_stride,
    group_stride,
    rows_per_expert,
    GATED: tl.constexpr,
    MASKED: tl.constexpr,
    GROUPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    live = True
    if MASKED:
        live = row % rows_per_expert < tl.load(counts + row // rows_per_expert)
    if live:
        groups = columns // 128
        group = tl.arange(0, GROUPS)
        at = group[:, None] * 128 + tl.arange(0, 128)[None, :]
        inside = at < columns
        width = columns * 2 if GATED else columns
        value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            up = tl.load(x + row * width + columns + at, mask=inside, other=0.0).to(tl.float32)
            value = value / (1.0 + tl.exp(-value)) * up
        scale = tl.maximum(tl.max(tl.abs(value), 1), 1e-4) / 448.0
        cast = (value / scale[:, None]).to(tl.float8e4nv)
        tl.store(out + row * columns + at, cast, mask=inside)
        if MASKED:
            expert = row // rows_per_expert
            place = expert * groups * group_stride + row % rows_per_expert
            tl.store(scales + place + group * group_stride, scale, mask=group < groups)
        else:
            tl.store(scales + row * row_stride + group * group_stride, scale, mask=group < groups)


@triton.jit
def silu_mul_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    gate = tl.load(x + row * columns * 2 + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * columns * 2 + columns + at, mask=inside, other=0.0).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32)
    tl.store(out + row * columns + at, (gate * up).to(tl.bfloat16), mask=inside)


@triton.jit
def _rotated(place, to, inside, cos, sin, HALF: tl.constexpr):
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, (first * cos - second * sin).to(tl.bfloat16), mask=inside)
    tl.store(to + HALF, (first * sin + second * cos).to(tl.bfloat16), mask=inside)


@triton.jit
def rotate_kernel(
    query,
    key,
    out,
    positions,
    stride,
    head_stride,
    key_stride,
    heads,
    base,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    at = tl.arange(0, HALF)
    position = tl.load(positions + row).to(tl.float32)
    angle = position * tl.exp(-tl.log(base) * at.to(tl.float32) / HALF)
    cos, sin = tl.cos(angle), tl.sin(angle)
    inside = (head < heads)[:, None] & (at >= 0)[None, :]
    place = query + row * stride + head[:, None] * head_stride + at[None, :]
    _rotated(place, place, inside, cos[None, :], sin[None, :], HALF)
    _rotated(key + row * key_stride + at, out + row * 2 * HALF + at, at >= 0, cos, sin, HALF)


@triton.jit
def join_keys_kernel(
    kv, rope, out, heads, width,
    NOPE: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr,
    NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    at, turned = tl.arange(0, NOPE_BLOCK)[None, :], tl.arange(0, ROPE_BLOCK)[None, :]
    to = out + (row * heads + head) * (NOPE + ROPE)
    inside = (head < heads) & (at < NOPE)
    tl.store(to + at, tl.load(kv + (row * heads + head) * width + at, mask=inside), mask=inside)
    inside = (head < heads) & (turned < ROPE)
    source = tl.broadcast_to(rope + row * ROPE + turned, (HEADS, ROPE_BLOCK))
    tl.store(to + NOPE + turned, tl.load(source, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, lengths, stride, scale, heads, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row // heads)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < length, other=float("-inf")).to(tl.float32)
    value = tl.exp((value - tl.max(value, 0)) * scale)
    value = value / tl.sum(value, 0)
    tl.store(x + row * stride + at, value.to(tl.bfloat16), mask=at < stride)


@triton.jit
def permute_kernel(
    x,
    scales,
    ids,
    starts,
    next_row,
    out,
    out_scales,
    expert_of,
    places,
    experts,
    columns,
    out_stride,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    FILL: tl.constexpr,
):
    """The first `experts` programs fill `expert_of`; each of the others moves a row."""
    program = tl.program_id(0)
    if program < experts:
        last = tl.load(starts + program + 1)
        for first in range(tl.load(starts + program), last, FILL):
            filled = first + tl.arange(0, FILL)
            tl.store(expert_of + filled, tl.zeros([FILL], tl.int32) + program, mask=filled < last)
    else:
        row = (program - experts).to(tl.int64)
        groups = columns // 128
        at = tl.arange(0, BLOCK)
        group = tl.arange(0, GROUPS)
        value = tl.load(x + row * columns + at, mask=at < columns, other=0)
        scale = tl.load(scales + row * groups + group, mask=group < groups, other=0.0)
        for slot in range(SLOTS):
            expert = tl.load(ids + row * SLOTS + slot).to(tl.int32)
            if expert >= 0:
                to = tl.atomic_add(next_row + expert, 1).to(tl.int64)
                tl.store(places + row * SLOTS + slot, to.to(tl.int32))
                tl.store(out + to * columns + at, value, mask=at < columns)
                tl.store(out_scales + to + group * out_stride, scale, mask=group < groups)
            else:
                tl.store(places + row * SLOTS + slot, -1)


@triton.jit
def weighted_sum_kernel(x, places, weights, out, columns, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for slot in range(SLOTS):
        place = tl.load(places + row * SLOTS + slot).to(tl.int64)
        if place >= 0:
            weight = tl.load(weights + row * SLOTS + slot)
            total += weight * tl.load(x + place * columns + at, mask=at < columns, other=0.0).to(
                tl.float32
            )
    tl.store(out + row * columns + at, total.to(tl.bfloat16), mask=at < columns)


@triton.jit
def add_kernel(a, b, c, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(a + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(b + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(c + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(tl.bfloat16), mask=inside)


@triton.jit
def store_kernel(
    latent,
    key,
    sequence,
    position,
    cache,
    length,
    latent_size,
    key_size,
    LATENT: tl.constexpr,
    KEY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(sequence + row) * length + tl.load(position + row)
    to = cache + place * (latent_size + key_size)
    at = tl.arange(0, LATENT)
    value = tl.load(latent + row * latent_size + at, mask=at < latent_size, other=0.0)
    tl.store(to + at, value, mask=at < latent_size)
    at = tl.arange(0, KEY)
    value = tl.load(key + row * key_size + at, mask=at < key_size, other=0.0)
    tl.store(to + latent_size + at, value, mask=at < key_size)
