"""What completion signals cost: a send of the combine that polls words which are raised already, and a
down GEMM that raises them, each against the same kernel without signals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from statistics import mean, median
from typing import Any

import torch

from executor import small_kernels as small
from executor.calibrate.cases import put_on
from executor.calibrate.clocks import Reader, Watch
from executor.calibrate.kernel_times import kernel_runs, traced
from executor.calibrate.layers import state_record
from executor.calibrate.plan import Task
from executor.calibrate.store import Record
from executor.calibrate.triton_subjects import BUFFERS
from executor.kernel_set import ExecutorError
from executor.kernels.gemm import Grain, threshold
from executor.peers import barrier, gathered
from executor.production_setup import Session
from executor.sessions import Sessions
from executor.triton_exchange import TritonExchange
from executor.triton_gemm import tiling_for
from models.routing import Routing
from scenarios import load
from scenarios.resolve import resolve

CALLS = 20
SLEEP_NS = 12_000_000
GRAIN: Grain = "rows"  # of Hopper's single-batch overlap
# The kernels' names in a trace, by part.
SEND, GEMM = "combine_send", "gemm_kernel"


@dataclass
class PollBench:
    """Measures `polls` tasks on this rank; a time is the mean over the ranks."""

    sessions: Sessions
    scenarios: dict[str, str]
    reader: Reader | None
    num_sms: int
    hardware: str = ""

    def measure(self, task: Task) -> list[Record]:
        """The send on the task's SMs and the GEMM on the others: ns with signals and without."""
        sms, tokens = task.number("num_sms"), task.number("tokens")
        settings = put_on(self.sessions.ranks, self.hardware)
        settings.append(f"phase.decode.batch_per_rank={tokens}")
        resolved = resolve(load(self.scenarios["decode"], settings))
        session = self.sessions.of(resolved.deployment)
        case = Signalled(session, resolved.routing, sms, self.num_sms - sms)
        with Watch(self.reader) as watch:
            sends = _compared(session, case.send, SEND)
            products = _compared(session, case.multiply, GEMM)
        case.lower()
        state = state_record(watch.state) | {"what": "signals", "rows": case.rows}
        return [
            state | {"kind": "combine_send", "sms": sms} | sends,
            state | {"kind": "grouped_gemm_masked", "sms": self.num_sms - sms} | products,
        ]


class Signalled:
    """The down GEMM and the combine of one routing, each with signals or without."""

    def __init__(self, session: Session, routing: Routing, send_sms: int, gemm_sms: int) -> None:
        exchange: Any = session.exchange
        if not isinstance(exchange, TritonExchange) or exchange.low is None:
            raise ExecutorError("only low-latency exchanges of the Triton set poll signals")
        self._exchange, self._low = exchange, exchange.low
        self._session, self._send_sms, self._gemm_sms = session, send_sms, gemm_sms
        ids = torch.as_tensor(routing.ids[session.rank])
        self._ids = ids.to(device="cuda", dtype=torch.int64).contiguous()
        self._weights = torch.rand(self._ids.shape, dtype=torch.float32, device="cuda")
        shape = self._low.shape
        tokens, choices = self._ids.shape
        self._expected = (tokens * shape.ranks * choices + shape.experts) // shape.experts
        self._tiling = tiling_for(self._expected, session.device)
        self._complete = threshold(GRAIN, shape.hidden, 0, self._tiling)
        x = _random(tokens, shape.hidden)
        for buffer in BUFFERS:
            self._low.send_dispatch(x, self._ids, buffer)
            self._counts = self._low.receive_dispatch(buffer)[1]
        self.rows = int(self._counts.sum())
        self._packed = _packed(session, shape.local_experts, shape.capacity)
        self._back = _random(shape.local_experts * shape.capacity, shape.hidden)
        self._back = self._back.view(shape.local_experts, shape.capacity, shape.hidden)
        self._turn = cycle(BUFFERS)

    def send(self, signals: bool) -> None:
        """A send, every word that it polls complete, and the receive that lets peers send again."""
        buffer = next(self._turn)
        words = self._exchange.words[buffer, GRAIN] if signals else None
        if words is not None:
            words.words.fill_(self._complete)
        self._low.send_combine(self._back, buffer, self._send_sms, words, self._tiling)
        self._low.receive_combine(self._ids, self._weights, buffer)

    def multiply(self, signals: bool) -> None:
        """The down GEMM; nobody polls."""
        words = self._exchange.words[0, GRAIN] if signals else None
        weight = self._session.weights.down
        gemm: Any = self._session.gemm
        gemm.masked(self._packed, weight, self._counts, self._expected, self._gemm_sms, words)

    def lower(self) -> None:
        """All words as they were before."""
        for buffer in BUFFERS:
            self._exchange.words[buffer, GRAIN].words.zero_()


def _compared(session: Session, call: Callable[[bool], None], name: str) -> dict[str, float]:
    """Median ns of the kernel with signals, and without: before and after."""
    times = [_median_ns(session, call, signals, name) for signals in (False, True, False)]
    before, signalled, after = (mean(ranks) for ranks in zip(*gathered(times), strict=True))
    plain = (before + after) / 2
    return {
        "ns": round(signalled, 1),
        "plain_ns": round(plain, 1),
        "drift": round(max(before, after) / min(before, after) - 1, 4),
    }


def _median_ns(session: Session, call: Callable[[bool], None], signals: bool, name: str) -> float:
    """Of the later half of the calls, launched while the ranks wait for each other."""
    stream = session.pool.stream("main", 0)
    call(signals)
    torch.cuda.synchronize()
    barrier()

    def repeat() -> None:
        session.gate.launch(stream, SLEEP_NS)
        with torch.cuda.stream(stream):
            for _ in range(CALLS):
                call(signals)

    runs = [run.ns for run in kernel_runs(traced(repeat)) if name in run.name]
    if len(runs) < CALLS:
        raise ExecutorError(f"the profiler's trace holds {len(runs)} of {CALLS} {name} kernels")
    return median(runs[CALLS // 2 :])


def _packed(session: Session, experts: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows for the down GEMM as the activation leaves them: fp8 [E, rows, k], scales by column."""
    columns = session.weights.down[0].shape[2]
    values, scales = small.quantise(_random(experts * rows, columns), column_major=False)
    by_column = scales.view(experts, rows, -1).transpose(1, 2).contiguous().transpose(1, 2)
    return values.view(experts, rows, columns), by_column


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")
