"""Whether a schedule fits the GPU's memory, and the largest batch that would."""

from __future__ import annotations

from dataclasses import dataclass

from models.memory import GIB, Memory, lifetimes_of, memory
from models.sglang_rules import Refusal
from moe_overlap.answers.variation import size_of
from scenarios.pool import kv_tokens
from scenarios.resolve import Resolved
from schedules.program import Program, RankClass


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory of the fullest rank against what may be used, in bytes; `max_batch` counts sequences
    (decode) or tokens (prefill) of the rank that holds most (`prefill`); `pool` says that the KV cache is a
    pool that the server reserves."""

    needed: Memory
    limit: int
    max_batch: int
    pool: bool = False
    prefill: bool = False

    @property
    def refusal(self) -> Refusal | None:
        """Rule `memory` with by how much and what would fit, None when it fits."""
        over = self.needed.total - self.limit
        if over <= 0:
            return None
        pool = f"; {self.needed.kv_cache / GIB:.1f} GiB are the KV pool" if self.pool else ""
        return Refusal(
            rule="memory",
            reason=f"needs {self.needed.gib:.1f} GiB of the {self.limit / GIB:.1f} GiB that may be "
            f"used, {over / GIB:.1f} GiB too much{pool}; {self._fitting}",
            evidence="inferred",
        )

    @property
    def _fitting(self) -> str:
        """The largest batch; about, where activations depend on what its routing sends."""
        if self.max_batch == 0:
            weights, buffers = self.needed.weights / GIB, self.needed.exchange_buffers / GIB
            return f"no batch fits beside {weights:.1f} GiB of weights and {buffers:.1f} of exchange buffers"
        if self.prefill:
            return f"about {self.max_batch:,} tokens per rank fit"
        return f"the largest batch per rank that fits is {self.max_batch:,}"


def fit_of(
    resolved: Resolved, program: Program, smaller: tuple[Resolved, Program] | None = None
) -> Fit:
    """The fit of a program whose classes carry the buffers of a step. `smaller` is the same schedule at
    a smaller batch: what grows between the two grows on; without it activations, and the KV cache where
    no pool is reserved, are taken as proportional to the batch."""
    machine, fraction = resolved.deployment.machine, resolved.scenario.runtime.memory_fraction
    limit = int(fraction * machine.hbm_gib * GIB)
    needed = _fullest(resolved, program)
    size, pool = size_of(resolved), resolved.kv_pool_tokens is not None
    growing = needed.activations + (0 if pool else needed.kv_cache)
    if smaller is not None:
        grown = needed.total - _fullest(*smaller).total
        growing = grown * size // max(1, size - size_of(smaller[0]))
    room = limit - (needed.total - growing)
    unbounded = size if needed.total <= limit else 0
    most = max(0, room * size // growing) if growing > 0 else unbounded
    most = min(most, _pool_holds(resolved, size)) if pool else most
    return Fit(needed, limit, most, pool, resolved.batch.phase == "prefill")


def _pool_holds(resolved: Resolved, size: int) -> int:
    """The batch whose sequences fill the KV pool of the fullest rank."""
    deployment, batch = resolved.deployment, resolved.batch
    assert resolved.kv_pool_tokens is not None
    filled = max(kv_tokens(deployment, batch, rank) for rank in range(deployment.ep_size))
    return resolved.kv_pool_tokens * size // filled


def _fullest(resolved: Resolved, program: Program) -> Memory:
    return max((_needed(resolved, cls) for cls in program.classes), key=lambda m: m.total)


def _needed(resolved: Resolved, cls: RankClass) -> Memory:
    nbytes = {buffer.name: buffer.nbytes for buffer in cls.buffers}
    uses = [
        (
            [name for name in op.reads if name in nbytes],
            [name for name in op.writes if name in nbytes],
        )
        for op in cls.ops
    ]
    return memory(
        resolved.deployment,
        resolved.batch,
        cls.ranks[0],
        lifetimes_of(uses, nbytes),
        kv_pool_tokens=resolved.kv_pool_tokens,
    )
