"""Whether the GPUs of this machine hold a job and reach each other, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.job import Job
from executor.kernel_set import MissingResource
from executor.production_state import CACHE_PAD
from executor.production_weights import weight_bytes
from models.exchange_buffers import exchange_buffer_bytes

GIB = 2**30
CACHE_ENTRY_BYTES = 2


def need_bytes(job: Job, rank: int) -> int:
    """Bytes that a rank's run allocates at least: one layer's weights, which all layers share, the
    caches of all layers, the exchange buffers, and every buffer of the program once."""
    model, att = job.deployment.model, job.deployment.model.attention
    lens = zip(job.batch.new_tokens[rank], job.batch.prefix_tokens[rank], strict=True)
    tokens = [new + old for new, old in lens]
    longest = -(-max(tokens, default=0) // CACHE_PAD) * CACHE_PAD
    entry = (att.kv_lora_rank + att.qk_rope_head_dim) * CACHE_ENTRY_BYTES
    return (
        weight_bytes(model, job.deployment.experts_per_rank)
        + job.layers * len(tokens) * longest * entry
        + exchange_buffer_bytes(job.deployment)
        + sum(buffer.nbytes for buffer in job.program.rank_class(rank).buffers)
    )


def require_room(job: Job, gpu_bytes: Sequence[int], *, first_rank: int = 0) -> None:
    """MissingResource when a rank of this machine needs more than its GPU has; `gpu_bytes` is the
    memory of the GPUs of `first_rank` and those that follow it."""
    for rank, total in enumerate(gpu_bytes, first_rank):
        need = need_bytes(job, rank)
        if need > total:
            raise MissingResource(
                f"rank {rank}: {job.program.name!r} needs at least {need / GIB:.1f} GiB; "
                f"its GPU has {total / GIB:.1f} GiB"
            )


def require_peers(count: int, reaches: Callable[[int, int], bool]) -> None:
    """MissingResource unless every one of `count` GPUs can reach every other's memory."""
    for gpu in range(count):
        for peer in range(count):
            if gpu != peer and not reaches(gpu, peer):
                raise MissingResource(
                    f"GPU {gpu} has no peer access to GPU {peer}; exchanges within a machine need it"
                )
