"""Interference between kernels that run at the same time on one rank (rule 5).

HBM is one resource: when demands exceed what is achievable, all its users are cut alike. A communication
kernel is bound by latency, so it slows with the share of SMs that its neighbours keep busy and with
their HBM rate (`models.machine.slowdown_beside`), with coefficients of its direction and its own SMs where
they are known; a compute kernel slows by the same law beside communication, with those of its kind. The
larger of the two reasons holds; they are never multiplied, and kernels are never paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.machine import Machine, slowdown_beside

if TYPE_CHECKING:
    from simulator.kernel import Kernel


def slowdowns(active: Sequence[Kernel], machine: Machine) -> list[float]:
    """Slowdown of each kernel against its time alone, 1 or more, in the order given."""
    if len(active) < 2:
        return [1.0] * len(active)
    demands = [kernel.hbm_gbps() for kernel in active]
    cut = hbm_cut(demands, machine.interference.achievable_hbm_gbps)
    return [
        max(cut if demand else 1.0, _latency(kernel, active, demands, cut, machine))
        for kernel, demand in zip(active, demands, strict=True)
    ]


def hbm_cut(demands: Sequence[float], achievable: float) -> float:
    """By how much HBM slows everyone who uses it: demand over what is achievable, 1 at least. A kernel that asks
    for more on its own was measured with it, so its demand raises what is achievable."""
    total = sum(demands)
    return max(1.0, total / max(achievable, *demands)) if total else 1.0


def _latency(
    kernel: Kernel,
    active: Sequence[Kernel],
    demands: Sequence[float],
    cut: float,
    machine: Machine,
) -> float:
    """Slowdown by memory latency: every neighbour counts for communication, communication alone
    counts for compute."""
    rules = machine.interference
    family = kernel.family
    sms, gbps = 0, 0.0
    for other, demand in zip(active, demands, strict=True):
        if other is not kernel and (family or other.family):
            sms += other.sms
            gbps += demand / cut
    if not sms:
        return 1.0
    if family:
        tokens = dict(kernel.op.work.dims).get("tokens", 0)
        c0, c1 = rules.coefficients(family, kernel.op.work.kind, kernel.sms, tokens)
    else:
        c0, c1 = rules.compute_coefficients(kernel.op.work.kind)
    busy = min(1.0, sms / machine.num_sms)
    rho = gbps / rules.achievable_hbm_gbps
    slow = slowdown_beside(c0, c1, busy, rho, rules.rho_cap)
    if not rules.moved:
        return slow
    victim = rules.victim(family, kernel.op.work.kind)
    return max(1.0, slow * dict(rules.moved).get(victim, 1.0))
