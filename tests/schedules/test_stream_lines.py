"""A user's stream lines: every layer that the serving engine runs parses, and errors carry a mark."""

from __future__ import annotations

import pytest

from models.deployment import Kernel, LayerKernels
from models.work import Grid, work
from schedules.caret import GrammarError
from schedules.program import HostWait, Launch, Op, Record, Step, Wait
from schedules.stream_lines import layer_catalogue, parse_stream_lines

LAYERS = {
    "V1_hopper_deepgemm": "main:gate; main:topk; main:disp_send; main:shared; main:disp_recv; main:gemm1; main:act; main:rec E0; main:gemm2@comp+signal; alt:wait E0; alt:comb_send@comm(poll); alt:wait main; alt:comb_recv; main:wait alt; main:add",
    "V2_blackwell_cutedsl": "main:gate; main:topk; main:disp_send; main:disp_recv; main:gemm1; main:act; main:rec E0; main:gemm2@comp+signal; alt:wait E0; alt:comb_send(poll); main:shared@comp(deepgemm only); alt:wait main; alt:comb_recv; main:wait alt; main:add",
    "V3_blackwell_other": "main:gate; main:topk; main:disp_send; main:disp_recv; main:gemm1; main:act; main:gemm2; main:rec E1; alt:wait E1; alt:comb_send; main:shared@comp; alt:wait main; alt:comb_recv; main:wait alt; main:add",
    "V4_blackwell_outside_sbo_cutedsl": "main:gate; alt:wait main; alt:shared; alt:rec Esh; main:topk; main:disp_send; main:disp_recv; main:gemm1; main:act; main:rec E0; main:gemm2@comp+signal; alt:wait E0; alt:comb_send(poll); alt:wait main; alt:comb_recv; main:wait alt; main:wait Esh; main:add",
    "baseline_no_sbo": "main:gate; alt:wait main; alt:shared; alt:rec Esh; main:topk; main:disp_send; main:disp_recv; main:gemm1; main:act; main:gemm2; main:comb_send; main:comb_recv; main:wait Esh; main:add",
    "sequential_ll": "main:gate; main:topk; main:disp_send; main:disp_recv; main:gemm1; main:act; main:gemm2; main:comb_send; main:comb_recv; main:shared; main:add",
    "sequential_normal": "main:gate; main:topk; main:quant; main:layout; main:notify; host:wait counts; main:dispatch; main:permute; main:gemm1; main:act; main:gemm2; main:unpermute; main:combine_notify; main:combine; main:shared; main:add",
    "baseline_normal": "main:gate; alt:wait main; alt:shared; alt:rec Esh; main:topk; main:quant; main:rec E0; comm:wait E0; comm:layout; comm:notify; host:wait counts; comm:dispatch; comm:rec E1; main:wait E1; main:permute; main:gemm1; main:act; main:gemm2; main:unpermute; main:rec E2; comm:wait E2; comm:combine_notify; comm:combine; comm:rec E3; main:wait E3; main:wait Esh; main:add",
    "V1b_hopper_other_runner": "main:gate; main:topk; main:disp_send; main:shared; main:disp_recv; main:gemm1; main:act; main:gemm2; main:comb_send; main:comb_recv; main:add",
    "V4b_blackwell_outside_sbo_other": "main:gate; alt:wait main; alt:shared; alt:rec Esh; main:topk; main:disp_send; main:disp_recv; main:gemm1; main:act; main:gemm2; main:comb_send; main:comb_recv; main:wait Esh; main:add",
    "V5_blackwell_no_a2a": "main:gate; main:topk; main:experts; alt:wait main; alt:shared; main:combine_collective; main:wait alt; main:add",
}
BUDGETS = {"comp": 116, "comm": 32}


def _layer() -> LayerKernels:
    def kernel(name: str, **fields: object) -> Kernel:
        return Kernel(name, work("gemm", m=1, n=1, k=1), Grid(kind="static"), **fields)  # type: ignore[arg-type]

    shared = (kernel("shared.up"), kernel("shared.act"), kernel("shared.down"))
    send = kernel("dispatch.send", exchange="dispatch", role="send", writes=("x8",))
    return LayerKernels({"G": (kernel("gate"),), "S": shared, "Da": (send,)}, {"x8": 4})


CATALOGUE = layer_catalogue(_layer())


def _ops(steps: tuple[Step, ...]) -> list[Op]:
    return [step.op for step in steps if isinstance(step, Launch)]


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_the_serving_engine_parse(name: str) -> None:
    lines = LAYERS[name].split("; ")
    ops = {line.split(":")[1].split("@")[0].split("(")[0].split("+")[0] for line in lines}
    blank = work("spin", ctas=1, cta_ns=1)
    catalogue = {op: (Launch(Op(op, "", blank)),) for op in ops if " " not in op}
    read = parse_stream_lines(lines, catalogue, BUDGETS)
    assert [op.name for op in _ops(read.steps)] == [
        line.split(":")[1].split("@")[0].split("(")[0].split("+")[0]
        for line in lines
        if " " not in line.split(":")[1].split("(")[0]
    ]
    assert {stream.name for stream in read.streams} == {
        line.split(":")[0] for line in lines if not line.startswith("host")
    }


def test_v1_in_full() -> None:
    blank = work("spin", ctas=1, cta_ns=1)
    names = "gate topk disp_send shared disp_recv gemm1 act gemm2 comb_send comb_recv add"
    catalogue = {op: (Launch(Op(op, "", blank)),) for op in names.split()}
    steps = parse_stream_lines(LAYERS["V1_hopper_deepgemm"].split("; "), catalogue, BUDGETS).steps
    assert steps[7:] == (
        Record("E0", "main"),
        Launch(Op("gemm2", "main", blank, Grid(116), raises="signal")),
        Wait("E0", "alt"),
        Launch(Op("comb_send", "alt", blank, Grid(32), polls="signal")),
        Record("join1.main", "main"),
        Wait("join1.main", "alt"),
        Launch(Op("comb_recv", "alt", blank)),
        Record("join2.alt", "alt"),
        Wait("join2.alt", "main"),
        Launch(Op("add", "main", blank)),
    )


def test_prefixes_and_letters_stand_for_several_kernels() -> None:
    for name in ("shared", "S"):
        ops = _ops(parse_stream_lines(f"main: {name} @100 +done ?go", CATALOGUE).steps)
        assert [op.name for op in ops] == ["shared.up", "shared.act", "shared.down"]
        assert {op.grid for op in ops} == {Grid(100, kind="static")}
        assert [op.raises for op in ops] == [None, None, "done"]
        assert [op.polls for op in ops] == ["go", None, None]


def test_what_the_kernel_knows_stays() -> None:
    text = (
        "stream comm priority=-1\n\ncomm: dispatch.send gang host=deepep  # a comment\nhost: wait n"
    )
    read = parse_stream_lines(text, CATALOGUE)
    launch = read.steps[0]
    assert isinstance(launch, Launch)
    assert (launch.op.exchange, launch.op.role, launch.op.writes) == ("dispatch", "send", ("x8",))
    assert launch.op.grid == Grid(kind="static", gang=True)
    assert launch.host_class == "deepep"
    assert read.streams[0].priority == -1
    assert read.steps[1] == HostWait("n")


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("main: gate\nmain: shard", 2, 7, "unknown op 'shard'; did you mean 'shared'"),
        ("mian: gate", 1, 1, "stream 'mian' is not declared; did you mean 'main'"),
        ("main: gate @comp", 1, 7, "unknown budget @comp"),
        ("main: gate @0", 1, 7, "0 SMs is not a budget"),
        ("main: S\nalt: shared.up", 2, 6, "launched in line 1 already"),
        ("main: gate (poll)", 1, 7, "needs one signal, 0 are raised"),
        ("main: gate layer=3", 1, 7, "'layer' follows from the op"),
        ("main: gate colour=3", 1, 12, "unknown attribute 'colour'"),
        ("main: gate kind=slow", 1, 17, "unknown value 'slow'"),
        ("main: gate gang gang", 1, 17, "stands twice"),
        ("host: gate", 1, 7, "the host knows"),
        ("host: rec E0", 1, 7, "unknown action of the host 'rec'"),
        ("main: work vote", 1, 7, "unknown action of a stream"),
        ("host: begin step x", 1, 13, "unknown region 'step'; did you mean 'stage'"),
        ("main: wait E0 E1", 1, 15, "unexpected 'E1'"),
        ("main: wait", 1, 11, "expected an event"),
        ("main gate", 1, 1, "unknown declaration 'main'"),
        ("main: gate ; x", 1, 12, "unexpected character ';'"),
        ("main: gate (slow", 1, 17, "expected ')'"),
        ("signal s blocks=3", 1, 18, "a signal needs threshold="),
    ],
)
def test_errors_mark_the_fault(text: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_stream_lines(text, CATALOGUE)
    assert reason in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    shown = str(caught.value).splitlines()
    assert shown[-2:] == ["    " + text.splitlines()[line - 1], "    " + " " * (column - 1) + "^"]
