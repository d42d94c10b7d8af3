"""Which schedules SGLang does not run, each with its rule, and batches at the edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from models.deployment import Batch
from models.routing import RoutingSpec, route
from models.sglang_rules import Refused
from schedules.builders import build, refusal
from tests.models.layer_cases import decode
from tests.schedules.build_cases import BLACKWELL, DECODE, PREFILL, case

OWN = {"ops": "P Q | C M G T | Da S | Db X Ca | Cb | O Z", "delta": 2}
OUTSIDE = {"SGLANG_BLACKWELL_OVERLAP_SHARED_EXPERTS_OUTSIDE_SBO": "1"}


def rule(name: str, phase: str, model: str = "deepseek-v3", **changes: Any) -> str | None:
    """The rule that refuses, or None; `changes` are of the deployment, the exchange or the machine."""
    options = {key: changes.pop(key) for key in ("launch", "env", "ops", "delta") if key in changes}
    a2a = {
        key: changes.pop(key)
        for key in ("backend", "mode", "max_dispatch_tokens_per_rank")
        if key in changes
    }
    runner = changes.pop("moe_runner", "deep_gemm")
    deployment, batch, routing = case(
        phase, model, tokens=128 if phase == DECODE else 1024, **changes
    )
    deployment = replace(deployment, a2a=replace(deployment.a2a, **a2a), moe_runner=runner)
    found = refusal(name, deployment, batch, routing, **options)
    return found.rule if found else None


@pytest.mark.parametrize(
    ("name", "phase", "changes", "expected"),
    [
        ("sequential", DECODE, {}, None),
        ("baseline", PREFILL, {}, None),
        ("tbo", DECODE, {}, None),
        ("tbo", PREFILL, {}, None),
        ("sbo", DECODE, {}, "sbo.sm90"),
        ("sbo", DECODE, BLACKWELL, None),
        ("sbo", DECODE, {**BLACKWELL, "compute_capability": (8, 0)}, None),
        ("sbo", PREFILL, BLACKWELL, "sbo.normal_mode"),
        ("sbo.v3", DECODE, BLACKWELL, None),
        ("sbo.v2", DECODE, BLACKWELL, "sbo.variant"),
        ("sbo.v2", DECODE, {**BLACKWELL, "moe_runner": "flashinfer_cutedsl"}, None),
        ("sbo.v4b", DECODE, {**BLACKWELL, "env": OUTSIDE}, None),
        ("sbo.v4", DECODE, {**BLACKWELL, "env": OUTSIDE}, "sbo.variant"),
        (
            "tbo",
            PREFILL,
            {"mode": "low_latency", "max_dispatch_tokens_per_rank": 1024},
            "tbo.extend_low_latency",
        ),
        ("tbo", DECODE, {"model": "glm-4.5"}, "tbo.no_strategy"),
        ("tbo", PREFILL, {"model": "deepseek-v4-flash"}, None),
        ("tbo", DECODE, {"model": "deepseek-v4-flash"}, "tbo.prefill_only"),
        ("baseline", DECODE, {"backend": "mooncake"}, None),
        ("sbo.v3b", DECODE, {**BLACKWELL, "backend": "mooncake"}, None),
        ("sbo.v3", DECODE, {**BLACKWELL, "backend": "mooncake"}, "sbo.variant"),
        ("sbo.v4b", DECODE, {**BLACKWELL, "backend": "nixl", "env": OUTSIDE}, None),
        ("sbo", DECODE, {"compute_capability": (8, 0), "backend": "nixl"}, "sbo.hooks"),
        ("sbo", DECODE, {"backend": "deepep_v2"}, "a2a.mode"),
        ("baseline", PREFILL, {"backend": "mooncake"}, "a2a.mode"),
        ("baseline", DECODE, {"max_dispatch_tokens_per_rank": 64}, "a2a.low_latency_cap"),
        ("tbo", DECODE, {"max_dispatch_tokens_per_rank": 64}, None),
        ("tbo", DECODE, {"max_dispatch_tokens_per_rank": 63}, "a2a.low_latency_cap"),
        ("mine", DECODE, {"max_dispatch_tokens_per_rank": 64, **OWN}, None),
        ("mine", DECODE, {"max_dispatch_tokens_per_rank": 63, **OWN}, "a2a.low_latency_cap"),
        ("baseline", DECODE, {"max_dispatch_tokens_per_rank": 2048}, "a2a.low_latency_limit"),
        ("baseline", PREFILL, {"launch": "cuda_graph"}, "a2a.graph_normal"),
    ],
)
def test_rule(name: str, phase: str, changes: dict[str, Any], expected: str | None) -> None:
    assert rule(name, phase, **changes) == expected


def test_no_dense_prefix_means_that_nothing_is_split() -> None:
    deployment, batch, routing = case(DECODE)
    deployment = replace(deployment, model=replace(deployment.model, first_k_dense=0))
    found = refusal("tbo", deployment, batch, routing)
    assert found is not None
    assert (found.rule, found.evidence) == ("tbo.no_dense_prefix", "code")


def test_build_raises_with_rule_and_reason() -> None:
    with pytest.raises(Refused, match=r"compute capability 9\.0\) \[sbo\.sm90, run\]"):
        build("sbo", *case(DECODE), layers=1)


def test_allow_refused_builds_it_all_the_same() -> None:
    built = build("sbo", *case(DECODE), layers=1, allow_refused=True)
    assert any(op.polls for op in built.classes[0].ops)


def test_what_cannot_be_built_stays_refused() -> None:
    with pytest.raises(Refused, match=r"sbo\.normal_mode"):
        build("sbo", *case(PREFILL, tokens=1024, **BLACKWELL), layers=1, allow_refused=True)


def test_a_rank_without_sequences_still_takes_part() -> None:
    deployment, _, _ = case(DECODE)
    batch = Batch("decode", ((1,) * 8,) * 7 + ((),), ((64,) * 8,) * 7 + ((),))
    routing = route(RoutingSpec(), batch.tokens, deployment.model)
    built = build("tbo", deployment, batch, routing, layers=1)
    names = {cls.ranks: {op.name for op in cls.ops} for cls in built.classes}
    assert set(map(frozenset, names.values())) == {frozenset(names[(7,)])}


def test_target_verify_is_split_by_sequences() -> None:
    deployment, _, _ = case(DECODE)
    batch = Batch("decode", ((4,) * 3,) * 8, ((64,) * 3,) * 8)
    routing = route(RoutingSpec(), batch.tokens, deployment.model)
    ops = {op.name: op for op in build("tbo", deployment, batch, routing, layers=1).classes[0].ops}
    assert ops["L0.a.gate"].work.dim("m") == 4
    assert ops["L0.b.gate"].work.dim("m") == 8


def test_a_larger_decode_batch_than_the_buffer_fits_as_children() -> None:
    deployment, _, _ = case(DECODE)
    batch = decode(8, 200, 64)
    routing = route(RoutingSpec(), batch.tokens, deployment.model)
    assert refusal("tbo", deployment, batch, routing) is None
    found = refusal("baseline", deployment, batch, routing)
    assert found is not None
    assert "200 tokens, cap 128" in found.reason
