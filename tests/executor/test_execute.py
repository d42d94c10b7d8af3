"""The walker, the recording set and the reference set on programs written by hand."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from executor.execute import execute
from executor.kernel_set import ExecutorError, MissingKernel, PeerLost
from executor.recording import Recording
from executor.reference import POISON, Call, ExchangeKernel, Kernel, Reference
from executor.transport import Message, in_process
from models.work import work
from schedules.program import (
    Begin,
    End,
    Exchange,
    HostWait,
    Launch,
    Op,
    Program,
    RankClass,
    Record,
    Step,
    Stream,
    Wait,
)

pytestmark = pytest.mark.torch

TWO_RANKS = Exchange("x", "normal", (0, 1), ((0, 8), (8, 0)))


def op(
    name: str, stream: str, reads: str = "", writes: str = "", exchange: str | None = None
) -> Op:
    kind = "add" if exchange is None else "dispatch"
    return Op(
        name,
        stream,
        work(kind),
        reads=tuple(reads.split()),
        writes=tuple(writes.split()),
        exchange=exchange,
        role="whole" if exchange else None,
    )


def program(*steps: Step, ranks: int = 1) -> Program:
    return Program(
        "hand made",
        (Stream("main"), Stream("comm", -1)),
        (RankClass(tuple(range(ranks)), steps),),
        (TWO_RANKS,) if ranks > 1 else (),
    )


def double(call: Call) -> None:
    call.write(call.op.writes[0], 2 * call.read(call.op.reads[0]))


def total(call: Call) -> None:
    call.write(call.op.writes[0], sum(call.read(name) for name in call.op.reads))


def send(call: Call, dst: int) -> Message:
    return (call.read(call.op.reads[0]),)


def add_up(call: Call, came: dict[int, Message]) -> None:
    call.write(call.op.writes[0], sum(message[0] for message in came.values()))


TABLE: dict[str, Kernel | ExchangeKernel] = {
    "double": Kernel(double),
    "sum": Kernel(total),
    "swap": ExchangeKernel(send, add_up),
}


def forked(*, with_wait: bool) -> Program:
    """main doubles, comm doubles that, main adds both: two events order it."""
    steps: list[Step] = [
        Launch(op("double", "main", "in", "a")),
        Record("E0", "main"),
        Wait("E0", "comm"),
        Launch(op("L0.double", "comm", "a", "b")),
        Record("E1", "comm"),
        Wait("E1", "main"),
        Launch(op("sum", "main", "a b", "out")),
    ]
    return program(*(s for s in steps if with_wait or s != Wait("E1", "main")))


def run(made: Program, **options: object) -> Reference:
    (transport,) = in_process(1)
    kernels = Reference(TABLE, transport, inputs={"in": torch.tensor(1.0)}, **options)  # type: ignore[arg-type]
    execute(made, kernels)
    return kernels


@pytest.mark.parametrize("seed", range(5))
def test_any_legal_order_gives_the_same_result(seed: int) -> None:
    kernels = run(forked(with_wait=True), order="random", seed=seed, delayed={"L0.double"})
    assert kernels.buffers["out"] == 6.0


def test_a_missing_wait_is_seen_when_its_producer_is_late() -> None:
    kernels = run(forked(with_wait=False), order="random", delayed={"L0.double"})
    assert kernels.buffers["out"] is POISON


def test_spans_follow_the_order_of_the_run() -> None:
    (transport,) = in_process(1)
    kernels = Reference(TABLE, transport, inputs={"in": torch.tensor(1.0)})
    timeline = execute(forked(with_wait=True), kernels)
    assert [span.op for span in timeline.spans] == ["double", "L0.double", "sum"]
    assert timeline.origin == "measured"


def both_ranks(made: Program, **options: object) -> list[Reference]:
    sets = [
        Reference(TABLE, transport, inputs={"in": torch.tensor(1.0 + rank)}, **options)  # type: ignore[arg-type]
        for rank, transport in enumerate(in_process(2))
    ]
    threads = [
        threading.Thread(target=execute, args=(made, kernels), kwargs={"rank": rank})
        for rank, kernels in enumerate(sets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sets


def test_an_exchange_ends_when_every_rank_has_joined() -> None:
    made = program(
        Launch(op("double", "main", "in", "a")),
        Launch(op("swap", "main", "a", "b", exchange="x")),
        Record("E", "main"),
        HostWait("E"),
        Launch(op("sum", "main", "b", "out")),
        ranks=2,
    )
    assert [kernels.buffers["out"] for kernels in both_ranks(made)] == [6.0, 6.0]


def test_a_rank_without_its_peer_gives_up_and_says_where() -> None:
    made = program(Launch(op("swap", "main", "in", "b", exchange="x")), ranks=2)
    transport, _ = in_process(2)
    kernels = Reference(TABLE, transport, inputs={"in": torch.tensor(1.0)}, timeout_s=0.05)
    with pytest.raises(PeerLost, match="rank 0: op swap of exchange x"):
        execute(made, kernels)


def test_a_kernel_that_the_set_lacks_is_refused_before_anything_runs() -> None:
    (transport,) = in_process(1)
    kernels = Reference(TABLE, transport)
    with pytest.raises(MissingKernel, match="no kernel 'conv'"):
        execute(
            program(Launch(op("double", "main", "in", "a")), Launch(op("conv", "main"))), kernels
        )
    assert "a" not in kernels.buffers


def test_recording_logs_the_host_order() -> None:
    kernels = Recording()
    execute(forked(with_wait=True), kernels)
    assert kernels.log == [
        "main: double",
        "main: record E0",
        "comm: wait E0",
        "comm: L0.double",
        "comm: record E1",
        "main: wait E1",
        "main: sum",
    ]


def test_recording_refuses_a_wait_for_nothing_and_cuda_ignores_it() -> None:
    made = program(Wait("E9", "main"), Launch(op("double", "main")))
    with pytest.raises(ExecutorError, match="'E9'"):
        execute(made, Recording())
    lenient = Recording(strict=False)
    execute(made, lenient)
    assert lenient.log[0] == "main: wait E9 (ignored)"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((Begin("graph", "g"),), "never closed"),
        ((Begin("graph", "g"), End("stage", "g")), "not the innermost"),
        ((Record("E", "alt"),), "'alt'"),
    ],
)
def test_malformed_steps_are_refused(steps: tuple[Step, ...], message: str) -> None:
    with pytest.raises(ExecutorError, match=message):
        execute(program(*steps), Recording())


def test_a_rank_that_the_program_lacks_is_refused() -> None:
    with pytest.raises(ExecutorError, match="no rank 7"):
        execute(replace(program(), name="empty"), Recording(), rank=7)
