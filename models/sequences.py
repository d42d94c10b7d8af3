"""Sums over the sequences of a batch that attention needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from models.deployment import Attention, Batch, Deployment


@dataclass(frozen=True, slots=True)
class SequenceSums:
    """Of the sequences that one rank's attention processes: how many, their new tokens (with the padding
    of a child batch), the keys that they hold (`kv_tokens`), and the query-key pairs that causal
    attention computes (`pairs`)."""

    sequences: int
    tokens: int
    kv_tokens: int
    pairs: int


def attention_ranks(deployment: Deployment, rank: int) -> range:
    """Ranks that share the attention of `rank`: `attention_tp` neighbours."""
    first = rank // deployment.attention_tp * deployment.attention_tp
    return range(first, first + deployment.attention_tp)


def sequence_sums(
    deployment: Deployment, batch: Batch, rank: int, *, all_keys: bool = False
) -> SequenceSums:
    """Sums over the sequences of the whole attention group of `rank`. A key that sparse or sliding
    attention skips is in neither `kv_tokens` nor `pairs`, unless `all_keys` asks for every one."""
    keep = 0 if all_keys else kept_keys(deployment.model.attention)
    new, prefix = _group_lengths(deployment, batch, rank)
    rows = sum(batch.rows[peer] for peer in attention_ranks(deployment, rank)) if batch.rows else 0
    return _sums(new, prefix, keep, max(rows, sum(new)))


def compressed_sums(
    deployment: Deployment, batch: Batch, rank: int, ratio: int, keep: int
) -> SequenceSums:
    """Sums over keys that stand for `ratio` tokens each, once all of those are there; a query attends to
    at most `keep` of them (0: all that it has behind it)."""
    return _compressed(*_group_lengths(deployment, batch, rank), ratio, keep)


def _group_lengths(
    deployment: Deployment, batch: Batch, rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """New and cached tokens of the sequences of the rank's attention group, rank after rank."""
    new: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    for peer in attention_ranks(deployment, rank):
        new += batch.new_tokens[peer]
        prefix += batch.prefix_tokens[peer]
    return new, prefix


@lru_cache(maxsize=1024)
def _compressed(
    new: tuple[int, ...], prefix: tuple[int, ...], ratio: int, keep: int
) -> SequenceSums:
    kv_tokens = pairs = sequences = 0
    for added, before in zip(new, prefix, strict=True):
        if not added:
            continue
        sequences += 1
        keys = (before + added) // ratio
        kv_tokens += min(keys, keep + added - 1) if keep else keys
        pairs += _seen(before + added, ratio, keep) - _seen(before, ratio, keep)
    return SequenceSums(sequences, sum(new), kv_tokens, pairs)


def _seen(length: int, ratio: int, keep: int) -> int:
    """Compressed keys that the first `length` tokens of a sequence attend to, at most `keep` each."""
    full = min(length, keep * ratio - 1) if keep else length
    groups = full // ratio
    growing = ratio * groups * (groups - 1) // 2 + groups * (full - ratio * groups + 1)
    return growing + keep * (length - full)


def kept_keys(attention: Attention) -> int:
    """Most keys that one query attends to, compressed ones left out; 0: all."""
    if attention.kind == "mqa":
        return attention.window
    limits = [limit for limit in (attention.index_topk, attention.window) if limit]
    return min(limits, default=0)


@lru_cache(maxsize=1024)
def _sums(new: tuple[int, ...], prefix: tuple[int, ...], keep: int, rows: int) -> SequenceSums:
    kv_tokens = pairs = sequences = 0
    for added, before in zip(new, prefix, strict=True):
        if not added:
            continue
        sequences += 1
        kv_tokens += before + added if not keep else min(before + added, keep + added - 1)
        pairs += _pairs(added, before, keep)
    return SequenceSums(sequences, rows, kv_tokens, pairs)


def _pairs(added: int, before: int, keep: int) -> int:
    """Query-key pairs of `added` causal queries after `before` keys, at most `keep` keys a query."""
    if not keep or before + added <= keep:
        return added * before + added * (added + 1) // 2
    growing = max(0, keep - before)
    return growing * before + growing * (growing + 1) // 2 + (added - growing) * keep
