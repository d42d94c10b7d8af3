"""What every rank holds in one step, from the scenario's phase."""

from __future__ import annotations

from models.deployment import Batch
from scenarios.errors import BatchTooLarge
from scenarios.schema import MAX_TOKENS, Decode, Prefill, Scenario

Lengths = tuple[tuple[int, ...], ...]
MAX_SEQUENCES = 1 << 20


def batch_of(scenario: Scenario) -> Batch:
    """The batch of all ranks; ScenarioError when lists do not fit the ranks or nothing is to do."""
    phase = scenario.phase
    if phase.decode is not None:
        batch = _decode(scenario, phase.decode)
    else:
        assert phase.prefill is not None  # the schema wants exactly one
        batch = _prefill(scenario, phase.prefill)
    if not any(batch.tokens):
        raise scenario.fault(("phase",), "no rank has a token")
    return batch


def _decode(scenario: Scenario, decode: Decode) -> Batch:
    ranks, drafts = scenario.parallel.ep, scenario.speculative.draft_tokens
    counts = _per_rank(scenario, ("phase", "decode", "batch_per_rank"), decode.batch_per_rank)
    cached = _per_rank(scenario, ("phase", "decode", "kv_tokens"), decode.kv_tokens)
    if sum(counts) > MAX_SEQUENCES:
        raise scenario.fault(
            ("phase", "decode", "batch_per_rank"),
            f"makes {sum(counts)} sequences on {ranks} ranks",
            allowed=f"{MAX_SEQUENCES} in all",
            kind=BatchTooLarge,
        )
    new = tuple((max(1, drafts),) * count for count in counts)
    prefix = tuple((kv,) * count for count, kv in zip(counts, cached, strict=True))
    return Batch("decode", new, prefix)


def _prefill(scenario: Scenario, prefill: Prefill) -> Batch:
    if scenario.speculative.draft_tokens:
        raise scenario.fault(
            ("speculative", "draft_tokens"), "drafts are verified in decode only", allowed="0"
        )
    tokens = _per_rank(scenario, ("phase", "prefill", "tokens_per_rank"), prefill.tokens_per_rank)
    if sum(tokens) > MAX_TOKENS:
        raise scenario.fault(
            ("phase", "prefill", "tokens_per_rank"),
            f"makes {sum(tokens)} tokens in all",
            allowed=f"{MAX_TOKENS} over all ranks",
            kind=BatchTooLarge,
        )
    new = tuple(_cut(count, prefill.sequence_tokens) for count in tokens)
    prefix = tuple((prefill.prefix_tokens,) * len(lengths) for lengths in new)
    return Batch("prefill", new, prefix)


def _cut(tokens: int, sequence_tokens: int) -> tuple[int, ...]:
    """Whole sequences, and a shorter last one for what remains."""
    whole, rest = divmod(tokens, sequence_tokens)
    return (sequence_tokens,) * whole + ((rest,) if rest else ())


def _per_rank(
    scenario: Scenario, path: tuple[str, ...], value: int | tuple[int, ...]
) -> tuple[int, ...]:
    ranks = scenario.parallel.ep
    if isinstance(value, int):
        return (value,) * ranks
    if len(value) != ranks:
        raise scenario.fault(
            path, f"has {len(value)} entries for {ranks} ranks", allowed="one entry per rank"
        )
    return value
