"""What a case is predicted to take: by the engine with its band, and by five plainer ways."""

from __future__ import annotations

from benchmarks.validation_cases import Group
from models.machine import Machine
from models.power import costs_of
from models.work import EXCHANGE_KINDS, Work
from moe_overlap.gated import predicted
from moe_overlap.uncertain import Prediction, prediction
from schedules.program import Program
from schedules.timeline import Timeline
from simulator.load import as_loaded

BF16_TFLOPS, FP8_TFLOPS, HBM_GBPS, NVLINK_GBPS = 989.0, 1979.0, 4800.0, 450.0


def by_engine(group: Group, schedule: str, machine: Machine) -> tuple[Prediction, Timeline]:
    """The engine's prediction of one case."""
    return prediction(group.on(machine).program(schedule), machine)


def by_plain(group: Group, schedule: str, machine: Machine) -> dict[str, float]:
    """ns by `sum`, `max`, `SM share` and `roofline`. A schedule that overlaps nothing is a sum for all
    of them; of one that does, compute and communication run at the same time. Kernels take what they take
    in sequence, one after the other."""
    program = group.on(machine).program(schedule)
    sequence = group.on(machine).program("sequential")
    machine = as_loaded(sequence, machine, predicted(sequence, machine))
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
    costs = costs_of(machine, rank)
    for op in program.launches(rank):
        ns = costs.alone(op.work, op.grid, op.grid.enforced_budget or machine.num_sms).ns
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
