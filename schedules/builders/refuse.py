"""Whether SGLang runs a schedule on a deployment and batch, and why not."""

from __future__ import annotations

from models.sglang_rules import Refusal, Refused
from models.sglang_sbo import select_variant, startup_refusal
from models.sglang_tbo import RankVote, local_can_run, vote_refusal
from schedules.builders.request import Request
from schedules.builders.two_batch import tbo_plan


def refusal_of(request: Request) -> Refusal | None:
    """Why SGLang does not run the schedule, None when it does. A user's own schedule is only held to
    what the exchange can do."""
    exchange = _exchange_refusal(request)
    if exchange is not None:
        return exchange
    if request.name.partition(".")[0] == "sbo":
        return _sbo_refusal(request)
    if request.name == "tbo":
        return _tbo_refusal(request)
    if request.ops is not None:
        return _cap_refusal(request, _largest_child(request))
    return _cap_refusal(request, max(request.whole.tokens))


def selected_variant(request: Request) -> str:
    """The SBO variant that the name asks for, or that device, runner, environment and backend select;
    `Refused` when they select none."""
    named = request.name.partition(".")[2] or _selected(request)
    if named is None:
        raise Refused(request.rules.refusal("sbo.hooks", request.deployment.a2a.backend))
    return named


def _selected(request: Request) -> str | None:
    return select_variant(
        request.rules,
        blackwell=request.blackwell,
        runner=request.deployment.moe_runner,
        outside=request.shared_outside,
        backend=request.deployment.a2a.backend,
    )


def _exchange_refusal(request: Request) -> Refusal | None:
    a2a, rules = request.deployment.a2a, request.rules
    try:
        rules.halves_of(a2a.backend, a2a.mode)
        assert request.launching
    except Refused as refused:
        return refused.refusal
    limit = rules.defaults.ll_tokens_per_rank_limit
    if request.low_latency and a2a.max_dispatch_tokens_per_rank > limit:
        asked = a2a.max_dispatch_tokens_per_rank
        return rules.refusal("a2a.low_latency_limit", f"{asked} asked, limit {limit}")
    return None


def _cap_refusal(request: Request, tokens: int) -> Refusal | None:
    cap = request.deployment.a2a.max_dispatch_tokens_per_rank
    if request.low_latency and tokens > cap:
        return request.rules.refusal("a2a.low_latency_cap", f"{tokens} tokens, cap {cap}")
    return None


def _sbo_refusal(request: Request) -> Refusal | None:
    rules, capability = request.rules, request.deployment.machine.compute_capability
    if request.deployment.a2a.backend in rules.refusals["sbo.backend"].backends:
        return rules.refusal("sbo.backend", request.deployment.a2a.backend)
    startup = startup_refusal(rules, capability, sbo=True)
    if startup is not None:
        return startup
    if not request.low_latency and not request.deployment.a2a.collective:
        return rules.refusal("sbo.normal_mode")
    selected = _selected(request)
    if selected is None:
        return rules.refusal("sbo.hooks", request.deployment.a2a.backend)
    if selected_variant(request) != selected:
        asked = selected_variant(request)
        return rules.refusal("sbo.variant", f"{asked} asked, {selected} selected")
    return _cap_refusal(request, max(request.whole.tokens))


def _tbo_refusal(request: Request) -> Refusal | None:
    rules, deployment = request.rules, request.deployment
    if deployment.a2a.backend in rules.refusals["tbo.backend"].backends:
        return rules.refusal("tbo.backend", deployment.a2a.backend)
    if deployment.a2a.collective and deployment.attention_dp == 1:
        return rules.refusal("tbo.needs_attention_dp")
    layer_class = rules.layer_class(deployment.model.architecture)
    whole = layer_class in rules.refusals["tbo.prefill_only"].layer_classes
    if whole and request.mode not in rules.tbo.extend_modes:
        return rules.refusal("tbo.prefill_only", request.mode)
    try:
        plan = tbo_plan(request)
    except Refused as refused:
        return refused.refusal
    if deployment.a2a.collective and any("Da" in stage for stage in plan.stages):
        return rules.refusal("tbo.no_halves")
    quirk = rules.refusals["tbo.no_dense_prefix"]
    if deployment.model.first_k_dense == 0 and layer_class in quirk.layer_classes:
        return rules.refusal("tbo.no_dense_prefix", layer_class)
    if request.mode in rules.tbo.extend_modes and request.low_latency:
        return rules.refusal("tbo.extend_low_latency", request.mode)
    failed = vote_refusal(
        rules, [_vote(request, r, cut.seq_index) for r, cut in enumerate(request.children[0].cuts)]
    )
    return failed or _cap_refusal(request, _largest_child(request))


def _largest_child(request: Request) -> int:
    return max(max(child.batch.tokens) for child in request.children)


def _vote(request: Request, rank: int, seq_index: int) -> RankVote:
    mode = request.mode_of(rank)
    ok = local_can_run(
        request.rules,
        tbo=True,
        mode=mode,
        split_known=True,
        a2a=request.deployment.a2a.backend,
        low_latency=request.low_latency,
    )
    return RankVote(ok, mode, seq_index)
