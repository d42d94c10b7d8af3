"""Schedules with a fused shared expert: kernels, layout and destinations change, the order does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.deployment import Fusion
from models.errors import InputError
from models.exchanges import exchange_bytes
from models.fused_routing import fused_routing
from schedules.builders import build, refusal, schedule_names
from schedules.lint import lint
from schedules.program import Program
from tests.schedules.build_cases import DECODE, PREFILL, case, kernel, program

PER_RANK = Fusion(1, "per_rank")
FUSED = [(name, DECODE) for name in schedule_names(fused=True) if "+" in name]
FUSED += [(f"{name}+fused", PREFILL) for name in ("sequential", "baseline", "tbo")]


def kernels_of(built: Program) -> list[str]:
    return [kernel(op) for op in built.classes[0].ops if op.layer == 0]


@pytest.mark.parametrize(("name", "phase"), FUSED)
def test_fused_programs_pass_lint_and_launch_no_shared_expert(name: str, phase: str) -> None:
    built = program(name, phase)
    assert built.name == name
    assert [finding for finding in lint(built) if finding.severity == "error"] == []
    assert not any(op.startswith("shared.") for op in kernels_of(built))


def test_unfused_programs_do_launch_it() -> None:
    assert any(op.startswith("shared.") for op in kernels_of(program("baseline", DECODE)))


@pytest.mark.parametrize("name", ["sequential", "tbo"])
def test_fusion_keeps_the_order_of_what_is_left(name: str) -> None:
    plain = [op for op in kernels_of(program(name, DECODE)) if not op.startswith("shared.")]
    assert kernels_of(program(f"{name}+fused", DECODE)) == plain


def test_the_private_slot_is_one_more_row_and_loopback_message() -> None:
    deployment, batch, routing = case(DECODE)
    fused = replace(deployment, fusion=PER_RANK)
    wide = fused_routing(routing, PER_RANK)
    before = np.array(exchange_bytes(deployment, routing, "dispatch"))
    after = np.array(exchange_bytes(fused, wide, "dispatch"))
    extra = after - before
    per_copy = before.sum() / routing.rank_copies().sum()
    assert (np.diag(extra) == np.array(batch.tokens) * per_copy).all()
    assert extra.sum() == np.diag(extra).sum()
    assert (wide.local_expert_tokens()[:, -1] == batch.tokens).all()


def test_grouped_gemms_do_the_shared_expert_s_work() -> None:
    """Both programs of a rank multiply the same matrices; only where they do it differs."""

    def flops(name: str) -> int:
        built = build(name, *case(DECODE), layers=1, fold=False, allow_refused=True)
        ops = [op for cls in built.classes for op in cls.ops]
        names = ("gemm1", "gemm2")
        wanted = [op for op in ops if kernel(op) in names or kernel(op).startswith("shared.")]
        return sum(op.work.total_flops for op in wanted)

    assert flops("sequential+fused") == flops("sequential")


def test_waterfill_is_applied_to_each_child_alone() -> None:
    """A whole batch of 96 rows a rank balances; its children of 48 are below the threshold, so that
    their shared copies all stay at home."""
    deployment, batch, routing = case(DECODE, tokens=96)
    plain = build("tbo+fused", deployment, batch, routing, layers=1, allow_refused=True)
    filled = build("tbo+fused+waterfill", deployment, batch, routing, layers=1, allow_refused=True)
    assert [e.bytes for e in filled.exchanges] == [e.bytes for e in plain.exchanges]
    whole = build("baseline+fused", deployment, batch, routing, layers=1)
    balanced = build("baseline+fused+waterfill", deployment, batch, routing, layers=1)
    assert balanced.exchanges[0].bytes != whole.exchanges[0].bytes


def test_refusals_speak_in_the_server_s_words() -> None:
    deployment, batch, routing = case(DECODE)
    no_shared = replace(deployment, model=replace(deployment.model, n_shared_experts=0))
    found = refusal("baseline+fused", no_shared, batch, routing)
    assert found is not None and found.rule == "config.no_shared"
    qwen = replace(deployment, model=replace(deployment.model, architecture="Qwen2MoeForCausalLM"))
    found = refusal("baseline+fused", qwen, batch, routing)
    assert found is not None and found.rule.startswith("qwen.can_fuse.")
    assert refusal("baseline+fused+waterfill", deployment, batch, routing) is None


def test_waterfill_is_refused_where_its_kernel_does_not_compile() -> None:
    deployment, batch, routing = case(DECODE)
    many = replace(deployment, ep_size=64)
    wide = replace(batch, new_tokens=batch.new_tokens * 8, prefix_tokens=batch.prefix_tokens * 8)
    ids = replace(routing, ids=routing.ids * 8, ep_size=64)
    found = refusal("baseline+fused+waterfill", many, wide, ids)
    assert found is not None and found.rule == "waterfill.ranks"


def test_unknown_suffixes_are_named() -> None:
    with pytest.raises(ValueError, match=r"\+fused\+waterfill"):
        build("baseline+fuse", *case(DECODE), layers=1)


def test_a_global_slot_cannot_travel() -> None:
    _, _, routing = case(DECODE)
    with pytest.raises(InputError, match="per_rank"):
        fused_routing(routing, Fusion(1, "global"))
