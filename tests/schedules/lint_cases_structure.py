"""Programs that show one finding each, with a near miss: graphs, regions, exchanges, cycles, names."""

from __future__ import annotations

from tests.schedules.lint_cases import FORK, SIGNAL, Case, low_latency, send_and_receive

_TWO_RANKS = "exchange x normal ranks=0..1 bytes=0; exchange y normal ranks=0..1 bytes=0"
_X = "main: x work=3 exchange=x role=whole"
_Y = "main: y work=3 exchange=y role=whole"

STRUCTURE_CASES = (
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
        f"host: begin graph g; {FORK}; host: end graph g",
        f"host: begin graph g; {FORK}; alt: rec E1; main: wait E1; host: end graph g",
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
        f"{low_latency('x', 'll0')}; main: x.send work=1 exchange=x role=send",
        f"{low_latency('x', 'll0')}; {send_and_receive('x')}",
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
        f"{SIGNAL}; main: b ?s work=0; main: a +s work=0",
        f"{SIGNAL}; alt: b ?s work=0; main: a +s work=0",
        None,
    ),
    Case(
        "cycle",
        "the host waits for a receive before it launches the send",
        f"{low_latency('x', 'll0')}; main: x.recv work=2 exchange=x role=recv; main: rec n; host: wait n;"
        "alt: x.send work=1 exchange=x role=send",
        f"{low_latency('x', 'll0')}; alt: x.send work=1 exchange=x role=send;"
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
        f"{low_latency('x', 'll0')}; {send_and_receive('x')}; main: y work=3 exchange=y role=whole",
        f"{low_latency('x', 'll0')}; {send_and_receive('x')}",
        2,
    ),
    Case(
        "unknown-name",
        "a signal that is not declared",
        "main: a +s work=0",
        f"{SIGNAL}; main: a +s work=0",
        0,
    ),
    Case(
        "unknown-name",
        "a signal that nobody raises",
        f"{SIGNAL}; main: a ?s work=0",
        f"{SIGNAL}; main: a ?s work=0; alt: b +s work=0",
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
