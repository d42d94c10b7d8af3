"""Two-batch overlap: stages, turns, what hides a transfer, and that no two are in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.deployment import Batch
from models.routing import Routing, RoutingSpec, route
from models.sglang_rules import Refused
from schedules.builders import build
from schedules.builders.turns import issue_order
from schedules.lint import lint
from schedules.program import Begin, HostWork, Launch, Op, Program, Record, Wait
from tests.models.layer_cases import prefill
from tests.schedules.build_cases import DECODE, PREFILL, case, kernel, program


def stages(built: Program) -> list[str]:
    steps = built.classes[0].steps
    return [step.name for step in steps if isinstance(step, Begin) and step.kind == "stage"]


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize(("phase", "per_layer"), [(DECODE, 5), (PREFILL, 2)])
def test_number_and_order_of_stages(phase: str, per_layer: int, layers: int) -> None:
    names = stages(program("tbo", phase, layers=layers))
    count = per_layer * layers + 1
    assert sorted(names) == sorted(f"{c}.{i}" for c in "ab" for i in range(count))
    # A is never behind B: stage i of A is issued before stage i of B.
    assert all(names.index(f"a.{i}") < names.index(f"b.{i}") for i in range(count))
    if phase == DECODE:
        assert names[:6] == ["a.0", "a.1", "a.2", "b.0", "a.3", "b.1"]
        assert names[-2:] == [f"b.{count - 2}", f"b.{count - 1}"]
    else:
        assert names == [f"{c}.{i}" for i in range(count) for c in "ab"]


def test_delta_must_leave_a_stage() -> None:
    with pytest.raises(ValueError, match="0 to the number of stages, 3"):
        issue_order(3, 4)


def in_flight(ops: tuple[Op, ...]) -> list[tuple[Op, set[str]]]:
    """Each op on main in order, with the low-latency transfers that are sent and not received."""
    flying: set[str] = set()
    seen = []
    for op in ops:
        if op.role == "recv" and op.exchange:
            flying.discard(op.exchange)
        if op.role == "send" and op.exchange:
            flying.add(op.exchange)
        seen.append((op, set(flying)))
    return seen


def test_decode_has_one_transfer_in_flight_and_none_beside_the_experts() -> None:
    walked = in_flight(program("tbo", DECODE, layers=4).classes[0].ops)
    assert {op.stream for op, _ in walked} == {"main"}
    assert max(len(flying) for _, flying in walked) == 1
    experts = [flying for op, flying in walked if kernel(op) in ("gemm1", "act", "gemm2")]
    assert len(experts) == 3 * 2 * 4
    assert not any(experts)


def hidden_under(ops: tuple[Op, ...], exchange: str) -> list[str]:
    """Names of the kernels between an exchange's send and its receive."""
    names = [op.name for op in ops]
    return names[names.index(f"{exchange}.send") + 1 : names.index(f"{exchange}.recv")]


def test_what_hides_a_transfer_in_decode() -> None:
    ops = program("tbo", DECODE, layers=3).classes[0].ops
    # A's dispatch: its own shared expert, then B's end of the layer before and start of this one.
    dispatch = hidden_under(ops, "L1.a.dispatch")
    assert dispatch[0] == "L1.a.shared.gate_up.quantise"
    assert dispatch[5:7] == ["L0.b.add", "L1.b.norm1"]
    assert dispatch[-1] == "L1.b.rope"
    # A's combine: B's attention core up to top-k.
    combine = hidden_under(ops, "L1.a.combine")
    assert (combine[0], combine[-1]) == ("L1.b.kv_write", "L1.b.topk")
    # At the end nothing is left to hide B's combine.
    assert hidden_under(ops, "L2.b.combine") == []


def test_prefill_dispatch_waits_for_an_event_recorded_before_the_yield() -> None:
    steps = program("tbo", PREFILL).classes[0].steps
    event = "L0.a.dispatch.ready"
    record = steps.index(Record(event, "main"))
    first_b = next(i for i, s in enumerate(steps) if isinstance(s, Launch) and s.op.child == "b")
    assert record < first_b < steps.index(Wait(event, "comm"))


def test_prefill_limits_deep_gemm_and_nothing_else() -> None:
    ops = program("tbo", PREFILL).classes[0].ops
    limits = {kernel(op): (op.grid.enforced_budget, op.grid.limited_by) for op in ops}
    assert limits["gemm1"] == limits["o_proj"] == limits["shared.down"] == (112, "grid")
    assert limits["attn"] == limits["gate"] == limits["norm1"] == (None, "ignored")
    assert limits["dispatch"] == limits["combine"] == (20, "grid")


@pytest.mark.parametrize(("sm_cap", "budget"), [(0, None), (100, 100)])
def test_the_limit_can_be_lifted_or_moved(sm_cap: int, budget: int | None) -> None:
    ops = program("tbo", PREFILL, sm_cap=sm_cap).classes[0].ops
    assert {op.grid.enforced_budget for op in ops if kernel(op) == "gemm1"} == {budget}


def test_decode_limits_nothing() -> None:
    ops = program("tbo", DECODE).classes[0].ops
    assert {op.grid.sm_budget for op in ops} == {None}


def test_low_latency_buffers_alternate_in_host_order() -> None:
    exchanges = program("tbo", DECODE).exchanges
    assert [e.name for e in exchanges[:4]] == [
        "L0.a.dispatch",
        "L0.a.combine",
        "L0.b.dispatch",
        "L0.b.combine",
    ]
    assert [e.buffer for e in exchanges] == ["ll0", "ll1"] * 4


def test_children_carry_the_whole_batch_between_them() -> None:
    whole = program("sequential", PREFILL, layers=1).exchange("L0.dispatch").bytes
    built = program("tbo", PREFILL, layers=1)
    a, b = (built.exchange(f"L0.{child}.dispatch").bytes for child in "ab")
    assert [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)] == [
        list(row) for row in whole
    ]


def test_a_two_chunk_child_reads_what_the_other_cached() -> None:
    deployment, _, _ = case(PREFILL)

    batch = prefill(8, 1, 1000)
    routing = route(RoutingSpec(), batch.tokens, deployment.model)
    ops = {op.name: op for op in build("tbo", deployment, batch, routing, layers=1).classes[0].ops}
    assert "L0.a.kv_cache" in ops["L0.b.attn"].reads
    assert "L0.b.kv_cache" not in ops["L0.a.attn"].reads
    # Between sequences there is no such piece.
    even = {op.name: op for op in program("tbo", PREFILL, layers=1).classes[0].ops}
    assert "L0.a.kv_cache" not in even["L0.b.attn"].reads


def test_lint_sees_that_a_two_chunk_child_needs_the_others_compressed_keys() -> None:
    """With child A's compressed keys on a stream of their own that nobody waits for."""
    deployment, _, _ = case(PREFILL, "deepseek-v4-flash")
    batch = prefill(8, 1, 1000)
    routing = route(RoutingSpec(), batch.tokens, deployment.model)
    built = build("tbo", deployment, batch, routing, layers=1, allow_refused=True)
    assert not [found for found in lint(built) if found.severity == "error"]
    loose = tuple(
        replace(step, op=replace(step.op, stream="comm"))
        if isinstance(step, Launch) and step.op.name == "L0.a.compress.pool"
        else step
        for step in built.classes[0].steps
    )
    classes = (replace(built.classes[0], steps=loose), *built.classes[1:])
    races = [found.message for found in lint(replace(built, classes=classes))]
    assert [text for text in races if "L0.b.attn" in text and "L0.a.kv_compressed" in text]
    assert [text for text in races if "L0.b.index" in text and "L0.a.kv_compressed" in text]


def test_a_users_list_with_qwen_yields() -> None:
    ops = "P Q | C M G T | Da | Db X Ca | Cb S O Z |"
    built = program("mine", DECODE, layers=2, ops=ops, delta=2)
    assert len(stages(built)) == 2 * 5 * 2
    assert built.name == "mine"


def test_a_users_list_must_name_every_kernel() -> None:
    with pytest.raises(ValueError, match="leaves out S"):
        program("mine", DECODE, ops="P Q C M G T Da | Db X Ca Cb O Z")


def test_a_users_list_must_follow_the_data() -> None:
    with pytest.raises(ValueError, match=r"L0.a.gemm1 reads 'L0.a.recv' before L0.a.dispatch.recv"):
        program("mine", DECODE, ops="P Q C M G T Da | X Db Ca Cb S O Z")


def test_other_layer_classes() -> None:
    qwen = build("tbo", *case(DECODE, "qwen3-30b-a3b"), layers=3)
    assert len(stages(qwen)) == 2 * 15
    with pytest.raises(Refused, match=r"Glm4MoeDecoderLayer.*tbo.no_strategy"):
        build("tbo", *case(DECODE, "glm-4.5"), layers=1)


def test_an_exchange_that_is_whole_in_its_first_half_hides_nothing() -> None:
    deployment, batch, routing = case(DECODE)
    deployment = replace(deployment, a2a=replace(deployment.a2a, backend="pplx"))
    ops = build("tbo", deployment, batch, routing, layers=2).classes[0].ops
    exchanges = [op.exchange for op in ops if op.role == "send" and op.exchange]
    assert len(exchanges) == 8
    assert all(hidden_under(ops, exchange) == [] for exchange in exchanges)


def test_the_split_costs_host_time_before_the_graph() -> None:
    steps = program("tbo", DECODE, whole_step=True).classes[0].steps
    assert steps[:2] == (HostWork("split_metadata"), Begin("graph", "step"))


@pytest.mark.parametrize("name", ["sequential", "baseline"])
def test_a_whole_batch_of_unequal_ranks_is_dealt_to_its_group(name: str) -> None:
    """Groups of 40 and 25 sequences pad to 66 rows, 33 a rank, as a child of 65 does: attention projects
    66 rows, the gate sees 33 on every rank, and 65 x 8 copies of a group are sent."""
    base, _, routing = case(DECODE, tokens=40)
    counts = (40, 25) * 4
    batch = Batch("decode", tuple((1,) * n for n in counts), tuple((64,) * n for n in counts))
    uneven = Routing(
        tuple(ids[:n] for ids, n in zip(routing.ids, counts, strict=True)),
        routing.num_physical,
        routing.ep_size,
    )
    pair = replace(base, attention_tp=2, attention_dp=4)
    built = build(name, pair, batch, uneven, layers=1, fold=False)
    for cls in built.classes:
        rows = {kernel(op): op.work.dim("m") for op in cls.ops if kernel(op) in GEMMS}
        assert rows == GEMMS
    copy = 7168 + 56 * 4 + 16
    (sent,) = [
        [sum(row) for row in exchange.bytes]
        for exchange in built.exchanges
        if exchange.name.endswith("dispatch")
    ]
    assert [sent[r] + sent[r + 1] for r in range(0, 8, 2)] == [65 * 8 * copy] * 4


def test_children_of_an_attention_group_work_on_padded_rows_and_send_real_ones() -> None:
    """Attention TP 2, 65 sequences a rank: a group's 130 make children of 65, padded to 66, 33 rows a
    rank. Attention projects 66 rows, the gate sees 33, and only 65 x 8 copies of a group are sent."""
    base, batch, routing = case(DECODE, tokens=65)
    pair = replace(base, attention_tp=2, attention_dp=4)
    built = build("tbo", pair, batch, routing, layers=1, fold=False)
    for cls in built.classes:
        rows = {(op.child, kernel(op)): op.work.dim("m") for op in cls.ops if kernel(op) in GEMMS}
        assert rows == {(child, name): GEMMS[name] for child in ("a", "b") for name in GEMMS}
    copy = 7168 + 56 * 4 + 16  # fp8, a scale per 128 values, a header
    sent = [
        [sum(row) for row in exchange.bytes]
        for exchange in built.exchanges
        if exchange.name.endswith("dispatch")
    ]
    groups = [[rank[r] + rank[r + 1] for r in range(0, 8, 2)] for rank in sent]
    assert groups == [[65 * 8 * copy] * 4] * 2


GEMMS = {"o_proj": 66, "gate": 33}
