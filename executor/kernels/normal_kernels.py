# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Normal-mode all-to-all: count, tell the counts, move one copy of a row to each rank that wants it.

`executor.kernels.normal` says what is where.
"""

import triton
import triton.language as tl

from executor.kernels.addresses import words_at
from executor.kernels.signals import last_of, raise_word, wait_word


@triton.jit
def layout_kernel(
    ids, places, sizes, tokens, ranks, local_experts,
    SLOTS: tl.constexpr, SLOTS_2: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program w: each token's place among those that go to rank w, their number, its experts' counts."""
    rank = tl.program_id(0)
    row, slot = tl.arange(0, BLOCK), tl.arange(0, SLOTS_2)
    expert = tl.arange(0, EXPERTS)
    total = tl.zeros([1], tl.int32)
    counts = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, tokens, BLOCK):
        token = start + row
        mask = (token < tokens)[:, None] & (slot < SLOTS)[None, :]
        chosen = tl.load(ids + token[:, None] * SLOTS + slot[None, :], mask=mask, other=-1)
        local = chosen.to(tl.int32) - rank * local_experts
        hit = (chosen >= 0) & (local >= 0) & (local < local_experts)
        goes = tl.max(hit.to(tl.int32), 1)
        place = total + tl.cumsum(goes, 0) - goes
        tl.store(places + token * ranks + rank, tl.where(goes > 0, place, -1), mask=token < tokens)
        total += tl.sum(goes, 0)
        flat = tl.reshape(tl.where(hit, local, EXPERTS - 1), [BLOCK * SLOTS_2])
        counts += tl.histogram(flat, EXPERTS)
    tl.store(sizes + rank * (1 + local_experts) + tl.arange(0, 1), total)
    tl.store(sizes + rank * (1 + local_experts) + 1 + expert, counts, mask=expert < local_experts)


@triton.jit
def notify_kernel(
    sizes, plan, peers, error, deadline_ns, rank, ranks, local_experts, alignment,
    table_at, table_words, told_at,
    RANKS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Tell every rank how many rows go where; from all ranks' answers, the plan: where this rank's
    rows begin on each rank [W], rows received, rows of each local expert, padded to `alignment`."""
    other, expert = tl.arange(0, RANKS), tl.arange(0, EXPERTS)
    size = 1 + local_experts
    rows_to = tl.load(sizes + other * size, mask=other < ranks, other=0)
    for peer in range(ranks):
        line = words_at(peers, peer, table_at) + rank * table_words
        tl.store(line + other, rows_to, mask=other < ranks)
        counts = tl.load(sizes + peer * size + 1 + expert, mask=expert < local_experts, other=0)
        tl.store(line + ranks + expert, counts, mask=expert < local_experts)
        raise_word(words_at(peers, peer, told_at) + rank * 4, 1)
    table = words_at(peers, rank, table_at)
    begins = tl.zeros([RANKS], tl.int32)
    received = tl.zeros([RANKS], tl.int32)
    padded = tl.zeros([EXPERTS], tl.int32)
    for source in range(ranks):
        told = words_at(peers, rank, told_at) + source * 4
        wait_word(told, 1, error, 3001 + source, deadline_ns)
        tl.store(told, 0)
        line = table + source * table_words
        rows = tl.load(line + other, mask=other < ranks, other=0)
        begins += tl.where(source < rank, rows, 0)
        received += tl.where(other == rank, rows, 0)
        padded += tl.load(line + ranks + expert, mask=expert < local_experts, other=0)
    padded = (padded + alignment - 1) // alignment * alignment
    tl.store(plan + other, begins, mask=other < ranks)
    tl.store(plan + ranks, tl.sum(received, 0))
    tl.store(plan + ranks + 1 + expert, padded, mask=expert < local_experts)


@triton.jit
def transfer_kernel(
    x, scales, ids, weights, places, plan, peers, ticket, error, deadline_ns,
    tokens, rank, ranks, local_experts, row_words, scale_words,
    rows_at, scales_at, ids_at, weights_at, done_at,
    SLOTS: tl.constexpr, SLOTS_2: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows with scales, local ids and weights to every rank that wants them; ends when all ranks'
    rows are here."""
    slot = tl.arange(0, SLOTS_2)
    at, scale_at = tl.arange(0, BLOCK), tl.arange(0, SCALE_BLOCK)
    for item in range(tl.program_id(0), tl.cdiv(tokens, ROWS), tl.num_programs(0)):
        token = item * ROWS + tl.arange(0, ROWS)
        live = token < tokens
        some = live[:, None] & (slot < SLOTS)[None, :]
        chosen = tl.load(ids + token[:, None] * SLOTS + slot[None, :], mask=some, other=-1)
        weight = tl.load(weights + token[:, None] * SLOTS + slot[None, :], mask=some, other=0.0)
        inside = live[:, None] & (at < row_words)[None, :]
        source = x + token.to(tl.int64)[:, None] * row_words + at[None, :]
        value = tl.load(source, mask=inside, other=0)
        few = live[:, None] & (scale_at < scale_words)[None, :]
        scale = tl.load(
            scales + token[:, None] * scale_words + scale_at[None, :], mask=few, other=0
        )
        for peer in range(ranks):
            place = tl.load(places + token * ranks + peer, mask=live, other=-1)
            goes = (place >= 0)[:, None]
            row = (tl.load(plan + peer) + place).to(tl.int64)[:, None]
            rows = words_at(peers, peer, rows_at)
            tl.store(rows + row * row_words + at[None, :], value, mask=inside & goes)
            to = words_at(peers, peer, scales_at)
            tl.store(to + row * scale_words + scale_at[None, :], scale, mask=few & goes)
            local = chosen.to(tl.int32) - peer * local_experts
            local = tl.where((chosen >= 0) & (local >= 0) & (local < local_experts), local, -1)
            to = words_at(peers, peer, ids_at)
            tl.store(to + row * SLOTS + slot[None, :], local, mask=some & goes)
            to = words_at(peers, peer, weights_at).to(tl.pointer_type(tl.float32))
            tl.store(to + row * SLOTS + slot[None, :], weight, mask=some & goes)
    if last_of(ticket, tl.num_programs(0)):
        for peer in range(ranks):
            raise_word(words_at(peers, peer, done_at) + rank * 4, 1)
        for source in range(ranks):
            done = words_at(peers, rank, done_at) + source * 4
            wait_word(done, 1, error, 4001 + source, deadline_ns)
            tl.store(done, 0)


@triton.jit
def combine_kernel(
    places, plan, out, peers, ticket, error, deadline_ns, tokens, hidden, rank, ranks,
    rows_at, ready_at, done_at, RANKS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Each token's sum over the ranks that had it, read from their memory; ends when all ranks have
    read what they need from this one."""
    if tl.program_id(0) == 0:
        for peer in range(ranks):
            raise_word(words_at(peers, peer, ready_at) + rank * 4, 1)
    for source in range(ranks):
        ready = words_at(peers, rank, ready_at) + source * 4
        wait_word(ready, 1, error, 5001 + source, deadline_ns)
    at = tl.arange(0, BLOCK)
    columns = tl.cdiv(hidden, BLOCK)
    items = tl.cdiv(tokens, ROWS) * columns
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=STAGES):
        token = item // columns * ROWS + tl.arange(0, ROWS)
        column = item % columns * BLOCK + at
        live = token < tokens
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        for peer in tl.static_range(RANKS):
            place = tl.load(places + token * ranks + peer, mask=live, other=-1)
            mask = (place >= 0)[:, None] & (column < hidden)[None, :]
            row = (tl.load(plan + peer) + place).to(tl.int64)[:, None]
            rows = words_at(peers, peer, rows_at).to(tl.pointer_type(tl.bfloat16))
            total += tl.load(rows + row * hidden + column[None, :], mask=mask, other=0.0)
        to = out + token.to(tl.int64)[:, None] * hidden + column[None, :]
        tl.store(to, total.to(tl.bfloat16), mask=live[:, None] & (column < hidden)[None, :])
    if last_of(ticket, tl.num_programs(0)):
        for source in range(ranks):
            tl.store(words_at(peers, rank, ready_at) + source * 4, 0)
        for peer in range(ranks):
            raise_word(words_at(peers, peer, done_at) + rank * 4, 1)
        for source in range(ranks):
            done = words_at(peers, rank, done_at) + source * 4
            wait_word(done, 1, error, 6001 + source, deadline_ns)
            tl.store(done, 0)
