"""How two-batch overlap cuts a batch in two: where, and what each child then holds.

Decode and target-verify batches are cut at half their sequences. An extend batch is cut between
sequences where the token sums are closest, or, when that cut is too uneven, inside a sequence
(two-chunk): child B then attends to the piece that child A computes in the same layer.

With attention TP the ranks of a group share one batch: it is cut once, and the tokens of each child, or of
the whole batch, are padded to a multiple of the group's ranks and dealt to them evenly (SGLang 0.5.23,
`batch_overlap/two_batch_overlap.py: tbo_padded_len`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from models.deployment import Batch, Phase
from models.routing import Routing
from models.sglang_rules import Refused, Rules, load_rules
from models.topk_draw import Ids


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
    batch: Batch,
    *,
    threshold: float | None = None,
    rules: Rules | None = None,
    attention_tp: int = 1,
) -> tuple[Batch, Batch, tuple[Cut, ...]]:
    """Child batches A and B of all ranks, and the cut of each rank.

    A decode batch is cut by sequences (each keeps all its new tokens, one or the draft length); a
    prefill batch as in `split_extend` with `threshold`, by default the rules' own. `attention_tp`
    neighbours share one cut, of the sequences of all of them; those of a child then stand on the
    group's first rank, and `rows` says what each rank is dealt.
    """
    rules = rules or load_rules()
    limit = rules.defaults.tbo_threshold if threshold is None else threshold
    new, old = (_gathered(lens, attention_tp) for lens in (batch.new_tokens, batch.prefix_tokens))
    cuts = tuple(_cut(batch.phase == "decode", lens, limit) for lens in new)
    news = [child_lens(lens, cut) for lens, cut in zip(new, cuts, strict=True)]
    olds = [child_prefixes(lens, cut) for lens, cut in zip(old, cuts, strict=True)]
    child_a, child_b = (
        _child(
            batch.phase, [lens[side] for lens in news], [lens[side] for lens in olds], attention_tp
        )
        for side in (0, 1)
    )
    return child_a, child_b, tuple(cut for cut in cuts for _ in range(attention_tp))


def split_routing(
    routing: Routing, cuts: Sequence[Cut], attention_tp: int = 1
) -> tuple[Routing, Routing]:
    """Where the tokens of children A and B go, by the ranks that they are dealt to; padded rows have no
    expert (-1)."""
    at = [cut.token_index for cut in cuts]
    if attention_tp == 1:
        return routing.slice([0] * len(at), at), routing.slice(at, routing.tokens)
    ids: tuple[list[Ids], list[Ids]] = ([], [])
    for first in range(0, len(at), attention_tp):
        rows = np.concatenate(routing.ids[first : first + attention_tp])
        for side, part in zip(ids, (rows[: at[first]], rows[at[first] :]), strict=True):
            side.extend(_dealt_rows(part, attention_tp))
    child_a, child_b = (Routing(tuple(s), routing.num_physical, routing.ep_size) for s in ids)
    return child_a, child_b


def dealt(batch: Batch, routing: Routing, attention_tp: int) -> tuple[Batch, Routing]:
    """The whole batch as its ranks hold it: an attention group's tokens are padded to a multiple of its
    ranks and dealt to them evenly, since the group gathers and scatters them (SGLang 0.5.23,
    `model_executor/forward_batch_info.py: prepare_mlp_sync_batch`). As it is where each group's ranks
    have equally many."""
    groups = [
        slice(first, first + attention_tp) for first in range(0, len(batch.tokens), attention_tp)
    ]
    if all(len(set(batch.tokens[group])) == 1 for group in groups):
        return batch, routing
    ids = tuple(
        rows
        for group in groups
        for rows in _dealt_rows(np.concatenate(routing.ids[group]), attention_tp)
    )
    held = Routing(ids, routing.num_physical, routing.ep_size)
    return replace(batch, rows=held.tokens), held


def padded_length(tokens: int, attention_tp: int) -> int:
    """Rows of a child with so many tokens: the next multiple of the ranks that share attention."""
    return -(-tokens // attention_tp) * attention_tp


def non_padded(token_index: int, valid_tokens: int) -> tuple[int, int]:
    """Valid tokens of children A and B when only the first `valid_tokens` of the batch are:
    padding falls on B first."""
    return min(token_index, valid_tokens), max(0, valid_tokens - token_index)


def _dealt_rows(rows: Ids, attention_tp: int) -> list[Ids]:
    """Rows of expert ids in equal parts, one for each rank of a group, with padded rows of -1 last."""
    filled = np.full((padded_length(len(rows), attention_tp), rows.shape[1]), -1, dtype=np.int32)
    filled[: len(rows)] = rows
    return np.split(filled, attention_tp)


def _gathered(lens: Sequence[tuple[int, ...]], attention_tp: int) -> list[tuple[int, ...]]:
    """Lengths by attention group, rank after rank."""
    groups = (lens[i : i + attention_tp] for i in range(0, len(lens), attention_tp))
    return [tuple(length for rank in group for length in rank) for group in groups]


def _child(
    phase: Phase,
    new: Sequence[tuple[int, ...]],
    old: Sequence[tuple[int, ...]],
    attention_tp: int,
) -> Batch:
    """One child from its lengths by attention group."""
    if attention_tp == 1:
        return Batch(phase, tuple(new), tuple(old))
    rest = ((),) * (attention_tp - 1)
    rows = [padded_length(sum(lens), attention_tp) // attention_tp for lens in new]
    return Batch(
        phase,
        tuple(part for lens in new for part in (lens, *rest)),
        tuple(part for lens in old for part in (lens, *rest)),
        tuple(count for count in rows for _ in range(attention_tp)),
    )


def _cut(decode: bool, lens: Sequence[int], threshold: float) -> Cut:
    if not decode:
        return split_extend(lens, threshold)
    sequences = len(lens) // 2
    return Cut(sequences, sum(lens[:sequences]), balanced_index=sequences)
