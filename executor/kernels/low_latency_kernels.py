# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Low-latency all-to-all: rows are written where they are needed, then a word says so.

A sender takes the next free row of the receiving expert with an atomic on the receiver's memory, so
rows arrive packed and nothing is copied again. `executor.kernels.low_latency` says what is where.
"""

import triton
import triton.language as tl

from executor.kernels.addresses import copy_rows, item_of, words_at
from executor.kernels.signals import last_of, raise_word, wait_word


@triton.jit
def _raise_at_all(peers, ranks, offset):
    """One more at a word of every rank's region, after everything that all programs wrote."""
    for peer in range(ranks):
        raise_word(words_at(peers, peer, offset), 1)


@triton.jit
def dispatch_send_kernel(
    x, ids, peers, ticket, tokens, hidden, capacity, local_experts, ranks, source_first,
    rows_at, scales_at, sources_at, next_at, done_at,
    SLOTS: tl.constexpr, FP8: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Every (token, slot) to its expert's rank, cast to FP8 on the way; then one word per rank."""
    group = tl.arange(0, GROUPS)
    at = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = at < hidden
    for item in range(tl.program_id(0), tokens * SLOTS, tl.num_programs(0)):
        expert = tl.load(ids + item).to(tl.int32)
        if expert >= 0:
            value = tl.load(x + item // SLOTS * hidden + at, mask=inside, other=0.0)
            peer, local = expert // local_experts, expert % local_experts
            place = tl.atomic_add(
                words_at(peers, peer, next_at) + local, 1, sem="relaxed", scope="sys"
            )
            row = (local * capacity + place).to(tl.int64)
            tl.store(words_at(peers, peer, sources_at) + row, source_first + item)
            if FP8:
                wide = value.to(tl.float32)
                scale = tl.maximum(tl.max(tl.abs(wide), 1), 1e-4) / 448.0
                cast = (wide / scale[:, None]).to(tl.float8e4nv)
                to = words_at(peers, peer, rows_at).to(tl.pointer_type(tl.float8e4nv))
                tl.store(to + row * hidden + at, cast, mask=inside)
                to_scales = words_at(peers, peer, scales_at).to(tl.pointer_type(tl.float32))
                groups = hidden // 128
                tl.store(to_scales + row * groups + group, scale, mask=group < groups)
            else:
                to = words_at(peers, peer, rows_at).to(tl.pointer_type(tl.bfloat16))
                tl.store(to + row * hidden + at, value, mask=inside)
    if last_of(ticket, tl.num_programs(0)):
        _raise_at_all(peers, ranks, done_at)


@triton.jit
def dispatch_recv_kernel(
    peers, counts, error, deadline_ns, rank, ranks, local_experts, next_at, done_at,
    EXPERTS: tl.constexpr,
):  # fmt: skip
    """Wait until all ranks have sent; counts of the local experts; words ready for the next use."""
    done = words_at(peers, rank, done_at)
    for source in range(ranks):
        wait_word(done + source * 4, 1, error, 1 + source, deadline_ns)
        tl.store(done + source * 4, 0)
    index = tl.arange(0, EXPERTS)
    taken = words_at(peers, rank, next_at)
    count = tl.load(taken + index, mask=index < local_experts, other=0)
    tl.store(counts + index, count, mask=index < local_experts)
    tl.debug_barrier()
    tl.store(taken + index, 0, mask=index < local_experts)


@triton.jit
def combine_send_kernel(
    y, counts, peers, ticket, words, error, deadline_ns, hidden_words, capacity, local_experts,
    rank, ranks, sources_per_rank, sources_at, rows_at, done_at, wanted,
    POLL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Every expert row to its source, expert by expert, each as soon as its word is complete.

    POLL 0: the rows are there; 1: a word for each 64 rows, complete at `wanted`; 2: a word for each
    expert, complete at `wanted` for each started 64 rows. A program looks at a word once, not again for
    its next rows under the same word. The last program sets the words back.
    """
    index = tl.arange(0, EXPERTS)
    count_of = tl.load(counts + index, mask=index < local_experts, other=0)
    ends = tl.cumsum((count_of + ROWS - 1) // ROWS, 0)
    sources = words_at(peers, rank, sources_at)
    seen = tl.full([], -1, tl.int32)
    for item in range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        expert, count, local = item_of(item, ends, count_of, index)
        first = local * ROWS
        if POLL:
            word = expert * tl.cdiv(capacity, 64) + first // 64 if POLL == 1 else expert
            if word != seen:
                complete = wanted if POLL == 1 else wanted * tl.cdiv(count, 64)
                wait_word(words + word, complete, error, 1001 + expert, deadline_ns)
            seen = word
        place = first + tl.arange(0, ROWS)
        valid = place < count
        row = (expert * capacity + place).to(tl.int64)
        source = tl.load(sources + row, mask=valid, other=0)
        to = words_at(peers, source // sources_per_rank, rows_at)
        to += (source % sources_per_rank).to(tl.int64) * hidden_words
        copy_rows(y + row * hidden_words, to, valid, hidden_words, BLOCK)
    if last_of(ticket, tl.num_programs(0)):
        _raise_at_all(peers, ranks, done_at)
        if POLL:
            parts = tl.cdiv(capacity, 64) if POLL == 1 else 1
            for start in range(0, local_experts * parts, EXPERTS):
                tl.store(words + start + index, 0, mask=start + index < local_experts * parts)


@triton.jit
def combine_recv_kernel(
    ids, weights, out, peers, ticket, error, deadline_ns, tokens, hidden, rank, ranks,
    rows_at, done_at, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Wait until all ranks have sent back; each token's weighted sum of its copies."""
    done = words_at(peers, rank, done_at)
    for source in range(ranks):
        wait_word(done + source * 4, 1, error, 2001 + source, deadline_ns)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < hidden) & (token < tokens)
    rows = words_at(peers, rank, rows_at).to(tl.pointer_type(tl.bfloat16))
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(SLOTS):
        place = token * SLOTS + slot
        chosen = tl.load(ids + place, mask=token < tokens, other=-1) >= 0
        weight = tl.load(weights + place, mask=token < tokens, other=0.0)
        copy = tl.load(rows + place * hidden + at, mask=inside & chosen, other=0.0)
        total += weight * copy.to(tl.float32)
    tl.store(out + token * hidden + at, total.to(tl.bfloat16), mask=inside)
    if last_of(ticket, tl.num_programs(0) * tl.num_programs(1)):
        for source in range(ranks):
            tl.store(done + source * 4, 0)
