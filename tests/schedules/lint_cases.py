"""Programs that show one finding each, with a near miss that does not: events, waits, buffers."""

from __future__ import annotations

from dataclasses import dataclass

from schedules.program import Program
from schedules.text import parse_program

HEAD = """\
stream main
stream alt
stream comm priority=-1
work 0 gemm
work 1 dispatch_send
work 2 dispatch_recv
work 3 dispatch
bytes 0 [0,1] [1,0]
bytes 1 [0]
"""


@dataclass(frozen=True)
class Case:
    """`bad` shows `rule` at `step` of the class (None: of the program); `good` shows no error and not
    the rule."""

    rule: str
    name: str
    bad: str
    good: str
    step: int | None


def program(body: str) -> Program:
    """A program of lines apart by `;` or newlines, below the common head; one rank unless it says."""
    lines = [line.strip() for line in body.replace(";", "\n").strip().splitlines()]
    if not any(line.startswith("ranks") for line in lines):
        first = next(i for i, line in enumerate(lines) if ":" in line or line.startswith("buffer"))
        lines.insert(first, "ranks 0")
    return parse_program("program case\n" + HEAD + "\n".join(lines) + "\n")


def low_latency(name: str, buffer: str) -> str:
    return f"exchange {name} low_latency ranks=0 bytes=1 buffer={buffer}"


def send_and_receive(name: str, stream: str = "main") -> str:
    send = f"{stream}: {name}.send work=1 exchange={name} role=send"
    return f"{send}; {stream}: {name}.recv work=2 exchange={name} role=recv writes={name}.out"


FORK = "main: a work=0 writes=p; main: rec E0; alt: wait E0; alt: b work=0 reads=p writes=q"
SIGNAL = "signal s blocks=4 threshold=1"
_LL3 = "; ".join([low_latency("x", "ll0"), low_latency("y", "ll1"), low_latency("z", "ll2")])
_LL3_SHARED = "; ".join([low_latency("x", "ll0"), low_latency("y", "ll1"), low_latency("z", "ll0")])

ORDER_CASES = (
    Case(
        "never-recorded",
        "a stream waits for an event that nobody records",
        "main: a work=0; alt: wait E1; alt: b work=0",
        "main: a work=0; main: rec E1; alt: wait E1; alt: b work=0",
        1,
    ),
    Case(
        "never-recorded",
        "the host waits for an event that nobody records",
        "main: a work=0; host: wait counts; main: b work=0",
        "main: a work=0; main: rec counts; host: wait counts; main: b work=0",
        1,
    ),
    Case(
        "recorded-later",
        "the record stands below the wait, which therefore does nothing",
        "main: a work=0; alt: wait E0; alt: b work=0; main: rec E0",
        "main: a work=0; main: rec E0; alt: wait E0; alt: b work=0",
        1,
    ),
    Case(
        "recorded-later",
        "the same for the host",
        "main: a work=0; host: wait E0; main: rec E0",
        "main: a work=0; main: rec E0; host: wait E0",
        1,
    ),
    Case(
        "recorded-twice",
        "an event is recorded again",
        "main: a work=0; main: rec E0; alt: wait E0; alt: b work=0; main: c work=0; main: rec E0",
        "main: a work=0; main: rec E0; alt: wait E0; alt: b work=0; main: c work=0; main: rec E1",
        5,
    ),
    Case(
        "never-awaited",
        "the host does not wait for the counts",
        "main: notify work=0; main: rec counts; main: dispatch work=0",
        "main: notify work=0; main: rec counts; host: wait counts; main: dispatch work=0",
        1,
    ),
    Case(
        "record-after-yield",
        "the record stands behind the yield and captures the other child's GEMM",
        """
        host: begin stage a.0; main: a.quant work=0 child=a writes=a.x; host: end stage a.0
        host: begin stage b.0; main: b.gemm work=0 child=b; host: end stage b.0
        host: begin stage a.1; main: rec a.E; comm: wait a.E; comm: a.send work=0 child=a reads=a.x
        host: end stage a.1
        """,
        """
        host: begin stage a.0; main: a.quant work=0 child=a writes=a.x; main: rec a.E
        host: end stage a.0
        host: begin stage b.0; main: b.gemm work=0 child=b; host: end stage b.0
        host: begin stage a.1; comm: wait a.E; comm: a.send work=0 child=a reads=a.x
        host: end stage a.1
        """,
        7,
    ),
    Case(
        "record-after-yield",
        "the same without stage marks: the op held back tells whose record it is",
        """
        main: a.quant work=0 child=a writes=a.x; main: b.gemm work=0 child=b; main: rec a.E
        comm: wait a.E; comm: a.send work=0 child=a reads=a.x
        """,
        """
        main: a.quant work=0 child=a writes=a.x; main: rec a.E; main: b.gemm work=0 child=b
        comm: wait a.E; comm: a.send work=0 child=a reads=a.x
        """,
        2,
    ),
    Case(
        "missing-wait",
        "a read on another stream of what was just written",
        "main: a work=0 writes=x; alt: b work=0 reads=x",
        "main: a work=0 writes=x; main: rec E0; alt: wait E0; alt: b work=0 reads=x",
        1,
    ),
    Case(
        "missing-wait",
        "a write over what another stream still reads",
        f"{FORK}; main: c work=0 writes=p",
        f"{FORK}; alt: rec E1; main: wait E1; main: c work=0 writes=p",
        4,
    ),
    Case(
        "missing-wait",
        "the event was recorded before the write, so that its wait does not cover it",
        "main: z work=0; main: rec E0; main: a work=0 writes=x; alt: wait E0; alt: b work=0 reads=x",
        "main: z work=0; main: a work=0 writes=x; main: rec E0; alt: wait E0; alt: b work=0 reads=x",
        4,
    ),
    Case(
        "missing-wait",
        "only the signal's consumer is ordered by it, and what follows that",
        f"{SIGNAL}; main: a +s work=0 writes=x; alt: b work=0 reads=x",
        f"{SIGNAL}; main: a +s work=0 writes=x; alt: b ?s work=0 reads=x; alt: c work=0 reads=x",
        1,
    ),
    Case(
        "missing-wait",
        "the host's wait orders what it launches later, not what it launched before",
        "main: a work=0 writes=x; alt: b work=0 reads=x; main: rec E0; host: wait E0",
        "main: a work=0 writes=x; main: rec E0; host: wait E0; alt: b work=0 reads=x",
        1,
    ),
    Case(
        "excess-wait",
        "a second wait for what the first one covers",
        f"{FORK}; main: rec E1; alt: wait E1; alt: c work=0 reads=q",
        f"{FORK}; main: d work=0 writes=r; main: rec E1; alt: wait E1; alt: c work=0 reads=q,r",
        5,
    ),
    Case(
        "excess-wait",
        "streams that share no buffer",
        "main: a work=0 writes=x; main: rec E0; alt: wait E0; alt: b work=0 reads=y",
        "main: a work=0 writes=x; main: rec E0; alt: wait E0; alt: b work=0 reads=x",
        2,
    ),
    Case(
        "low-latency-buffer",
        "a third result while two are alive",
        f"{_LL3}; {send_and_receive('x')}; {send_and_receive('y')}; {send_and_receive('z')}; main: c work=0 reads=x.out,y.out,z.out",
        f"{_LL3}; {send_and_receive('x')}; {send_and_receive('y')}; main: c work=0 reads=x.out,y.out; {send_and_receive('z')}",
        4,
    ),
    Case(
        "low-latency-buffer",
        "a send into the buffer whose result is still read",
        f"{_LL3_SHARED}; {send_and_receive('x')}; {send_and_receive('z')}; main: c work=0 reads=x.out; {send_and_receive('y')}",
        f"{_LL3_SHARED}; {send_and_receive('x')}; {send_and_receive('y')}; main: c work=0 reads=x.out; {send_and_receive('z')}",
        2,
    ),
    Case(
        "low-latency-buffer",
        "the reader runs on another stream and nothing orders it before the send",
        f"{_LL3_SHARED}; {send_and_receive('x')}; main: rec E0; alt: wait E0; alt: c work=0 reads=x.out;"
        f"{send_and_receive('z')}; {send_and_receive('y')}",
        f"{_LL3_SHARED}; {send_and_receive('x')}; main: rec E0; alt: wait E0; alt: c work=0 reads=x.out;"
        f"alt: rec E1; main: wait E1; {send_and_receive('z')}; {send_and_receive('y')}",
        5,
    ),
)
