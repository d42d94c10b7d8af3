# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Reaching peers' memory from a kernel: regions are addresses, parts of them byte offsets."""

import triton
import triton.language as tl


@triton.jit
def words_at(peers, peer, offset):
    """int32 words of a peer's region (or of several), `offset` bytes from its beginning.

    Both are multiples of 16, which is what makes 16-byte accesses out of neighbouring words.
    """
    return tl.multiple_of((tl.load(peers + peer) + offset).to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def copy_rows(source, to, valid, words, BLOCK: tl.constexpr):
    """`words` int32 from each row's source pointer [R] to its destination [R], for valid rows."""
    at = tl.arange(0, BLOCK)
    for start in range(0, words, BLOCK):
        mask = valid[:, None] & (start + at < words)[None, :]
        value = tl.load(source[:, None] + start + at[None, :], mask=mask, other=0)
        tl.store(to[:, None] + start + at[None, :], value, mask=mask)


@triton.jit
def item_of(item, ends, counts, index):
    """(group, its count, item in it) of an item, from the groups' running numbers of items."""
    before = ends <= item
    group = tl.sum(before.to(tl.int32), 0)
    first = tl.max(tl.where(before, ends, 0), 0)
    return group, tl.sum(tl.where(index == group, counts, 0), 0), item - first
