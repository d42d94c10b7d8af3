"""How fast this machine's host is right now: what launches of a small sequential program take it.

The program is not the one that is measured: fixed sizes, two layers, op by op. Probes before, between
and after repeats tell the host's speed beside them, as `models.host` takes it. Every rank has a host of
its own, and the slowest rank's decides.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from executor.calibrate.cases import Case
from executor.calibrate.layers import HostTimer, dispatch_call, host_costs, timed_run
from executor.execute import execute
from executor.peers import gathered
from models.deployment import Batch, Deployment, Phase
from models.host import HostProbe, probed, slowest
from models.routing import Routing
from schedules.builders import build

if TYPE_CHECKING:
    from executor.production import Production
    from executor.production_setup import Session
    from executor.sessions import Sessions

LAYERS = 2
# Both are on the calibration's grid, so that no case of a validation has them.
PREFILL_TOKENS, DECODE_TOKENS = 768, 24
KV_TOKENS = 1024
# All ranks make as many runs, however fast their hosts are: 0.1 s on the hosts seen so far.
WARM_UPS, RUNS = 2, 10
# Prefill of more tokens draws so much power that the clock falls, and a probe would be a pause, in which a GPU at
# its power limit recovers.
LARGE_TOKENS = 3000
# A GEMM that was not compiled ahead is compiled by its first call.
DEADLINE_S = 240.0


def probe_case(deployment: Deployment, phase: Phase) -> Case:
    """The program that is timed: layers in sequence at a fixed size, each expert chosen as often as
    any other. A low-latency buffer that is smaller holds what it can."""
    tokens = PREFILL_TOKENS if phase == "prefill" else DECODE_TOKENS
    if deployment.a2a.mode == "low_latency":
        tokens = min(tokens, deployment.a2a.max_dispatch_tokens_per_rank)
    ranks, top_k = deployment.ep_size, deployment.model.top_k
    lens = (tokens,) if phase == "prefill" else (1,) * tokens
    prefix = (0,) if phase == "prefill" else (KV_TOKENS,) * tokens
    batch = Batch(phase, (lens,) * ranks, (prefix,) * ranks)
    experts = deployment.physical_experts
    ids = (np.arange(tokens * top_k, dtype=np.int32) % experts).reshape(tokens, top_k)
    routing = Routing((ids,) * ranks, experts, ranks)
    program = build(
        "sequential",
        deployment,
        batch,
        routing,
        layers=LAYERS,
        launch="eager",
        fold=False,
        allow_refused=True,
    )
    return Case(deployment, batch, routing, program)


@dataclass
class Prober:
    """Probes one rank's host on a live session; all ranks probe together, as exchanges have to meet."""

    session: Session
    kernels: Production
    case: Case

    def __post_init__(self) -> None:
        self._warm = False

    def probe(self) -> HostProbe:
        """Median ns by kind of launch of this rank's host, some 0.1 s. The first call compiles."""
        rank, calls = self.session.rank, not self.kernels.walks_calls
        for _ in range(0 if self._warm else WARM_UPS):
            execute(self.case.program, self.kernels, rank=rank)
        self._warm = True
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        timers = [timed_run(self.case.program, self.kernels, rank) for _ in range(RUNS)]
        if collects:
            gc.enable()
        found = replace(probe_of(timers, calls=calls), rank=rank)
        if calls and self.case.deployment.a2a.mode == "normal":
            (call,) = dispatch_call(self.session, self.case)
            found = replace(found, ns=(*found.ns, ("dispatch_call", int(call["ns"]))))
        return found


def settles(batch: Batch) -> bool:
    """Whether the clock has to settle before this batch is measured, so that nothing may come between its
    repeats."""
    return batch.phase == "prefill" and max(batch.tokens) > LARGE_TOKENS


def probe_of(timers: Sequence[HostTimer], *, calls: bool) -> HostProbe:
    """What the runs' host times say; `calls` as in `host_costs`."""
    runs = (host_costs([timer], calls=calls) for timer in timers)
    return probed([{str(r["class"]): int(r["ns"]) for r in records} for records in runs])


def of_slowest(probes: Sequence[HostProbe]) -> tuple[HostProbe, ...]:
    """For each of this rank's probes beside a measurement that of the rank whose host was the slowest at
    that moment; all ranks call it with as many, and return the same."""
    ranks: list[tuple[HostProbe, ...]] = gathered(tuple(probes))
    return tuple(slowest(moment) for moment in zip(*ranks, strict=True))


def open_prober(sessions: Sessions, deployment: Deployment, phase: Phase) -> Prober:
    """A prober on the session of a deployment; normal-mode exchanges of the Triton set need room for
    `PREFILL_TOKENS`."""
    session = sessions.of(deployment)
    case = probe_case(deployment, phase)
    kernels = sessions.kernel_set(
        session, case.batch, case.routing, layers=LAYERS, deadline_s=DEADLINE_S, poison=False
    )
    return Prober(session, kernels, case)
