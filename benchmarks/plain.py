"""The plain predictors that the engine has to beat, from the same cost tables.

Each predicts the speed of two child batches over one whole batch, from the times of the kernels alone:
a sum; the larger of compute and communication of the whole batch; of two half batches; and of two half
batches with the send and receive kernels left on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from models.machine import Machine
from schedules.program import Launch, Program

RESIDENT = ("dispatch_send", "dispatch_recv", "combine_send", "combine_recv")
TRANSFERS = (*RESIDENT, "dispatch", "combine", "notify", "layout", "flight")


@dataclass(frozen=True)
class Alone:
    """Times of one MoE layer's kernels alone, in ns, over all its child batches."""

    compute: float
    resident: float
    transfer: float

    @property
    def communication(self) -> float:
        """Kernels and flights of the exchanges."""
        return self.resident + self.transfer

    @property
    def total(self) -> float:
        """All of it, one after the other."""
        return self.compute + self.communication


def alone(program: Program, machine: Machine, layer: int = 0) -> Alone:
    """The kernels of one layer of the busiest class of ranks, each alone on the machine."""
    return max((_of_class(program, machine, i, layer) for i in range(len(program.classes))),
               key=lambda times: times.total)  # fmt: skip


def _of_class(program: Program, machine: Machine, index: int, layer: int) -> Alone:
    compute = resident = transfer = 0.0
    for kernel in kernels_alone(program, machine, index, layer):
        if kernel.kind in RESIDENT:
            resident += kernel.ns
        elif kernel.kind in TRANSFERS:
            transfer += kernel.ns
        else:
            compute += kernel.ns
    return Alone(compute, resident, transfer)


class KernelAlone(NamedTuple):
    """A kernel's or a flight's time alone; `op` is the exchange's name for a flight."""

    kind: str
    op: str
    ns: int


def kernels_alone(
    program: Program, machine: Machine, index: int = -1, layer: int = 0
) -> Iterator[KernelAlone]:
    """The kernels and flights of one layer of a class of ranks (the last is the busiest). A flight starts
    as its send writes: it counts with what it takes beyond the send, so that an exchange takes what its
    table says."""
    steps = program.classes[index].steps
    ops = [s.op for s in steps if isinstance(s, Launch) and s.op.layer == layer]
    flights = {exchange.name: exchange.flight for exchange in program.exchanges}
    for op in ops:
        sms = op.grid.enforced_budget or machine.num_sms
        ns = machine.costs.alone(op.work, op.grid, sms).ns
        yield KernelAlone(op.work.kind, op.name, ns)
        flight = flights[op.exchange] if op.exchange and op.role == "send" else None
        if op.exchange and flight is not None:
            flown = machine.costs.alone(flight, op.grid, machine.num_sms).ns
            yield KernelAlone("flight", op.exchange, max(0, flown - ns))


def predictions(whole: Alone, halves: Alone) -> dict[str, float]:
    """Speed of two child batches over the whole batch, by predictor; `whole` is one batch on one stream,
    `halves` the two children together."""
    times = {
        "sum": halves.total,
        "max of whole batch": max(whole.compute, whole.communication),
        "max of half batches": max(halves.compute, halves.communication),
        "max, sends on compute": max(halves.compute + halves.resident, halves.communication),
    }
    return {name: whole.total / ns for name, ns in times.items()}
