"""The KV pool that a server reserves when it starts, and whether a batch's sequences fit it."""

from __future__ import annotations

from models.deployment import Batch, Deployment
from models.kv_cache import kv_bytes_per_token, kv_cache_bytes
from models.memory import GIB, static_pool_tokens, unloaded_bytes
from models.weights import weights_bytes
from scenarios.errors import BatchTooLarge
from scenarios.schema import Scenario


def kv_pool_tokens(scenario: Scenario, deployment: Deployment) -> int | None:
    """Tokens of the pool on each rank: what `runtime.mem_fraction_static` leaves beside the weights, at
    most `runtime.max_total_tokens`; None where neither is given.

    ScenarioError for a fraction that does not even hold the weights.
    """
    fraction, limit = scenario.runtime.mem_fraction_static, scenario.runtime.max_total_tokens
    if fraction is None:
        return limit
    tokens = static_pool_tokens(deployment, fraction)
    if tokens < 1:
        weights, free = weights_bytes(deployment), unloaded_bytes(deployment)
        raise scenario.fault(
            ("runtime", "mem_fraction_static"),
            f"leaves nothing for the KV pool: the weights take {weights / GIB:.1f} of the "
            f"{free / GIB:.1f} GiB that are free before they are loaded",
            allowed=f"more than {weights / free:.3f}"
            if weights < free
            else "a machine that holds them",
        )
    return tokens if limit is None else min(tokens, limit)


def check_pool(
    scenario: Scenario, deployment: Deployment, batch: Batch, pool_tokens: int | None
) -> None:
    """BatchTooLarge when the sequences of a rank need more KV cache than the pool of a rank holds."""
    if pool_tokens is None:
        return
    needs = [kv_tokens(deployment, batch, rank) for rank in range(deployment.ep_size)]
    most = max(needs)
    if most <= pool_tokens:
        return
    decode = scenario.phase.decode is not None
    raise scenario.fault(
        ("phase", "decode", "batch_per_rank")
        if decode
        else ("phase", "prefill", "tokens_per_rank"),
        f"rank {needs.index(most)} needs the KV cache of {most:,} tokens, the pool holds "
        f"{pool_tokens:,} ({_reason(scenario, pool_tokens)})",
        allowed="a smaller batch, or a larger pool",
        kind=BatchTooLarge,
    )


def kv_tokens(deployment: Deployment, batch: Batch, rank: int) -> int:
    """Tokens of KV cache that the sequences of a rank's attention group fill."""
    return kv_cache_bytes(deployment, batch, rank) // kv_bytes_per_token(deployment)


def _reason(scenario: Scenario, pool_tokens: int) -> str:
    runtime = scenario.runtime
    if pool_tokens == runtime.max_total_tokens:
        return f"runtime.max_total_tokens {pool_tokens}"
    return f"runtime.mem_fraction_static {runtime.mem_fraction_static:g}"
