"""GPU memory of a deployment under a schedule: what is resident, and the peak of what lives a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from models.deployment import Batch, Deployment
from models.exchange_buffers import exchange_buffer_bytes
from models.kv_cache import kv_bytes_per_token, kv_cache_bytes
from models.weights import weights_bytes

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer, and the first and last position (of ops in host order) at which it is in use."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank: model weights, KV cache, exchange buffers, the peak of activations, and what
    the CUDA context and libraries keep."""

    weights: int
    kv_cache: int
    exchange_buffers: int
    activations: int
    reserve: int

    @property
    def total(self) -> int:
        """All of it."""
        return (
            self.weights + self.kv_cache + self.exchange_buffers + self.activations + self.reserve
        )

    @property
    def gib(self) -> float:
        """All of it in GiB."""
        return self.total / GIB


def memory(
    deployment: Deployment,
    batch: Batch,
    rank: int,
    lifetimes: Iterable[Lifetime],
    *,
    kv_pool_tokens: int | None = None,
) -> Memory:
    """Memory of `rank` that holds `batch` while buffers live as `lifetimes` say.

    The KV cache is that of the batch's sequences, or all of the pool of `kv_pool_tokens` that the
    server reserves, however much of it they fill.
    """
    if kv_pool_tokens is None:
        kv_cache = kv_cache_bytes(deployment, batch, rank)
    else:
        kv_cache = kv_pool_tokens * kv_bytes_per_token(deployment)
    return Memory(
        weights=weights_bytes(deployment),
        kv_cache=kv_cache,
        exchange_buffers=exchange_buffer_bytes(deployment),
        activations=peak_bytes(lifetimes),
        reserve=_reserve_bytes(deployment),
    )


def static_pool_tokens(deployment: Deployment, mem_fraction_static: float) -> int:
    """KV-cache tokens that SGLang reserves on a rank: what weights leave of this fraction of the memory
    that was free before they were loaded. Activations, graphs and exchange buffers live in the rest of
    the GPU. Negative when the weights alone are larger (SGLang 0.5.23,
    `mem_cache/kv_cache_configurator.py: _profile_available_bytes`)."""
    static = int(mem_fraction_static * unloaded_bytes(deployment))
    return (static - weights_bytes(deployment)) // kv_bytes_per_token(deployment)


def unloaded_bytes(deployment: Deployment) -> int:
    """Memory of the GPU that is free before the weights are loaded: all but the machine's reserve."""
    return round(deployment.machine.hbm_gib * GIB) - _reserve_bytes(deployment)


def _reserve_bytes(deployment: Deployment) -> int:
    return round(deployment.machine.reserve_gib * GIB)


def lifetimes_of(
    uses: Iterable[tuple[Iterable[str], Iterable[str]]], nbytes: Mapping[str, int]
) -> tuple[Lifetime, ...]:
    """Lifetimes from the (reads, writes) of ops in host order: a buffer lives from its first use to
    its last. A buffer without bytes in `nbytes` is a KeyError."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, (reads, writes) in enumerate(uses):
        for name in (*reads, *writes):
            first.setdefault(name, position)
            last[name] = position
    return tuple(Lifetime(name, nbytes[name], start, last[name]) for name, start in first.items())


def peak_bytes(lifetimes: Iterable[Lifetime]) -> int:
    """The most bytes alive at one position, first and last included."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + life.nbytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.nbytes
    alive = peak = 0
    for position in sorted(changes):
        alive += changes[position]
        peak = max(peak, alive)
    return peak


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest size from 1 to `most` for which `fits` holds, 0 when none does; `fits` must not turn
    true again once it is false."""
    low, high = 0, 1
    while high < most and fits(high):
        low, high = high, min(most, 2 * high)
    if high == most and fits(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
