"""The same scenario at another batch, KV length, skew or EP size."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from scenarios.batch import batch_of
from scenarios.pool import check_pool
from scenarios.resolve import Resolved, resolve
from scenarios.schema import Parallel, Phase, Scenario


def size_of(resolved: Resolved) -> int:
    """The batch of the rank that holds most: sequences in decode, new tokens in prefill."""
    batch = resolved.batch
    if batch.phase == "decode":
        return max(map(len, batch.new_tokens))
    return max(batch.tokens)


def at_size(resolved: Resolved, size: int) -> Resolved:
    """With `size` sequences (decode) or tokens (prefill) on the fullest rank, the others in proportion."""
    return resolve(_sized(resolved, size), machine=resolved.deployment.machine)


def unrouted(resolved: Resolved, size: int) -> Resolved:
    """The same with the routing left as it is, which rules and memory do not look at."""
    scenario = _sized(resolved, size)
    return replace(resolved, scenario=scenario, batch=batch_of(scenario))


def halved(resolved: Resolved) -> Resolved | None:
    """Half the batch with the routing of its first half; None for a batch that has none."""
    size = size_of(resolved)
    if size < 2:
        return None
    half = unrouted(resolved, size // 2)
    stops = [min(pair) for pair in zip(half.batch.tokens, resolved.batch.tokens, strict=True)]
    if tuple(stops) != half.batch.tokens:
        return None
    return replace(half, routing=resolved.routing.slice([0] * len(stops), stops))


def _sized(resolved: Resolved, size: int) -> Scenario:
    factor = size / size_of(resolved)
    phase = resolved.scenario.phase
    if phase.decode is not None:
        counts = _scaled(phase.decode.batch_per_rank, factor)
        varied = Phase(decode=phase.decode.model_copy(update={"batch_per_rank": counts}))
    else:
        assert phase.prefill is not None  # the schema wants exactly one
        counts = _scaled(phase.prefill.tokens_per_rank, factor)
        varied = Phase(prefill=phase.prefill.model_copy(update={"tokens_per_rank": counts}))
    return resolved.scenario.model_copy(update={"phase": varied})


def at_kv(resolved: Resolved, factor: float) -> Resolved:
    """With `factor` times the cached tokens of each sequence (decode only)."""
    decode = resolved.scenario.phase.decode
    assert decode is not None
    kv = _scaled(decode.kv_tokens, factor)
    phase = Phase(decode=decode.model_copy(update={"kv_tokens": kv}))
    scenario = resolved.scenario.model_copy(update={"phase": phase})
    batch = batch_of(scenario)
    check_pool(scenario, resolved.deployment, batch, resolved.kv_pool_tokens)
    return replace(resolved, scenario=scenario, batch=batch)


def at_alpha(resolved: Resolved, alpha: float) -> Resolved:
    """With routing by a power law of this exponent."""
    spec = resolved.scenario.routing
    varied = spec.model_copy(update={"distribution": "power_law", "alpha": alpha})
    return _again(resolved, routing=varied)


def at_ep(resolved: Resolved, ep: int) -> Resolved:
    """On `ep` ranks, with the same batch on each."""
    tp = resolved.scenario.parallel.attention_tp
    return _again(resolved, parallel=Parallel(ep=ep, attention_tp=tp))


def _again(resolved: Resolved, **changes: object) -> Resolved:
    varied: Scenario = resolved.scenario.model_copy(update=changes)
    return resolve(varied, machine=resolved.deployment.machine)


def _scaled(value: int | tuple[int, ...], factor: float) -> int | tuple[int, ...]:
    if isinstance(value, int):
        return ceil(value * factor - 1e-9)
    return tuple(ceil(one * factor - 1e-9) for one in value)
