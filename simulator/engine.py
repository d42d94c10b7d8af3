"""The engine: a program on a machine becomes a predicted timeline.

Hosts, streams, kernels and flights act on one SimPy clock. Whenever all that happens at an instant
has happened, freed SMs go to those who wait, and everything that runs gets its pace anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from itertools import cycle

from models.machine import Machine
from models.power import costs_of
from schedules.program import Program, RankClass, Signal
from schedules.timeline import Timeline
from simulator.clock import Clock
from simulator.counters import Counters
from simulator.deadlock import explain
from simulator.device import Device
from simulator.exchanges import Gate
from simulator.host import Host
from simulator.links import Links
from simulator.load import settled
from simulator.low_latency import Flown
from simulator.prices import Prices
from simulator.spans import timeline
from simulator.streams import FrontEnd, StreamQueue
from simulator.wiring import Exchanges

_HIGH_PRIORITY = -1  # CUDA's first level above a default stream, where gangs belong


def simulate(
    program: Program,
    machine: Machine,
    *,
    fold: bool = True,
    skew_ns: int | None = None,
    seed: int = 0,
    counters: bool = True,
    guess: Mapping[int, float] | None = None,
) -> Timeline:
    """The timeline that `machine` is predicted to give for `program`.

    `fold` simulates one rank for each class of ranks; without it every rank runs by itself. With
    `skew_ns` each simulated rank's host starts at a seeded offset of up to that many ns. Raises
    `Deadlock` with the cycle when the program cannot end, ValueError for a program that is not sound.
    A machine with a power law runs it several times, until its load is that of the timeline; `guess` has
    loads of ranks that are likely, such as those of the same schedule with other layers.
    """
    run = runner(program, fold=fold, skew_ns=skew_ns, seed=seed, counters=counters)
    return settled(program, machine, run, guess)[0]


def runner(
    program: Program,
    *,
    fold: bool = True,
    skew_ns: int | None = None,
    seed: int = 0,
    counters: bool = True,
) -> Callable[[Machine], Timeline]:
    """One run of what `simulate` runs, on a machine under the loads that it has."""
    simulated = {cls.ranks[0]: cls for cls in program.classes}
    if not fold:
        simulated = {rank: cls for cls in program.classes for rank in cls.ranks}
    starts = host_starts(simulated, skew_ns, seed)

    def run(at: Machine) -> Timeline:
        engine = Engine(program, at, dict(sorted(simulated.items())), starts, fold=fold)
        engine.run(counters=counters)
        return engine.timeline()

    return run


def host_starts(ranks: Iterable[int], skew_ns: int | None, seed: int) -> dict[int, int]:
    """When each rank's host starts, in ns: all at 0 without a skew."""
    offsets = random.Random(seed)
    return {rank: offsets.randint(0, skew_ns) if skew_ns else 0 for rank in sorted(ranks)}


def prices_by_rank(machine: Machine, ranks: Iterable[int]) -> dict[int, Prices]:
    """What kernels cost on each rank; ranks under one load share it."""
    loads, shared = dict(machine.loads), dict[float | None, Prices]()
    result = {}
    for rank in ranks:
        load = loads.get(rank)
        if load not in shared:
            shared[load] = Prices(machine, costs_of(machine, rank))
        result[rank] = shared[load]
    return result


class Engine:
    """One run: the clock, one host and one device per simulated rank, exchanges and links."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        simulated: Mapping[int, RankClass],
        starts: Mapping[int, int],
        *,
        fold: bool,
    ) -> None:
        self.clock = Clock()
        self.program = program
        self.machine = machine
        self.highest_priority = min([_HIGH_PRIORITY, *(s.priority for s in program.streams)])
        self._signals = {signal.name: signal for signal in program.signals}
        self._links = Links(machine.fabric)
        self._counters = Counters(self._links)
        self._flown: list[tuple[str, Flown]] = []
        self._changed: dict[Device, None] = {}
        prices = prices_by_rank(machine, simulated)
        for rank, cls in simulated.items():
            for op in cls.ops:
                # A cost that is missing is an error before the run.
                prices[rank].launched(op.work, op.grid)
        self._exchanges = Exchanges(
            self.clock,
            program,
            machine,
            next(iter(prices.values()), Prices(machine)),
            self._links,
            {r: cls if fold else RankClass((r,), cls.steps) for r, cls in simulated.items()},
            lambda name, flown: self._flown.append((name, flown)),
        )
        self.devices: list[Device] = []
        self.hosts: list[Host] = []
        self.streams: list[StreamQueue] = []
        for rank, cls in simulated.items():
            device = Device(rank, self.clock, machine, prices[rank], self)
            fronts = {number: FrontEnd(machine.gaps.turn) for number in machine.front_ends}
            queues = {
                s.name: StreamQueue(self.clock, device, s, fronts[number])
                for s, number in zip(program.streams, cycle(machine.front_ends), strict=False)
            }
            host = Host(self.clock, machine, device, queues, cls.steps, starts[rank])
            self.devices.append(device)
            self.hosts.append(host)
            self.streams.extend(queues.values())
        for host in self.hosts:
            self.clock.process(host.run())
        for queue in self.streams:
            self.clock.process(queue.run())

    def run(self, *, counters: bool = True) -> None:
        """Run to the end: the algorithm."""
        while self.clock.runs:
            now = self.clock.pass_instant()
            self._place(now)
            self._share(now)
            if counters:
                self._count(now)
            self._changed.clear()
        if not all(host.done for host in self.hosts) or any(s.busy for s in self.streams):
            raise explain(self.clock.ns, self.hosts, self.streams)

    def _place(self, now: int) -> None:
        """Freed SMs go to the ready kernels; exchanges whose kernels are now all placed begin."""
        for device in tuple(self._changed):
            device.place(now)

    def _share(self, now: int) -> None:
        """What runs gets its pace beside its present neighbours, and its share of the links."""
        for device in self._changed:
            device.share(now)
        self._links.share(now)

    def _count(self, now: int) -> None:
        for device in self._changed:
            self._counters.note(now, device)

    def touch(self, device: Device) -> None:
        """Something changed on this device at this instant."""
        self._changed[device] = None

    def gate(self, exchange: str, role: str, rank: int) -> Gate:
        """One role of an exchange that `rank` takes part in."""
        return self._exchanges.gate(exchange, role, rank)

    def family(self, exchange: str) -> str:
        """The family of an exchange."""
        return self._exchanges.named(exchange).family

    def signal(self, name: str) -> Signal:
        """The signal called `name`; ValueError when the program has none."""
        if name not in self._signals:
            raise ValueError(f"program {self.program.name!r} has no signal {name!r}")
        return self._signals[name]

    def timeline(self) -> Timeline:
        """What has happened, as a predicted timeline."""
        kernels = [kernel for device in self.devices for kernel in device.ended]
        return timeline(self.program, self.machine, kernels, self._flown, self._counters.result())
