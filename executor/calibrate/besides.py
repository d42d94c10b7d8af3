"""Exchanges beside compute on disjoint SMs, and compute beside exchanges: who slows whom by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from executor.calibrate.cases import put_on
from executor.calibrate.clocks import Reader, Watch
from executor.calibrate.layers import state_record
from executor.calibrate.overlap import Interval, calls_for, slowdowns
from executor.calibrate.plan import Task
from executor.calibrate.store import Record
from executor.calibrate.subjects import (
    LEVELS,
    Subject,
    compute_subject,
    exchange_subject,
    stream_subject,
)
from executor.peers import gathered
from executor.production_setup import Session
from executor.sessions import Sessions
from scenarios import load
from scenarios.resolve import Resolved, resolve

TOTAL_NS = 5e6
# Calls of the exchange alone that the loops last: slowed two and a half times, six run beside the other.
EXCHANGE_CALLS = 16
MOST_CALLS = 80
WARM_CALLS = 3
SLEEP_NS = 12_000_000


@dataclass
class BesideBench:
    """Measures `ladder` and `pairs` tasks on this rank. Every rank makes the same number of exchange
    calls: rank 0's count holds for all."""

    sessions: Sessions
    scenarios: dict[str, str]
    reader: Reader | None
    num_sms: int
    hardware: str = ""

    def measure(self, task: Task) -> Sequence[Record]:
        """Slowdowns of the exchange and of what runs beside it."""
        name, num_sms = task.text("exchange"), task.number("num_sms")
        resolved = self._resolved(name, task.number("tokens"))
        session = self.sessions.of(resolved.deployment)
        exchange = exchange_subject(session, resolved.routing, name, num_sms)
        rest = self.num_sms - exchange.sms
        if task.kind == "pairs":
            others = [compute_subject(session, task.text("compute"), rest, self.num_sms)]
        else:
            others = [stream_subject(level, rest) for level in LEVELS]
        records: list[Record] = []
        for other in others:
            records += self._pair(session, other, exchange)
        return records

    def _resolved(self, exchange: str, tokens: int) -> Resolved:
        ranks = self.sessions.ranks
        settings = put_on(ranks, self.hardware)
        if exchange.endswith("_ll"):
            settings.append(f"phase.decode.batch_per_rank={tokens}")
            return resolve(load(self.scenarios["decode"], settings))
        settings.append(f"phase.prefill.tokens_per_rank={tokens}")
        return resolve(load(self.scenarios["prefill"], settings))

    def _pair(self, session: Session, other: Subject, exchange: Subject) -> list[Record]:
        with Watch(self.reader) as watch:
            counts = self._counts(session, other, exchange)
            before = self._alone(session, other, exchange, counts)
            beside = timeline(session, (other, counts[0]), (exchange, counts[1]))
            after = self._alone(session, other, exchange, counts)
        slowed = slowdowns((before[0], after[0]), (before[1], after[1]), *beside)
        alone_ns = [
            median(end - start for run in runs for start, end in run[1:])
            for runs in ((before[0], after[0]), (before[1], after[1]))
        ]
        rates = (other.nbytes / alone_ns[0], exchange.nbytes / alone_ns[1])
        state = state_record(watch.state) | {"drift": round(slowed.drift, 4)}
        records: list[Record] = [{"what": "hbm", "gbps": round(rates[0], 1), "by": other.name}]
        state |= {"exchange": exchange.name, "exchange_sms": exchange.sms}
        state |= {"alone_ns": [round(ns, 1) for ns in alone_ns]}
        if slowed.second is None:
            return records  # it hardly ran beside the other, which was not slowed by it then
        records.append(self._record(exchange, other, slowed.second, rates[0], state))
        if slowed.first is not None and other.kinds:
            records.append(self._record(other, exchange, slowed.first, rates[1], state))
        return records

    def _record(
        self, victim: Subject, aggressor: Subject, slow: float, gbps: float, state: dict[str, Any]
    ) -> Record:
        return {
            "what": "beside",
            "victim": f"{victim.name} on {victim.sms}",
            "aggressor": f"{aggressor.name} on {aggressor.sms}",
            "kinds": list(victim.kinds),
            "family": victim.family,
            "slowdown": round(slow, 4),
            "busy": round(aggressor.sms / self.num_sms, 4),
            "gbps": round(gbps, 1),
            **state,
        }

    def _counts(self, session: Session, other: Subject, exchange: Subject) -> tuple[int, int]:
        """Calls of both loops that take about as long, from rank 0's times; this also warms them up."""
        single = self._alone(session, other, exchange, (WARM_CALLS, WARM_CALLS))
        times = [median(end - start for start, end in calls[1:]) for calls in single]
        total_ns = max(TOTAL_NS, EXCHANGE_CALLS * times[1])
        mine = tuple(calls_for(ns, total_ns, MOST_CALLS) for ns in times)
        counts: tuple[int, int] = gathered(mine)[0]
        return counts

    def _alone(
        self, session: Session, other: Subject, exchange: Subject, counts: tuple[int, int]
    ) -> tuple[list[Interval], list[Interval]]:
        first, _ = timeline(session, (other, counts[0]), (exchange, 0))
        _, second = timeline(session, (other, 0), (exchange, counts[1]))
        return first, second


def timeline(
    session: Session, first: tuple[Subject, int], second: tuple[Subject, int]
) -> tuple[list[Interval], list[Interval]]:
    """Intervals in ns of the calls of two loops on two streams, both released by the gate."""
    gate = session.gate
    streams = (session.pool.stream("main", 0), session.pool.stream("alt", 0))
    torch.cuda.synchronize()
    gate.launch(streams[0], SLEEP_NS)
    origin = torch.cuda.Event(enable_timing=True)
    origin.record(streams[0])
    streams[1].wait_event(origin)
    loops = [
        [_called(subject.call, stream) for _ in range(count)] if count else []
        for (subject, count), stream in zip((first, second), streams, strict=True)
    ]
    torch.cuda.synchronize()
    return _intervals(origin, loops[0]), _intervals(origin, loops[1])


Marks = tuple[torch.cuda.Event, torch.cuda.Event]


def _called(call: Callable[[], Any], stream: torch.cuda.Stream) -> Marks:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record(stream)
        call()
        end.record(stream)
    return start, end


def _intervals(origin: torch.cuda.Event, marks: Sequence[Marks]) -> list[Interval]:
    return [
        (origin.elapsed_time(start) * 1e6, origin.elapsed_time(end) * 1e6) for start, end in marks
    ]
