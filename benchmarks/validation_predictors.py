"""What a case is predicted to take: by the engine with its band, and by five plainer ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

from benchmarks.gated import gate_machine, gated, makespan_ns, predicted
from benchmarks.validation_cases import Group
from models.machine import Machine
from models.work import EXCHANGE_KINDS, Work
from schedules.merit import critical_path
from schedules.program import Program
from schedules.timeline import Timeline
from simulator.bands import band

SKEW_NS = 50_000
HOST = "host"
SEEDS = range(2)
BF16_TFLOPS, FP8_TFLOPS, HBM_GBPS, NVLINK_GBPS = 989.0, 1979.0, 4800.0, 450.0


@dataclass(frozen=True)
class Prediction:
    """ns of all layers: the engine's, its band, and how much each kind of kernel leaves open."""

    ns: float
    low_ns: float
    high_ns: float
    doubt_ns: Mapping[str, float]

    def noise_against(self, other: Prediction) -> float:
        """Uncertainty of a difference: what both share of a kind's error cancels."""
        kinds = {*self.doubt_ns, *other.doubt_ns}
        own = (self.doubt_ns.get(kind, 0.0) - other.doubt_ns.get(kind, 0.0) for kind in kinds)
        return hypot(*own, self._phase, other._phase)

    @property
    def _phase(self) -> float:
        return max(0.0, (self.high_ns - self.low_ns) / 2 - hypot(*self.doubt_ns.values()))


def by_engine(group: Group, schedule: str, machine: Machine) -> tuple[Prediction, Timeline]:
    """The engine's prediction of one case."""
    program = group.on(machine).program(schedule)
    timeline = predicted(program, machine)
    ns = makespan_ns(timeline)
    doubts = doubts_of(program, machine, timeline)
    low = high = float(ns)
    if group.launch == "eager" or group.batch.phase == "prefill":
        low, high = _phases(program, machine, ns)
    noise = hypot(*doubts.values())
    return Prediction(ns, low - noise, high + noise, doubts), timeline


def _phases(program: Program, machine: Machine, ns: float) -> tuple[float, float]:
    """Least and most with ranks a little out of step."""
    spread = band(gated(program), gate_machine(machine), skew_ns=SKEW_NS, seeds=SEEDS)
    in_phase = spread.makespans_ns[0]
    return ns * spread.low_ns / in_phase, ns * spread.high_ns / in_phase


def doubts_of(program: Program, machine: Machine, timeline: Timeline) -> dict[str, float]:
    """Time on the critical path x the relative uncertainty of its cost: by kind, but for kernels that
    multiply, which share the clock and err together, and for the host."""
    ops = {(rank, op.name): op for rank in program.ranks for op in program.launches(rank)}
    spans = {(span.rank, span.op): span for span in timeline.spans}
    doubts: dict[str, float] = {}
    for item in critical_path(timeline):
        if item.op == HOST:
            doubts[HOST] = doubts.get(HOST, 0.0) + machine.host.error * item.ns
        op, span = ops.get((item.rank, item.op)), spans.get((item.rank, item.op))
        if op is None or span is None:
            continue
        error = machine.costs.alone(op.work, op.grid, span.sms or machine.num_sms).rel_error
        shared = machine.errs_with(op.work)
        doubts[shared] = doubts.get(shared, 0.0) + error * item.ns
    return doubts


def by_plain(group: Group, schedule: str, machine: Machine) -> dict[str, float]:
    """ns by `sum`, `max`, `SM share` and `roofline`. A schedule that overlaps nothing is a sum for all
    of them; of one that does, compute and communication run at the same time."""
    program = group.on(machine).program(schedule)
    overlapped = schedule in group.overlapped
    sums = [_sums(program, machine, rank) for rank in program.ranks]
    compute, communication = (max(pair[i] for pair in sums) for i in range(2))
    total = max(sum(pair) for pair in sums)
    roofs = [_roofs(program, rank) for rank in program.ranks]
    roof_compute, roof_communication = (max(pair[i] for pair in roofs) for i in range(2))
    share = machine.num_sms / (machine.num_sms - _exchange_sms(group))
    if not overlapped:
        return {
            "sum": total,
            "max": total,
            "SM share": total,
            "roofline": max(sum(pair) for pair in roofs),
        }
    return {
        "sum": total,
        "max": max(compute, communication),
        "SM share": max(compute * share, communication),
        "roofline": max(roof_compute, roof_communication),
    }


def _exchange_sms(group: Group) -> int:
    """SMs that an exchange holds while compute runs beside it."""
    a2a = group.deployment.a2a
    return a2a.num_sms if a2a.mode == "normal" else 0


def _sums(program: Program, machine: Machine, rank: int) -> tuple[float, float]:
    compute = communication = 0.0
    for op in program.launches(rank):
        ns = machine.costs.alone(op.work, op.grid, op.grid.enforced_budget or machine.num_sms).ns
        if op.work.kind in EXCHANGE_KINDS:
            communication += ns
        else:
            compute += ns
    return compute, communication


def _roofs(program: Program, rank: int) -> tuple[float, float]:
    """Data-sheet times: the larger of operations and bytes; exchanges at NVLink's rate, once for the
    send and receive halves of one exchange."""
    compute = communication = 0.0
    for op in program.launches(rank):
        if op.work.kind in EXCHANGE_KINDS:
            if op.role in ("whole", "send"):
                communication += _wire_ns(op.work)
            continue
        flops = sum(
            count / (FP8_TFLOPS if dtype == "fp8" else BF16_TFLOPS) / 1e3
            for dtype, count in op.work.flops
        )
        compute += max(flops, op.work.hbm_bytes / HBM_GBPS)
    return compute, communication


def _wire_ns(work: Work) -> float:
    """Half of the copies of a uniform routing on two ranks cross the link."""
    return work.dim("copies") * work.dim("payload") / work.dim("ep_size") / NVLINK_GBPS
