"""Programs that show one finding each, with a near miss that does not."""

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


def _ll(name: str, buffer: str) -> str:
    return f"exchange {name} low_latency ranks=0 bytes=1 buffer={buffer}"


def _pair(name: str, stream: str = "main") -> str:
    send = f"{stream}: {name}.send work=1 exchange={name} role=send"
    return f"{send}; {stream}: {name}.recv work=2 exchange={name} role=recv writes={name}.out"


_TWO_RANKS = "exchange x normal ranks=0..1 bytes=0; exchange y normal ranks=0..1 bytes=0"
_X = "main: x work=3 exchange=x role=whole"
_Y = "main: y work=3 exchange=y role=whole"
_FORK = "main: a work=0 writes=p; main: rec E0; alt: wait E0; alt: b work=0 reads=p writes=q"
_SIGNAL = "signal s blocks=4 threshold=1"
_LL3 = "; ".join([_ll("x", "ll0"), _ll("y", "ll1"), _ll("z", "ll2")])
_LL3_SHARED = "; ".join([_ll("x", "ll0"), _ll("y", "ll1"), _ll("z", "ll0")])

CASES = (
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
        f"{_FORK}; main: c work=0 writes=p",
        f"{_FORK}; alt: rec E1; main: wait E1; main: c work=0 writes=p",
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
        f"{_SIGNAL}; main: a +s work=0 writes=x; alt: b work=0 reads=x",
        f"{_SIGNAL}; main: a +s work=0 writes=x; alt: b ?s work=0 reads=x; alt: c work=0 reads=x",
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
        f"{_FORK}; main: rec E1; alt: wait E1; alt: c work=0 reads=q",
        f"{_FORK}; main: d work=0 writes=r; main: rec E1; alt: wait E1; alt: c work=0 reads=q,r",
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
        f"{_LL3}; {_pair('x')}; {_pair('y')}; {_pair('z')}; main: c work=0 reads=x.out,y.out,z.out",
        f"{_LL3}; {_pair('x')}; {_pair('y')}; main: c work=0 reads=x.out,y.out; {_pair('z')}",
        4,
    ),
    Case(
        "low-latency-buffer",
        "a send into the buffer whose result is still read",
        f"{_LL3_SHARED}; {_pair('x')}; {_pair('z')}; main: c work=0 reads=x.out; {_pair('y')}",
        f"{_LL3_SHARED}; {_pair('x')}; {_pair('y')}; main: c work=0 reads=x.out; {_pair('z')}",
        2,
    ),
    Case(
        "low-latency-buffer",
        "the reader runs on another stream and nothing orders it before the send",
        f"{_LL3_SHARED}; {_pair('x')}; main: rec E0; alt: wait E0; alt: c work=0 reads=x.out;"
        f"{_pair('z')}; {_pair('y')}",
        f"{_LL3_SHARED}; {_pair('x')}; main: rec E0; alt: wait E0; alt: c work=0 reads=x.out;"
        f"alt: rec E1; main: wait E1; {_pair('z')}; {_pair('y')}",
        5,
    ),
    Case(
        "graph-capture",
        "the host waits during capture",
        "host: begin graph g; main: a work=0; main: rec n; host: wait n; host: end graph g",
        "host: begin graph g; main: a work=0; host: end graph g; main: rec n; host: wait n",
        3,
    ),
    Case(
        "graph-capture",
        "host work that a replay leaves out",
        "host: begin graph g; host: work vote; main: a work=0; host: end graph g",
        "host: work vote; host: begin graph g; main: a work=0; host: end graph g",
        1,
    ),
    Case(
        "graph-capture",
        "a stream is not joined where the graph ends",
        f"host: begin graph g; {_FORK}; host: end graph g",
        f"host: begin graph g; {_FORK}; alt: rec E1; main: wait E1; host: end graph g",
        5,
    ),
    Case(
        "graph-capture",
        "a captured stream waits for an event from outside",
        "main: a work=0; main: rec E0; host: begin graph g; main: b work=0; main: wait E0;"
        "main: c work=0; host: end graph g",
        "main: a work=0; host: begin graph g; main: b work=0; main: rec E0; main: wait E0;"
        "main: c work=0; host: end graph g",
        4,
    ),
    Case(
        "graph-capture",
        "a stream runs before it joins the capture",
        "host: begin graph g; main: a work=0; alt: b work=0; alt: rec E1; main: wait E1;"
        "host: end graph g",
        "host: begin graph g; main: a work=0; main: rec E0; alt: wait E0; alt: b work=0; alt: rec E1;"
        "main: wait E1; host: end graph g",
        2,
    ),
    Case(
        "graph-capture",
        "an event of the capture is awaited outside",
        "host: begin graph g; main: a work=0; main: rec E0; host: end graph g; alt: wait E0",
        "host: begin graph g; main: a work=0; host: end graph g; main: rec E0; alt: wait E0",
        4,
    ),
    Case(
        "graph-capture",
        "a graph begins inside a graph",
        "host: begin graph g; main: a work=0; host: begin graph h; host: end graph h;"
        "host: end graph g",
        "host: begin graph g; main: a work=0; host: end graph g; host: begin graph h;"
        "host: end graph h",
        2,
    ),
    Case(
        "regions",
        "a region that is not ended",
        "host: begin stage a.0; main: a work=0",
        "host: begin stage a.0; main: a work=0; host: end stage a.0",
        0,
    ),
    Case(
        "regions",
        "regions that cross",
        "host: begin call c; host: begin stage a.0; host: end call c; host: end stage a.0",
        "host: begin call c; host: begin stage a.0; host: end stage a.0; host: end call c",
        2,
    ),
    Case(
        "regions",
        "an end without a begin",
        "main: a work=0; host: end call c",
        "host: begin call c; main: a work=0; host: end call c",
        1,
    ),
    Case(
        "exchange-join",
        "a rank that never joins",
        f"{_TWO_RANKS}; ranks 0; {_X}; {_Y}; ranks 1; {_X}",
        f"{_TWO_RANKS}; ranks 0; {_X}; {_Y}; ranks 1; {_X}; {_Y}",
        None,
    ),
    Case(
        "exchange-join",
        "a rank that joins twice",
        f"{_TWO_RANKS}; ranks 0; {_X}; {_Y}; ranks 1; {_X}; {_Y}; main: x2 work=3 exchange=x role=whole",
        f"{_TWO_RANKS}; ranks 0; {_X}; {_Y}; ranks 1; {_X}; {_Y}",
        2,
    ),
    Case(
        "exchange-join",
        "a rank outside that launches it",
        f"exchange x normal ranks=0 bytes=1; ranks 0; {_X}; ranks 1; {_X}",
        f"exchange x normal ranks=0 bytes=1; ranks 0; {_X}; ranks 1; main: a work=0",
        0,
    ),
    Case(
        "exchange-join",
        "a send without a receive",
        f"{_ll('x', 'll0')}; main: x.send work=1 exchange=x role=send",
        f"{_ll('x', 'll0')}; {_pair('x')}",
        None,
    ),
    Case(
        "exchange-order",
        "two ranks take two exchanges in different orders, on two streams each",
        f"{_TWO_RANKS}; ranks 0; {_X}; alt: y work=3 exchange=y role=whole; ranks 1;"
        f"alt: y work=3 exchange=y role=whole; {_X}",
        f"{_TWO_RANKS}; ranks 0; {_X}; alt: y work=3 exchange=y role=whole; ranks 1;"
        f"{_X}; alt: y work=3 exchange=y role=whole",
        1,
    ),
    Case(
        "cycle",
        "two ranks take two exchanges in different orders on one stream",
        f"{_TWO_RANKS}; ranks 0; {_X}; {_Y}; ranks 1; {_Y}; {_X}",
        f"{_TWO_RANKS}; ranks 0; {_X}; {_Y}; ranks 1; {_X}; {_Y}",
        None,
    ),
    Case(
        "cycle",
        "a kernel polls what is raised behind it on its own stream",
        f"{_SIGNAL}; main: b ?s work=0; main: a +s work=0",
        f"{_SIGNAL}; alt: b ?s work=0; main: a +s work=0",
        None,
    ),
    Case(
        "cycle",
        "the host waits for a receive before it launches the send",
        f"{_ll('x', 'll0')}; main: x.recv work=2 exchange=x role=recv; main: rec n; host: wait n;"
        "alt: x.send work=1 exchange=x role=send",
        f"{_ll('x', 'll0')}; alt: x.send work=1 exchange=x role=send;"
        "main: x.recv work=2 exchange=x role=recv; main: rec n; host: wait n",
        None,
    ),
    Case(
        "cycle",
        "the host of one rank waits for an exchange that the other rank joins after a later one",
        f"{_TWO_RANKS}; ranks 0; {_X}; main: rec n; host: wait n; {_Y}; ranks 1; {_Y};"
        f"main: rec E; alt: wait E; alt: x work=3 exchange=x role=whole",
        f"{_TWO_RANKS}; ranks 0; {_X}; main: rec n; host: wait n; {_Y}; ranks 1; {_X}; {_Y}",
        None,
    ),
    Case(
        "unknown-name",
        "a stream that is not declared",
        "main: a work=0; atl: b work=0",
        "main: a work=0; alt: b work=0",
        1,
    ),
    Case(
        "unknown-name",
        "an exchange that is not declared",
        f"{_ll('x', 'll0')}; {_pair('x')}; main: y work=3 exchange=y role=whole",
        f"{_ll('x', 'll0')}; {_pair('x')}",
        2,
    ),
    Case(
        "unknown-name",
        "a signal that is not declared",
        "main: a +s work=0",
        f"{_SIGNAL}; main: a +s work=0",
        0,
    ),
    Case(
        "unknown-name",
        "a signal that nobody raises",
        f"{_SIGNAL}; main: a ?s work=0",
        f"{_SIGNAL}; main: a ?s work=0; alt: b +s work=0",
        0,
    ),
    Case(
        "unknown-name",
        "a buffer that the class does not list",
        "buffer x 4; main: a work=0 writes=x,y",
        "buffer x 4; buffer y 4; main: a work=0 writes=x,y",
        0,
    ),
    Case(
        "duplicate-op",
        "a name launched twice",
        "main: a work=0; alt: a work=0",
        "main: a work=0; alt: b work=0",
        1,
    ),
    Case(
        "malformed",
        "bytes that do not fit the ranks",
        "exchange x normal ranks=0 bytes=0; main: x work=3 exchange=x role=whole",
        "exchange x normal ranks=0 bytes=1; main: x work=3 exchange=x role=whole",
        None,
    ),
    Case(
        "malformed",
        "a rank in two classes",
        "ranks 0; main: a work=0; ranks 0; main: a work=0",
        "ranks 0; main: a work=0; ranks 1; main: a work=0",
        None,
    ),
    Case(
        "malformed",
        "an exchange without a role",
        "exchange x normal ranks=0 bytes=1; main: x work=3 exchange=x",
        "exchange x normal ranks=0 bytes=1; main: x work=3 exchange=x role=whole",
        0,
    ),
)
