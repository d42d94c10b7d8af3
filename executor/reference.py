"""The reference kernel set: plain torch on the CPU, streams emulated in any legal order.

What a kernel computes is looked up by its kernel name (the tail of the op's name) in a table of
plain functions; `executor.arithmetic` has the table for the layers that `models.layer` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from executor.emulator import Emulator, Order, Starved
from executor.job import REFERENCE
from executor.kernel_set import MissingKernel, PeerLost, kernel_name
from executor.transport import Message, Transport
from schedules.program import Exchange, Op, Program, RegionKind
from schedules.timeline import Span


class Poison:
    """What an unwritten buffer holds. Whatever is computed from it is poison as well."""

    def __repr__(self) -> str:
        return "POISON"


POISON = Poison()
SENT = "sent"


@dataclass
class Call:
    """One kernel's view of the run: its op, its rank's buffers, and what the host knew at launch.

    `state` is what the set was built with (weights, inputs, routing): the table's own business.
    """

    op: Op
    rank: int
    buffers: dict[str, Any]
    state: Any
    exchange: Exchange | None = None
    host: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        """The buffer's content, POISON when nothing has written it."""
        return self.buffers.get(name, POISON)

    def write(self, name: str, value: Any) -> None:
        """Fill a buffer."""
        self.buffers[name] = value


@dataclass(frozen=True)
class Kernel:
    """A plain function, run when the kernel starts."""

    compute: Callable[[Call], None]


@dataclass(frozen=True)
class ExchangeKernel:
    """A kernel that sends, receives or both. `outgoing(call, dst)` is the message to one position of
    the exchange's ranks, `incoming(call, {src: message})` takes what came. `at_launch` reads on the
    host, when the kernel is launched, what its launch needs (a receive count)."""

    outgoing: Callable[[Call, int], Message] | None = None
    incoming: Callable[[Call, dict[int, Message]], None] | None = None
    at_launch: Callable[[Call], None] | None = None
    channel: str = ""


Table = Mapping[str, Kernel | ExchangeKernel]


@dataclass
class _ComputeTask:
    call: Call
    kernel: Kernel
    raised: set[str]

    @property
    def name(self) -> str:
        return self.call.op.name

    def start(self) -> None:
        inputs = [self.call.read(name) for name in self.call.op.reads]
        if any(value is POISON for value in inputs):
            for name in self.call.op.writes:
                self.call.write(name, POISON)
        else:
            self.kernel.compute(self.call)
        if self.call.op.raises is not None:
            self.raised.add(self.call.op.raises)

    def done(self) -> bool:
        return True


@dataclass
class _ExchangeTask:
    """Sends when it starts, or once the signal that it polls is raised; ends when all has come."""

    call: Call
    kernel: ExchangeKernel
    transport: Transport
    raised: set[str]
    _came: dict[int, Message] = field(default_factory=dict)
    _sent: bool = False
    _poisoned: bool = False

    @property
    def name(self) -> str:
        return self.call.op.name

    @property
    def _peers(self) -> tuple[int, ...]:
        assert self.call.exchange is not None
        return self.call.exchange.ranks

    @property
    def _key(self) -> str:
        assert self.call.exchange is not None
        return f"{self.call.exchange.name}/{self.kernel.channel}"

    def start(self) -> None:
        signal = self.call.op.polls
        if signal is not None and signal not in self.raised:
            return
        with self._named():
            self._send()

    def _send(self) -> None:
        self._sent = True
        self._poisoned = any(self.call.read(name) is POISON for name in self.call.op.reads)
        if self.kernel.outgoing is None:
            return
        for position, peer in enumerate(self._peers):
            message = () if self._poisoned else self.kernel.outgoing(self.call, position)
            self.transport.post(self._key, peer, message)

    def done(self) -> bool:
        if not self._sent:
            self.start()
        with self._named():
            if not self._sent or not self._all_came():
                return False
        if self._poisoned or any(not message for message in self._came.values()):
            for name in self.call.op.writes:
                self.call.write(name, POISON)
        elif self.kernel.incoming is not None:
            self.kernel.incoming(self.call, self._came)
        else:
            for name in self.call.op.writes:
                self.call.write(name, SENT)
        return True

    @contextmanager
    def _named(self) -> Iterator[None]:
        """A lost peer's error with the rank, op and exchange that it was lost in."""
        try:
            yield
        except PeerLost as lost:
            call = self.call
            raise PeerLost(
                f"rank {call.rank}: op {self.name} of exchange {call.op.exchange}: {lost}"
            ) from None

    def _all_came(self) -> bool:
        if self.kernel.incoming is None:
            return True
        for position, peer in enumerate(self._peers):
            if position not in self._came:
                message = self.transport.take(self._key, peer)
                if message is None:
                    return False
                self._came[position] = message
        return True


class Reference:
    """Runs a program on the CPU; see the module docstring and `executor.emulator`.

    `buffers` holds every buffer after the run. Spans are in kernels started, not in time. A peer
    that sends nothing for `timeout_s` ends the run with PeerLost.
    """

    def __init__(
        self,
        table: Table,
        transport: Transport,
        state: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        order: Order = "host",
        seed: int = 0,
        delayed: Collection[str] = (),
        timeout_s: float = 15.0,
    ) -> None:
        self._table = table
        self._transport = transport
        self._state = state
        self._device = Emulator(transport.wait, order, seed, delayed, timeout_s)
        self._rank = 0
        self._raised: set[str] = set()
        self._ops: dict[str, Op] = {}
        self._exchanges: dict[str, Exchange] = {}
        self.buffers: dict[str, Any] = dict(inputs or {})

    @property
    def machine(self) -> str:
        """The CPU, emulating streams."""
        return REFERENCE

    @property
    def clock_error_ns(self) -> int:
        """Kernels are counted, not timed."""
        return 0

    def prepare(self, program: Program, rank: int) -> None:
        """Every op needs an entry in the table."""
        self._rank = rank
        self._exchanges = {exchange.name: exchange for exchange in program.exchanges}
        for op in program.launches(rank):
            if kernel_name(op) not in self._table:
                raise MissingKernel(
                    f"rank {rank}: the reference set has no kernel {kernel_name(op)!r} "
                    f"(op {op.name}); it has: {', '.join(sorted(self._table))}"
                )

    def launch(self, op: Op) -> None:
        """Queue the op; an exchange reads now what its launch needs from the host."""
        self._ops[op.name] = op
        kernel = self._table[kernel_name(op)]
        exchange = self._exchanges[op.exchange] if op.exchange else None
        call = Call(op, self._rank, self.buffers, self._state, exchange)
        if isinstance(kernel, Kernel):
            self._device.launch(op.stream, _ComputeTask(call, kernel, self._raised))
            return
        if kernel.at_launch is not None:
            kernel.at_launch(call)
        task = _ExchangeTask(call, kernel, self._transport, self._raised)
        self._device.launch(op.stream, task)

    def record(self, event: str, stream: str) -> None:
        """Queue a record."""
        self._device.record(event, stream)

    def wait(self, event: str, stream: str) -> None:
        """Queue a wait."""
        self._device.wait(event, stream)

    def host_wait(self, event: str) -> None:
        """Run the device until the event is complete."""
        with self._peers_expected():
            self._device.host_wait(event)

    def host_work(self, kind: str) -> None:
        """Nothing to do on the host."""

    def begin(self, kind: RegionKind, name: str) -> None:
        """Steps inside a region are taken one by one."""

    def end(self, kind: RegionKind, name: str) -> None:
        """See `begin`."""

    def finish(self) -> tuple[Span, ...]:
        """Run to the end; one span for each op, in kernels started."""
        with self._peers_expected():
            self._device.drain()
        return tuple(
            Span(
                op=name,
                rank=self._rank,
                lane=self._ops[name].stream,
                ready_ns=start,
                start_ns=start,
                end_ns=max(end, start + 1),
                kind=self._ops[name].work.kind,
                layer=self._ops[name].layer,
                child=self._ops[name].child,
            )
            for name, start, end in self._device.ended
        )

    @contextmanager
    def _peers_expected(self) -> Iterator[None]:
        try:
            yield
        except Starved as starved:
            name = str(starved)
            raise PeerLost(
                f"rank {self._rank}: op {name} of exchange {self._ops[name].exchange} got nothing "
                f"from its peers for {self._device.timeout_s:g} s"
            ) from None
