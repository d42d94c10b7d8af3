"""Sessions of a GPU kernel set on one rank: one for each exchange mode and fusion, all else shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from executor.job import GpuSet
from executor.production import Production
from executor.production_setup import (
    Session,
    kernels_for,
    open_deep_ep,
    open_session,
    weights_of,
)
from models.deployment import Batch, Deployment
from models.routing import Routing


@dataclass
class Sessions:
    """Opens sessions of the set called `kernels` as they are asked for. Normal-mode exchanges get room
    for `most_sms` SMs (production) and for `most_tokens` tokens a rank (Triton)."""

    rank: int
    ranks: int
    group: Any
    most_sms: int
    seed: int
    beat: Callable[[str], None]
    kernels: GpuSet = "production"
    most_tokens: int = 0
    _opened: dict[tuple[str, int], Session] = field(default_factory=dict)

    def of(self, deployment: Deployment) -> Session:
        """The session of the deployment's mode and fusion, its exchange on the deployment's SMs.
        MissingResource where a library, a GPU, memory or a peer is missing."""
        key = (deployment.a2a.mode, deployment.fusion.slots)
        if key not in self._opened:
            self.beat(f"opening {deployment.a2a.mode} exchanges")
            self._opened[key] = self._open(deployment)
        session = self._opened[key]
        if self.kernels == "production" and deployment.a2a.mode == "normal":
            session.exchange.set_num_sms(deployment.a2a.num_sms)
        return replace(session, deployment=deployment)

    def kernel_set(
        self, session: Session, batch: Batch, routing: Routing, *, layers: int, **options: Any
    ) -> Production:
        """Kernels for one batch; `options` are those of `Production`."""
        if self.kernels == "production":
            return kernels_for(session, batch, routing, layers=layers, **options)
        from executor.triton_set import triton_kernels

        return triton_kernels(session, batch, routing, layers=layers, **options)

    def _open(self, deployment: Deployment) -> Session:
        if not self._opened:
            return self._first(deployment)
        other = next(iter(self._opened.values()))
        exchange = self._exchange(deployment, other)
        if self.kernels == "production" and deployment.a2a.mode == "normal":
            other.pool.adopt("comm", exchange.comm_stream)
        weights = other.weights
        if deployment.fusion.slots != other.deployment.fusion.slots:
            weights = weights_of(deployment, self.rank, self.seed, other.device)
        return replace(other, deployment=deployment, exchange=exchange, weights=weights)

    def _first(self, deployment: Deployment) -> Session:
        where = (deployment, self.rank, self.group)
        if self.kernels == "production":
            return open_session(*where, most_sms=self.most_sms, seed=self.seed, beat=self.beat)
        from executor.triton_set import open_triton_session

        return open_triton_session(
            *where, most_tokens=self.most_tokens, seed=self.seed, beat=self.beat
        )

    def _exchange(self, deployment: Deployment, other: Session) -> Any:
        if self.kernels == "production":
            return open_deep_ep(deployment, self.group, most_sms=self.most_sms)
        from executor.triton_exchange import open_exchange

        return open_exchange(deployment, self.most_tokens, self.group, other.device)
