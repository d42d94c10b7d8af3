"""The plain reference of placement: every CTA by itself on SMs looked at one by one.

It knows one rank, streams without events, and kernels of CTAs or tiles that take a fixed time each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from models.machine import Gaps, SmResources
from models.work import GridKind
from schedules.program import Launch, Op, Program
from tests.simulator.plain_room import Free, PlainRoom


@dataclass
class _Kernel:
    name: str
    stream: str
    order: tuple[int, int, int]
    arrival: tuple[int, int]  # of the stream's priority and the host's order
    need: Free
    kind: GridKind
    gang: bool
    tiles: int
    tile_ns: int
    ctas: int
    unplaced: int
    pool: int
    ready: int = -1
    start: int = -1
    running: int = 0
    just_freed: int = 0

    def take(self) -> int:
        """ns until the CTA that is placed next looks up; 0 when it finds nothing to do."""
        index = self.ctas - self.unplaced
        if self.kind == "static":
            return len(range(index, self.tiles, self.ctas)) * self.tile_ns
        if self.kind == "dynamic":
            return self.pull()
        return self.tile_ns

    def pull(self) -> int:
        """ns until the next look at the pool of tiles."""
        self.pool -= 1
        return self.tile_ns if self.pool >= 0 else 0


@dataclass
class _State:
    room: PlainRoom
    reaction: int
    queue: list[_Kernel] = field(default_factory=list)
    ctas: list[tuple[int, int, _Kernel, int]] = field(
        default_factory=list
    )  # end, number, kernel, SM
    number: int = 0

    def place(self, now: int) -> None:
        """Give free room to the queue, head first."""
        self.queue.sort(key=lambda kernel: kernel.order)
        if all(kernel.ready == now for kernel in self.queue):  # no gang has anybody to pass
            self.queue.sort(key=lambda kernel: kernel.arrival)
        for kernel in tuple(self.queue):
            if kernel.gang and self.room.count(kernel.need, kernel.unplaced) < kernel.unplaced:
                break
            while kernel.unplaced and (sm := self.room.best(kernel.need)) is not None:
                own = kernel.just_freed > 0
                kernel.just_freed -= own
                begin = now if own or kernel.ready == now else now + self.reaction
                kernel.start = begin if kernel.start < 0 else kernel.start
                self.run(begin, kernel, sm, kernel.take())
                kernel.unplaced -= 1
            if kernel.unplaced:
                break
            self.queue.remove(kernel)
        for kernel in [*self.queue, *(cta[2] for cta in self.ctas)]:
            kernel.just_freed = 0

    def run(self, begin: int, kernel: _Kernel, sm: int, ns: int) -> None:
        """A CTA on an SM, if it has anything to do."""
        if ns:
            self.room.add(sm, kernel.need, -1)
            self.number += 1
            self.ctas.append((begin + ns, self.number, kernel, sm))
            kernel.running += 1

    def end_ctas(self, now: int) -> list[_Kernel]:
        """Let CTAs end that are due, or pull their next tile; returns the kernels that ended."""
        ended = []
        for cta in sorted((c for c in self.ctas if c[0] == now), key=lambda cta: cta[:2]):
            _, _, kernel, sm = cta
            self.ctas.remove(cta)
            self.room.add(sm, kernel.need, 1)
            kernel.running -= 1
            if kernel.kind == "dynamic" and (ns := kernel.pull()):
                self.run(now, kernel, sm, ns)
                continue
            kernel.just_freed += 1
            if kernel.kind == "dynamic" and kernel.unplaced:  # they find nothing when they come
                kernel.unplaced = 0
                self.queue.remove(kernel)
            if not kernel.running and not kernel.unplaced:
                ended.append(kernel)
        return ended


def _kernel(op: Op, index: int, level: int, priority: int, num_sms: int) -> _Kernel:
    dims = dict(op.work.dims)
    need = (dims["threads"], 0, dims["smem_bytes"], 1)
    tiles = dims["ctas"]
    ctas = tiles if op.grid.kind == "wave" else min(tiles, op.grid.sm_budget or num_sms)
    return _Kernel(
        op.name,
        op.stream,
        (level, 0, index),
        (priority, index),
        need,
        op.grid.kind,
        op.grid.gang,
        tiles,
        dims["cta_ns"],
        ctas,
        ctas,
        tiles,
    )


def simulate_ctas(program: Program, gaps: Gaps, num_sms: int) -> dict[str, tuple[int, int]]:
    """Start and end in ns of every kernel of the program's one rank, all launched at 0. A persistent
    CTA fills an SM."""
    priority = {stream.name: stream.priority for stream in program.streams}
    streams: dict[str, list[_Kernel]] = {stream.name: [] for stream in program.streams}
    for index, step in enumerate(program.classes[0].steps):
        assert isinstance(step, Launch)
        op = step.op
        level = min(-1, *priority.values()) if op.grid.gang else priority[op.stream]
        streams[op.stream].append(_kernel(op, index, level, priority[op.stream], num_sms))
    state = _State(PlainRoom(num_sms, SmResources()), gaps.reaction)
    due = {name: 0 for name, kernels in streams.items() if kernels}
    found: dict[str, tuple[int, int]] = {}
    while due or state.ctas:
        now = min([*due.values(), *(cta[0] for cta in state.ctas)])
        for kernel in state.end_ctas(now):
            found[kernel.name] = (kernel.start, now)
            if streams[kernel.stream]:
                due[kernel.stream] = now + gaps.stream
        for name in [name for name, at in due.items() if at == now]:
            kernel = streams[name].pop(0)
            kernel.ready, kernel.order = now, (kernel.order[0], now, kernel.order[2])
            state.queue.append(kernel)
            del due[name]
        state.place(now)
    return found
