# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""MLA decode attention with one warp that loads and eight that multiply (Hopper).

Triton gives each warpgroup of chained products all of their first one, so that both compute the same
scores. Here they share the keys of the first and the columns of the second.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

HEADS = gl.constexpr(64)
STAGES = gl.constexpr(2)


@gluon.jit
def _share_of(length, KEYS: gl.constexpr):
    """(first key, key behind the last) of this program's share."""
    share = gl.cdiv(gl.cdiv(length, gl.num_programs(2)), KEYS) * KEYS
    first = gl.program_id(2) * share
    return first, gl.minimum(first + share, length)


@gluon.jit
def _load_keys(latents, ropes, keys, turned_keys, full, empty, lengths, longest):
    """The loading warp: block after block of keys into the next free stage."""
    KEYS: gl.constexpr = keys.shape[1]
    LATENT: gl.constexpr = keys.shape[2]
    row = gl.program_id(0)
    first, last = _share_of(gl.load(lengths + row), KEYS)
    for start in range(first, last, KEYS):
        turn = (start - first) // KEYS
        stage = turn % STAGES
        mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
        bar = full.index(stage)
        mbarrier.expect(bar, latents.block_type.nbytes + ropes.block_type.nbytes)
        at = row * longest + start
        tma.async_copy_global_to_shared(latents, [at, 0], bar, keys.index(stage))
        tma.async_copy_global_to_shared(ropes, [at, LATENT], bar, turned_keys.index(stage))


@gluon.jit
def _blank_behind(block, live):
    """Zeros in the rows of a block of keys from `live` on, which can hold anything."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    row = gl.arange(0, block.shape[0], gl.SliceLayout(1, WIDE))
    value = block.load(WIDE)
    block.store(gl.where((row < live)[:, None], value, 0.0))
    fence_async_shared()


@gluon.jit
def _attend(
    query, turned, chances, keys, turned_keys, full, empty, lengths, out, parts, sums, scale, heads,
    SPLIT: gl.constexpr,
):  # fmt: skip
    """The multiplying warps: a running softmax over this program's keys, and what it mixes."""
    KEYS: gl.constexpr = keys.shape[1]
    LATENT: gl.constexpr = keys.shape[2]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, KEYS // 2, 16])
    MIXED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, LATENT // 2, 16])
    row = gl.program_id(0).to(gl.int64)
    first, last = _share_of(gl.load(lengths + row), KEYS)
    key = gl.arange(0, KEYS, gl.SliceLayout(0, SCORES))
    highest = gl.full([HEADS], -1e30, gl.float32, gl.SliceLayout(1, SCORES))
    weight = gl.full([HEADS], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([HEADS, LATENT], gl.float32, MIXED)
    for start in range(first, last, KEYS):
        turn = (start - first) // KEYS
        stage = turn % STAGES
        latent = keys.index(stage)
        mbarrier.wait(full.index(stage), turn // STAGES & 1)
        if start + KEYS > last:
            _blank_behind(latent, last - start)
        scores = gl.zeros([HEADS, KEYS], gl.float32, SCORES)
        scores = warpgroup_mma(query, latent.permute((1, 0)), scores, use_acc=False, is_async=True)
        rope = turned_keys.index(stage).permute((1, 0))
        scores = warpgroup_mma(turned, rope, scores, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,)) * scale
        scores = gl.where((start + key < last)[None, :], scores, float("-inf"))
        new = gl.maximum(highest, gl.max(scores, 1))
        chance = gl.exp2(scores - new[:, None])
        shrink = gl.exp2(highest - new)
        weight = weight * shrink + gl.sum(chance, 1)
        highest = new
        chances.store(chance.to(gl.bfloat16))
        fence_async_shared()
        total *= gl.convert_layout(shrink, gl.SliceLayout(1, MIXED))[:, None]
        total = warpgroup_mma(chances, latent, total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(empty.index(stage), count=1)
    columns = gl.arange(0, LATENT, gl.SliceLayout(0, MIXED))
    head = gl.program_id(1) * HEADS + gl.arange(0, HEADS, gl.SliceLayout(1, MIXED))
    some = (head < heads)[:, None]
    if SPLIT:
        share = row * gl.num_programs(2) + gl.program_id(2)
        to = (share * heads + head)[:, None] * LATENT + columns[None, :]
        gl.store(parts + to, total, mask=some)
        head = gl.program_id(1) * HEADS + gl.arange(0, HEADS, gl.SliceLayout(1, SCORES))
        at = (share * heads + head) * 2
        gl.store(sums + at, highest, mask=head < heads)
        gl.store(sums + at + 1, weight, mask=head < heads)
    else:
        whole = gl.convert_layout(weight, gl.SliceLayout(1, MIXED))
        to = (row * heads + head)[:, None] * LATENT + columns[None, :]
        gl.store(out + to, (total / whole[:, None]).to(gl.bfloat16), mask=some)


@gluon.jit
def _load_query(q, at, some, to, COLUMNS: gl.constexpr, WIDE: gl.constexpr):
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))
    to.store(gl.load(q + at[:, None] + column[None, :], mask=some[:, None], other=0.0))


@gluon.jit
def specialised_mla_kernel(
    q_latent, q_rope, latents, ropes, lengths, out, parts, sums, scale, heads, longest,
    ql_row, ql_head, qr_row, qr_head, Q_LATENT: gl.constexpr, Q_ROPE: gl.constexpr,
    CHANCES: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """One sequence, 64 heads and one share of the keys; see `executor.kernels.mla_decode`. `latents`
    and `ropes` are blocks of the cache [B * longest, latent + rope]; three shared layouts are given."""
    KEYS: gl.constexpr = latents.block_type.shape[0]
    LATENT: gl.constexpr = latents.block_type.shape[1]
    ROPE: gl.constexpr = ropes.block_type.shape[1]
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, LATENT], latents.layout)
    turned_keys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, ROPE], ropes.layout)
    query = gl.allocate_shared_memory(gl.bfloat16, [HEADS, LATENT], Q_LATENT)
    turned = gl.allocate_shared_memory(gl.bfloat16, [HEADS, ROPE], Q_ROPE)
    chances = gl.allocate_shared_memory(gl.bfloat16, [HEADS, KEYS], CHANCES)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    row = gl.program_id(0).to(gl.int64)
    head = gl.program_id(1) * HEADS + gl.arange(0, HEADS, gl.SliceLayout(1, WIDE))
    some = head < heads
    _load_query(q_latent, row * ql_row + head * ql_head, some, query, LATENT, WIDE)
    _load_query(q_rope, row * qr_row + head * qr_head, some, turned, ROPE, WIDE)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_attend, (
                query, turned, chances, keys, turned_keys, full, empty, lengths, out, parts, sums,
                scale, heads, SPLIT,
            )),
            (_load_keys, (
                latents, ropes, keys, turned_keys, full, empty, lengths, longest,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip
