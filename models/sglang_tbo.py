"""Two-batch overlap as SGLang decides it: the operation list of a layer class, the SM rule, the vote.

Source of every rule: `models/rules/sglang-<version>.yaml`, section `tbo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.sglang_rules import Refusal, Refused, Rules, Strategy


@dataclass(frozen=True, slots=True)
class RankVote:
    """What one rank tells the others: whether it can split, its forward mode (`NONE` without a
    batch) and its split sequence index."""

    local_ok: bool
    mode: str
    seq_index: int | None


def tbo_strategy(
    rules: Rules, layer_class: str, mode: str, a2a: str, *, first_layer_dense: bool = False
) -> Strategy:
    """The operation list of a layer class, forward mode and a2a backend; `Refused` without one."""
    if first_layer_dense:
        raise Refused(rules.refusal("tbo.dense_layer", layer_class))
    of_class = [item for item in rules.tbo.strategies if item.is_for_class(layer_class)]
    if not of_class:
        raise Refused(rules.refusal("tbo.no_strategy", layer_class))
    for item in of_class:
        if mode in item.modes and item.is_for_backend(a2a):
            return item
    raise Refused(rules.refusal("tbo.no_strategy_for_mode", f"{layer_class} {mode}, a2a {a2a}"))


def deep_gemm_sms(strategy: Strategy, *, num_sms: int, comm_sms: int, hip: bool) -> int | None:
    """SMs that DeepGEMM kernels may use under the list; None when they are not limited."""
    rule = strategy.gemm_sms_hip if hip else strategy.gemm_sms
    return num_sms - comm_sms if rule == "minus_comm" else None


def local_can_run(
    rules: Rules, *, tbo: bool, mode: str, split_known: bool, a2a: str, low_latency: bool
) -> bool:
    """Whether one rank can split. `low_latency` is the mode that the exchange resolves to; a rank
    without a batch always can when the flag is on."""
    if not tbo:
        return False
    if mode in rules.tbo.vote_ignores:
        return True
    real_extend = mode in rules.tbo.extend_modes
    return split_known and not (real_extend and a2a != "none" and low_latency)


def vote_refusal(rules: Rules, votes: Sequence[RankVote]) -> Refusal | None:
    """Why the ranks together do not run two-batch overlap, or None when they do."""
    blocked = [rank for rank, vote in enumerate(votes) if not vote.local_ok]
    if blocked:
        return rules.refusal("tbo.vote", f"ranks {blocked} cannot split")
    modes = sorted({vote.mode for vote in votes if vote.mode not in rules.tbo.vote_ignores})
    if len(modes) != 1:
        return rules.refusal("tbo.vote", f"modes {', '.join(modes) or 'all idle'}")
    return None


def can_run_tbo(
    rules: Rules, votes: Sequence[RankVote]
) -> tuple[tuple[int | None, str | None], ...]:
    """Per rank the split sequence index and the common forward mode; (None, None) on every rank
    when the vote fails."""
    if vote_refusal(rules, votes) is not None:
        return ((None, None),) * len(votes)
    mode = next(vote.mode for vote in votes if vote.mode not in rules.tbo.vote_ignores)
    return tuple((vote.seq_index, mode) for vote in votes)
