"""How two-batch overlap cuts a batch in two: where, and what each child then holds.

Decode and target-verify batches are cut at half their sequences. An extend batch is cut between
sequences where the token sums are closest, or, when that cut is too uneven, inside a sequence
(two-chunk): child B then attends to the piece that child A computes in the same layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from models.deployment import Batch
from models.sglang_rules import Refused, Rules, load_rules


@dataclass(frozen=True, slots=True)
class Cut:
    """Where one rank's batch is cut. Sequences before `seq_index` are child A's; with `two_chunk`
    sequence `seq_index` is cut too, and A takes its first `piece` tokens. `token_index` is the
    number of tokens of child A; `balanced_index` the cut between sequences that was tried first."""

    seq_index: int
    token_index: int
    two_chunk: bool = False
    piece: int = 0
    balanced_index: int = 0


def balanced_index(lens: Sequence[int]) -> int:
    """Number of sequences of child A with the smallest difference of token sums; the later cut wins
    a tie and the scan stops when the difference grows. 0 for fewer than two sequences."""
    total = sum(lens)
    best_index, best_difference = 0, total
    for index, left in enumerate(accumulate(lens[:-1]), start=1):
        difference = abs(2 * left - total)
        if difference > best_difference:
            break
        best_index, best_difference = index, difference
    return best_index


def split_extend(lens: Sequence[int], threshold: float) -> Cut:
    """The cut of an extend batch with these new tokens per sequence.

    `threshold` (at most 0.5; 0 disables) is the share of tokens that the smaller child must reach
    for a cut between sequences; below it the batch is cut at half its tokens, unless child A would
    then have more sequences than tokens.
    """
    if not 0 <= threshold <= 0.5:
        raise ValueError(f"split threshold {threshold}: must lie in 0 to 0.5")
    total, half = sum(lens), sum(lens) // 2
    balanced = balanced_index(lens)
    left = sum(lens[:balanced])
    uneven = threshold > 0 and (left < total * threshold or left > total * (1 - threshold))
    cumulative = list(accumulate(lens))
    inside = next((i for i, tokens in enumerate(cumulative) if tokens > half), None)
    if not uneven or inside is None or inside + 1 > half:
        return Cut(balanced, left, balanced_index=balanced)
    piece = half - (cumulative[inside] - lens[inside])
    return Cut(inside, half, two_chunk=True, piece=piece, balanced_index=balanced)


def split_decode(num_tokens: int, draft_tokens: int = 1) -> Cut:
    """The cut of a decode batch, or of a target-verify batch with `draft_tokens` per sequence."""
    if draft_tokens < 1:
        raise ValueError(f"draft_tokens {draft_tokens}: a batch has at least one token a sequence")
    sequences = num_tokens // draft_tokens // 2
    return Cut(sequences, sequences * draft_tokens, balanced_index=sequences)


def split_mode(
    mode: str,
    *,
    lens: Sequence[int] = (),
    num_tokens: int = 0,
    draft_tokens: int = 1,
    threshold: float | None = None,
    rules: Rules | None = None,
) -> Cut:
    """The cut of a batch in an SGLang forward mode; `Refused` for a mode without a split."""
    rules = rules or load_rules()
    if mode in rules.tbo.extend_modes:
        limit = rules.defaults.tbo_threshold if threshold is None else threshold
        return split_extend(lens, limit)
    if mode in ("DECODE", "TARGET_VERIFY"):
        return split_decode(num_tokens, draft_tokens if mode == "TARGET_VERIFY" else 1)
    if mode in rules.tbo.vote_ignores:
        return Cut(0, 0)
    raise Refused(rules.refusal("tbo.split_mode", mode))


def split_graph_replay(mode: str, num_tokens: int, draft_tokens: int = 1) -> Cut:
    """The cut of a captured decode graph. Only capture modes have one: ValueError for the rest
    (SGLang divides by zero there; its runner always passes the capture mode)."""
    if mode not in ("DECODE", "TARGET_VERIFY"):
        raise ValueError(f"mode {mode!r} has no graph; allowed: DECODE, TARGET_VERIFY")
    return split_mode(mode, num_tokens=num_tokens, draft_tokens=draft_tokens)


def child_lens(lens: Sequence[int], cut: Cut) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """New tokens per sequence of child A and of child B."""
    if not cut.two_chunk:
        return tuple(lens[: cut.seq_index]), tuple(lens[cut.seq_index :])
    rest = lens[cut.seq_index] - cut.piece
    return (*lens[: cut.seq_index], cut.piece), (rest, *lens[cut.seq_index + 1 :])


def child_prefixes(prefix: Sequence[int], cut: Cut) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cached tokens per sequence of both children: B's first sequence sees A's piece as cached."""
    if not cut.two_chunk:
        return tuple(prefix[: cut.seq_index]), tuple(prefix[cut.seq_index :])
    index = cut.seq_index
    return tuple(prefix[: index + 1]), (prefix[index] + cut.piece, *prefix[index + 1 :])


def split_batch(
    batch: Batch, *, threshold: float | None = None, rules: Rules | None = None
) -> tuple[Batch, Batch, tuple[Cut, ...]]:
    """Child batches A and B of all ranks, and the cut of each rank.

    A decode batch is cut by sequences (each keeps all its new tokens, one or the draft length); a
    prefill batch as in `split_extend` with `threshold`, by default the rules' own.
    """
    rules = rules or load_rules()
    limit = rules.defaults.tbo_threshold if threshold is None else threshold
    cuts = tuple(_cut(batch.phase == "decode", lens, limit) for lens in batch.new_tokens)
    news = [child_lens(lens, cut) for lens, cut in zip(batch.new_tokens, cuts, strict=True)]
    olds = [child_prefixes(lens, cut) for lens, cut in zip(batch.prefix_tokens, cuts, strict=True)]
    child_a, child_b = (
        Batch(batch.phase, tuple(new[side] for new in news), tuple(old[side] for old in olds))
        for side in (0, 1)
    )
    return child_a, child_b, cuts


def non_padded(token_index: int, valid_tokens: int) -> tuple[int, int]:
    """Valid tokens of children A and B when only the first `valid_tokens` of the batch are:
    padding falls on B first."""
    return min(token_index, valid_tokens), max(0, valid_tokens - token_index)


def _cut(decode: bool, lens: Sequence[int], threshold: float) -> Cut:
    if not decode:
        return split_extend(lens, threshold)
    sequences = len(lens) // 2
    return Cut(sequences, sum(lens[:sequences]), balanced_index=sequences)
