"""Spin kernels: CTAs that run for a stated time and touch nothing.

They turn the engine, and the executor's spin kernel set, into an experiment on placement alone:
every time is exact, so timelines can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.machine import (
    Cost,
    Fabric,
    Footprint,
    Gaps,
    HostCosts,
    Interference,
    Machine,
    SmResources,
)
from models.work import Grid, Work, work

_HOST_CLASSES = ("torch", "triton", "cpp", "deepep", "event", "vote", "split_metadata", "alloc")


def spin(
    ctas: int,
    cta_ns: int,
    *,
    threads: int = 128,
    smem_bytes: int = 204800,
    read_bytes: int = 0,
) -> Work:
    """Work of `ctas` CTAs (tiles of a persistent grid) of `cta_ns` each; the default shared memory leaves one CTA per SM."""
    return work(
        "spin",
        read_bytes=read_bytes,
        ctas=ctas,
        cta_ns=cta_ns,
        threads=threads,
        smem_bytes=smem_bytes,
    )


@dataclass(frozen=True, slots=True)
class SpinCosts:
    """Exact costs of spin kernels on a machine of `num_sms` SMs; no other kind has one. `pull_ns` is
    what a CTA of a dynamic grid needs to fetch a tile, where that is not in the tile's time."""

    num_sms: int = 132
    sm: SmResources = field(default_factory=SmResources)
    pull_ns: int = 0

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """Waves on `sms` SMs times the CTA's time, a share of a persistent grid included."""
        if sms < 1:
            raise ValueError(f"a spin kernel needs at least one SM, not {sms}")
        at_once = sms * self.sm.ctas(self._cta(work, 1))
        cta_ns = work.dim("cta_ns") + (self.pull_ns if grid.kind == "dynamic" else 0)
        return Cost(-(-work.dim("ctas") // at_once) * cta_ns, "exact")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """All CTAs of a wave kernel; of a persistent one those that its budget lets be resident."""
        one = self._cta(work, 1)
        tiles = work.dim("ctas")
        if grid.kind == "wave":
            return replace(one, ctas=tiles)
        sms = min(grid.enforced_budget or self.num_sms, self.num_sms)
        return replace(one, ctas=min(tiles, sms * self.sm.ctas(one)), tiles=tiles)

    @staticmethod
    def _cta(work: Work, ctas: int) -> Footprint:
        if work.kind != "spin":
            raise ValueError(f"spin costs know the work kind 'spin' only, not {work.kind!r}")
        return Footprint(ctas, work.dim("threads"), 0, work.dim("smem_bytes"))


def spin_machine(
    num_sms: int = 132,
    *,
    gaps: Gaps | None = None,
    host_ns: int = 0,
    host: Mapping[str, int] | None = None,
    gpus_per_node: int = 8,
    nvlink_gbps: float = 400.0,
    nic_gbps: float = 50.0,
    interference: Interference | None = None,
    sm: SmResources | None = None,
    pull_ns: int = 0,
    **fields: Any,
) -> Machine:
    """A machine of spin kernels. The usual host classes cost `host_ns`, those of `host` what it says;
    links and interference are the caller's. `fields` go to `Machine` as they are."""
    classes = dict.fromkeys(_HOST_CLASSES, host_ns) | dict(host or {})
    return Machine(
        name="spin",
        num_sms=num_sms,
        hbm_gib=80.0,
        costs=SpinCosts(num_sms, sm or SmResources(), pull_ns),
        host=HostCosts(tuple(classes.items())),
        fabric=Fabric(gpus_per_node, nvlink_gbps, nic_gbps),
        interference=interference or Interference(achievable_hbm_gbps=4300.0),
        gaps=gaps or Gaps(),
        sm=sm or SmResources(),
        **fields,
    )
