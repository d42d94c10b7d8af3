"""A kernel set that runs nothing: it logs what the host does and checks how events are used."""

from __future__ import annotations

from dataclasses import dataclass, field

from executor.job import RECORDING
from executor.kernel_set import ExecutorError
from schedules.program import Op, Program, RegionKind
from schedules.timeline import Span


@dataclass
class Recording:
    """The log of one rank's run, one line per call, and the findings about its events.

    Spans are counted in host calls: an op that is launched by the third call spans (2, 3).
    `strict` turns a wait for an event that was never recorded into an error; without it the wait
    is logged as ignored, which is what CUDA does.
    """

    strict: bool = True
    log: list[str] = field(default_factory=list)
    _rank: int = 0
    _streams: set[str] = field(default_factory=set)
    _recorded: set[str] = field(default_factory=set)
    _spans: list[Span] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    @property
    def machine(self) -> str:
        """No machine at all."""
        return RECORDING

    @property
    def clock_error_ns(self) -> int:
        """Calls are counted, not timed."""
        return 0

    def prepare(self, program: Program, rank: int) -> None:
        """Remember the streams; forget an earlier run."""
        self._rank = rank
        self._streams = {stream.name for stream in program.streams}
        for state in (self.log, self._spans, self._recorded, self._names):
            state.clear()

    def launch(self, op: Op) -> None:
        """Log the op; its name must be new and its stream known."""
        self._require_stream(op.stream, op.name)
        if op.name in self._names:
            raise ExecutorError(f"rank {self._rank}: op {op.name!r} is launched twice")
        self._names.add(op.name)
        at = len(self.log)
        self._spans.append(
            Span(
                op=op.name,
                rank=self._rank,
                lane=op.stream,
                ready_ns=at,
                start_ns=at,
                end_ns=at + 1,
                kind=op.work.kind,
                layer=op.layer,
                child=op.child,
            )
        )
        self.log.append(f"{op.stream}: {op.name}")

    def record(self, event: str, stream: str) -> None:
        """Log the record."""
        self._require_stream(stream, f"record {event}")
        self._recorded.add(event)
        self.log.append(f"{stream}: record {event}")

    def wait(self, event: str, stream: str) -> None:
        """Log the wait; error (or `ignored`) when nothing has recorded the event."""
        self._require_stream(stream, f"wait {event}")
        self._log_wait(stream, event)

    def host_wait(self, event: str) -> None:
        """Log the host's wait, under the same rule."""
        self._log_wait("host", event)

    def host_work(self, kind: str) -> None:
        """Log the host's work."""
        self.log.append(f"host: {kind}")

    def begin(self, kind: RegionKind, name: str) -> None:
        """Log the region's opening."""
        self.log.append(f"begin {kind} {name}")

    def end(self, kind: RegionKind, name: str) -> None:
        """Log the region's end."""
        self.log.append(f"end {kind} {name}")

    def finish(self) -> tuple[Span, ...]:
        """Spans in units of calls."""
        return tuple(self._spans)

    def _log_wait(self, where: str, event: str) -> None:
        known = event in self._recorded
        if self.strict and not known:
            raise ExecutorError(
                f"rank {self._rank}: {where} waits for event {event!r}, which nothing has recorded"
            )
        self.log.append(f"{where}: wait {event}" + ("" if known else " (ignored)"))

    def _require_stream(self, stream: str, what: str) -> None:
        if stream not in self._streams:
            known = ", ".join(sorted(self._streams))
            raise ExecutorError(f"{what}: no stream {stream!r}; the program has: {known}")
