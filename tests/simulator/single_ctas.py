"""The plain reference of placement: every CTA by itself on SMs looked at one by one.

It knows one rank, streams without events, and kernels of CTAs that take a fixed time each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from models.machine import Gaps, SmResources
from schedules.program import Launch, Program
from tests.simulator.plain_room import PlainRoom


@dataclass
class _Kernel:
    name: str
    stream: str
    order: tuple[int, int, int]
    need: tuple[int, int, int, int]
    cta_ns: int
    gang: bool
    unplaced: int
    ready: int = -1
    start: int = -1
    running: int = 0
    just_freed: int = 0


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
        for kernel in tuple(self.queue):
            if kernel.gang and self.room.count(kernel.need, kernel.unplaced) < kernel.unplaced:
                return
            while kernel.unplaced and (sm := self.room.best(kernel.need)) is not None:
                own = kernel.just_freed > 0
                kernel.just_freed -= own
                begin = now if own or kernel.ready == now else now + self.reaction
                kernel.start = begin if kernel.start < 0 else kernel.start
                self.room.add(sm, kernel.need, -1)
                self.number += 1
                self.ctas.append((begin + kernel.cta_ns, self.number, kernel, sm))
                kernel.running += 1
                kernel.unplaced -= 1
            if kernel.unplaced:
                return
            self.queue.remove(kernel)


def simulate_ctas(program: Program, gaps: Gaps, num_sms: int) -> dict[str, tuple[int, int]]:
    """Start and end in ns of every kernel of the program's one rank, all launched at 0."""
    priority = {stream.name: stream.priority for stream in program.streams}
    streams: dict[str, list[_Kernel]] = {stream.name: [] for stream in program.streams}
    for index, step in enumerate(program.classes[0].steps):
        assert isinstance(step, Launch)
        op = step.op
        dims = dict(op.work.dims)
        level = min(-1, *priority.values()) if op.grid.gang else priority[op.stream]
        need = (dims["threads"], 0, dims["smem_bytes"], 1)
        streams[op.stream].append(
            _Kernel(
                op.name,
                op.stream,
                (level, 0, index),
                need,
                dims["cta_ns"],
                op.grid.gang,
                dims["ctas"],
            )
        )
    state = _State(PlainRoom(num_sms, SmResources()), gaps.reaction)
    due = {name: 0 for name, kernels in streams.items() if kernels}
    found: dict[str, tuple[int, int]] = {}
    while due or state.ctas:
        now = min([*due.values(), *(end for end, _, _, _ in state.ctas)])
        for end, number, kernel, sm in sorted(state.ctas, key=lambda cta: cta[:2]):
            if end == now:
                state.ctas.remove((end, number, kernel, sm))
                state.room.add(sm, kernel.need, 1)
                kernel.running -= 1
                kernel.just_freed += 1
                if not kernel.running and not kernel.unplaced:
                    found[kernel.name] = (kernel.start, now)
                    if streams[kernel.stream]:
                        due[kernel.stream] = now + gaps.stream
        for name in [name for name, at in due.items() if at == now]:
            kernel = streams[name].pop(0)
            kernel.ready, kernel.order = now, (kernel.order[0], now, kernel.order[2])
            state.queue.append(kernel)
            del due[name]
        state.place(now)
        for _, _, kernel, _ in state.ctas:
            kernel.just_freed = 0
        for kernel in state.queue:
            kernel.just_freed = 0
    return found
