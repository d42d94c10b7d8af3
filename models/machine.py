"""A machine as the engine sees it: SMs, gaps, links, interference, and what a kernel costs alone.

A hardware profile (YAML) resolves to a `Machine`; nothing here knows about schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log, sqrt
from typing import Literal, Protocol

from models.power_law import PowerLaw
from models.work import Grid, Work

CostLabel = Literal["measured", "interpolated", "fitted", "roofline", "exact"]
# A stated error holds for this share of cases: what a band is to hold at least.
COVERED = 0.8


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of one kernel alone on `sms` SMs: integer nanoseconds, the label of the figure, and a
    relative uncertainty (0.1 is 10 %) that the label and its source justify. `shared_error` is the part of
    it that other kernels err with alike (None: all of it)."""

    ns: int
    label: CostLabel
    rel_error: float = 0.0
    shared_error: float | None = None

    @property
    def shared(self) -> float:
        """The shared part of the error."""
        return self.rel_error if self.shared_error is None else self.shared_error

    @property
    def own(self) -> float:
        """What no other kernel errs with; errors add up by their squares."""
        return sqrt(max(0.0, self.rel_error**2 - self.shared**2))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one launch puts on the SMs: how many CTAs, and what each CTA takes of an SM.

    `tiles` is the work of a persistent grid in equal pieces: CTA i of a static one takes tiles i,
    i + ctas, .. and ends after its own last one, CTAs of a dynamic one pull them until none is left.
    0: not known, all CTAs end together.
    """

    ctas: int
    threads: int = 128
    registers: int = 0
    smem_bytes: int = 0
    tiles: int = 0


class Costs(Protocol):
    """The one seam between work and time."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        """Time of `work` alone on the machine when it holds `sms` SMs throughout."""
        ...

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        """CTAs and resources of the launch, budget already applied."""
        ...


@dataclass(frozen=True, slots=True)
class Gaps:
    """Latencies of the launch machinery in ns (PHYSICS section 1 has the H200 figures).

    `stream`: successor ready after predecessor ends, same stream. `event`: the same with an event
    between. `cross_stream`: event across streams. `graph_node`, `graph_edge`: inside a graph, same
    stream and across streams. `reaction`: a waiting kernel after room appears. `graph_launch`:
    host cost of one graph replay. `turn`: how long a front end of the GPU takes to come to the next
    of its streams (docs/engine.md); 0 where nobody has measured it.
    """

    stream: int = 1800
    event: int = 3800
    cross_stream: int = 1700
    graph_node: int = 800
    graph_edge: int = 800
    reaction: int = 400
    graph_launch: int = 10000
    turn: int = 0


@dataclass(frozen=True, slots=True)
class SmResources:
    """What one SM offers. `carveouts`: the sizes, ascending, that its shared memory can be configured
    to while it is idle; none: always all of it."""

    threads: int = 2048
    registers: int = 65536
    smem_bytes: int = 233472
    cta_slots: int = 32
    carveouts: tuple[int, ...] = ()

    def carveout(self, cta: Footprint) -> int:
        """Shared memory of an idle SM that takes CTAs of this footprint: the least that holds as many
        as it would hold anyway."""
        need = self.ctas(cta) * cta.smem_bytes
        return next((size for size in self.carveouts if size >= need), self.smem_bytes)

    def ctas(self, cta: Footprint) -> int:
        """CTAs of this footprint that an empty SM takes; ValueError when not even one fits."""
        limits = [self.cta_slots]
        if cta.threads:
            limits.append(self.threads // cta.threads)
        if cta.registers:
            limits.append(self.registers // cta.registers)
        if cta.smem_bytes:
            limits.append(self.smem_bytes // cta.smem_bytes)
        if min(limits) < 1:
            raise ValueError(f"no SM with {self} takes a CTA of {cta}")
        return min(limits)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links of one machine: one-way bytes per ns (= GB/s) of each GPU's NVLink ports and NIC."""

    gpus_per_node: int
    nvlink_gbps: float
    nic_gbps: float
    flight_latency_ns: int = 1000
    internode_latency_ns: int = 8000

    def node(self, rank: int) -> int:
        """The node that holds `rank`."""
        return rank // self.gpus_per_node


@dataclass(frozen=True, slots=True)
class SizeLaw:
    """What an exchange of other than `tokens` tokens a rank slows by: c0 times a power of its size, between
    the least and the most tokens that were measured."""

    tokens: int
    power: float
    least: int
    most: int

    def factor(self, tokens: int) -> float:
        """Of c0, for an exchange of so many tokens a rank."""
        return float((min(max(tokens, self.least), self.most) / self.tokens) ** self.power)


@dataclass(frozen=True, slots=True)
class Interference:
    """Slowdown on disjoint SMs: `1 + c0 * busy_SM_share + c1 * rho / (1 - rho)`, rho the neighbours'
    HBM rate over `achievable_hbm_gbps`; one (c0, c1) per communication family. `compute` is the same
    pair for a compute kernel beside communication, `by_kind` replaces it for a kind of work; `rho_cap`
    bounds rho below 1. `by_exchange` replaces a family's pair for one direction: (family, `dispatch` or
    `combine`, its own SMs, c0, c1), read along the log of the SMs; `by_size` says of a family's direction
    what other sizes change. `errors` is the relative error of the law by victim: `normal dispatch`, a
    family, a kind of work, or `compute`. `moved` multiplies the slowdowns of the same victims; none but
    those of an ensemble are."""

    achievable_hbm_gbps: float
    by_family: tuple[tuple[str, float, float], ...] = ()
    compute: tuple[float, float] = (0.0, 0.0)
    rho_cap: float = 0.9
    by_kind: tuple[tuple[str, float, float], ...] = ()
    by_exchange: tuple[tuple[str, str, int, float, float], ...] = ()
    errors: tuple[tuple[str, float], ...] = ()
    moved: tuple[tuple[str, float], ...] = ()
    by_size: tuple[tuple[str, str, SizeLaw], ...] = ()

    def victim(self, family: str, kind: str) -> str:
        """The closest victim of a kernel that an error is stated of, "" for none; `family` is "" for
        compute."""
        known = dict(self.errors)
        exact = f"{family} {kind.partition('_')[0]}" if family else kind
        return next((name for name in (exact, family or "compute") if name in known), "")

    def coefficients(
        self, family: str, kind: str = "", sms: int = 0, tokens: int = 0
    ) -> tuple[float, float]:
        """(c0, c1) of a communication family, of a kernel of this kind on so many SMs and of so many tokens
        a rank (0: the size that was measured most) where that was measured; (0, 0) for a family without a
        figure."""
        direction = kind.partition("_")[0]
        points = [p[2:] for p in self.by_exchange if p[:2] == (family, direction)]
        if points:
            c0, c1 = _along_sms(points, sms)
            laws = (law for *of, law in self.by_size if of == [family, direction])
            return c0 * next((law.factor(tokens) for law in laws if tokens), 1.0), c1
        for name, c0, c1 in self.by_family:
            if name == family:
                return c0, c1
        return 0.0, 0.0

    def compute_coefficients(self, kind: str) -> tuple[float, float]:
        """(c0, c1) of a compute kernel of this kind of work."""
        for name, c0, c1 in self.by_kind:
            if name == kind:
                return c0, c1
        return self.compute


def slowdown_beside(c0: float, c1: float, busy: float, rho: float, rho_cap: float) -> float:
    """The law of `Interference`: beside neighbours that hold `busy` of all SMs and draw `rho` of the
    achievable HBM rate."""
    rho = min(rho_cap, rho)
    return 1.0 + c0 * busy + c1 * (rho / (1.0 - rho))


def _along_sms(points: list[tuple[int, float, float]], sms: int) -> tuple[float, float]:
    """(c0, c1) between the points' SMs, in order, linear in their log; beyond them the nearest."""
    at = min(max(sms, points[0][0]), points[-1][0])
    for low, high in pairwise(points):
        if at <= high[0]:
            share = log(at / low[0]) / log(high[0] / low[0])
            return low[1] + share * (high[1] - low[1]), low[2] + share * (high[2] - low[2])
    return points[0][1:]


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Host nanoseconds by class of launch or work (`torch`, `triton`, `cpp`, `deepep`, `event`,
    `vote`, `split_metadata`, ...), or by kind of work where that was measured. Unknown classes are an
    error, not a default. `error` is the relative uncertainty of them all."""

    by_class: tuple[tuple[str, int], ...]
    error: float = 0.0

    def ns(self, host_class: str, kind: str = "") -> int:
        """Cost of one call of this class, or of a launch of this kind of work where there is a figure;
        KeyError with the known ones."""
        for name, cost in self.by_class:
            if kind and name == kind:
                return cost
        for name, cost in self.by_class:
            if name == host_class:
                return cost
        known = ", ".join(name for name, _ in self.by_class)
        raise KeyError(f"no host cost for class {host_class!r}; known: {known}")


@dataclass(frozen=True)
class Machine:
    """Everything that `simulate` needs to know besides the program.

    `static_tail` is the coefficient `a` of the tail law: a static persistent kernel of which only n of
    N CTAs still run takes `(a + (1 - a) (n / N)^4)^(1/4)` of its full time; 1 is no speed-up.
    `static_tails` replace it for a kind of work. `signalled` has (kind of work, expert rows, SMs,
    ratio), ascending: how many times as long a kernel takes that polls or raises signals, none of
    which is late. `gpu` is the name of the GPU, "" where it has none. `front_ends` says which front
    end each stream of a program's list has, over and over; it counts where `Gaps.turn` is known.
    `flop_dtypes` are those that the GPU has a peak for, () where nothing says it. With a `power` law
    the costs are those at rest, and `loads` are (rank, load), () where they are yet to be found.
    `unlimited` kinds of kernels heed no budget. `measured_ranks` are the numbers of ranks between which
    exchanges were measured, ascending, () where none were.
    """

    name: str
    num_sms: int
    hbm_gib: float
    costs: Costs
    host: HostCosts
    fabric: Fabric
    interference: Interference
    gaps: Gaps = field(default_factory=Gaps)
    sm: SmResources = field(default_factory=SmResources)
    compute_capability: tuple[int, int] = (9, 0)
    profile_sha256: str = ""
    static_tail: float = 1.0
    static_tails: tuple[tuple[str, float], ...] = ()
    grids: tuple[tuple[str, Grid], ...] = ()
    reserve_gib: float = 0.0
    gpu: str = ""
    shared_clock: bool = False
    front_ends: tuple[int, ...] = (0, 1)
    flop_dtypes: tuple[str, ...] = ()
    signalled: tuple[tuple[str, int, int, float], ...] = ()
    power: PowerLaw | None = None
    unlimited: frozenset[str] = frozenset()
    measured_ranks: tuple[int, ...] = ()
    loads: tuple[tuple[int, float], ...] = ()

    def launched(self, work: Work, grid: Grid) -> Grid:
        """How the machine's libraries launch what a schedule asks for: kernels that take no number of SMs
        are not limited."""
        if grid.sm_budget is None or work.kind not in self.unlimited:
            return grid
        return replace(grid, limited_by="ignored")

    def signal_ratio(self, kind: str, rows: int, sms: int) -> float:
        """How many times as long signals make a kernel of so many expert rows, read along the logs of its
        SMs and rows; 1 where nobody has measured it."""
        by_rows: dict[int, list[tuple[int, float, float]]] = {}
        for name, size, at, ratio in self.signalled:
            if name == kind:
                by_rows.setdefault(size, []).append((at, ratio, 0.0))
        sizes = [(size, _along_sms(points, sms)[0], 0.0) for size, points in by_rows.items()]
        return _along_sms(sizes, rows)[0] if sizes else 1.0

    def tail(self, kind: str) -> float:
        """The coefficient of the tail law of a static kernel of this kind of work."""
        return dict(self.static_tails).get(kind, self.static_tail)

    def errs_with(self, work: Work) -> str:
        """What the error of a kernel's cost is common to: its kind, or the clock."""
        return "clock" if self.shared_clock and work.flops else work.kind

    def grid(self, kind: str) -> Grid:
        """How this machine's libraries launch a kernel of `kind`; a plain wave where the machine lists
        none. KeyError when it lists grids but not this one."""
        for name, grid in self.grids:
            if name == kind:
                return grid
        if self.grids:
            raise KeyError(f"machine {self.name!r} lists no grid for kernels of kind {kind!r}")
        return Grid()
