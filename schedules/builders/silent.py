"""What SGLang accepts and then does not do, or does otherwise, without a word."""

from __future__ import annotations

from collections.abc import Iterator

from models.exchanges import nodes_of
from models.sglang_rules import Refused
from models.sglang_tbo import tbo_strategy
from schedules.builders.refuse import selected_variant
from schedules.builders.request import Request


def silent_rules(request: Request) -> Iterator[str]:
    """Ids of the rules file's notes that hold for this schedule, deployment and batch."""
    normal = not request.deployment.a2a.collective and not request.low_latency
    if request.other_mode_ranks and request.mode != "EXTEND" and normal:
        yield "a2a.auto_extend"
    if request.name == "tbo":
        yield from _tbo(request)
    if request.name.partition(".")[0] == "sbo":
        yield from _sbo(request)


def _tbo(request: Request) -> Iterator[str]:
    rules, deployment = request.rules, request.deployment
    if not any(request.split[0].tokens):
        yield "tbo.empty_child"
    modes = rules.halves.get(deployment.a2a.backend, {})
    halves = modes.get(deployment.a2a.mode)
    if halves is not None and halves.Da and not halves.Db and not halves.Cb:
        yield "tbo.whole_exchange"
    elif request.low_latency and nodes_of(deployment) == 1:
        yield "tbo.no_flight"
    layer_class = rules.layer_class(deployment.model.architecture)
    try:
        strategy = tbo_strategy(rules, layer_class, request.mode, deployment.a2a.backend)
    except Refused:
        return
    if strategy.gemm_sms == "minus_comm" and deployment.moe_runner != "deep_gemm":
        yield "tbo.sm_limit_unused"


def _sbo(request: Request) -> Iterator[str]:
    rules, deployment = request.rules, request.deployment
    if deployment.a2a.backend not in (*rules.sbo.hook_backends, "none"):
        yield "sbo.hooks_unused"
    layer_class = rules.layer_class(deployment.model.architecture)
    if layer_class in rules.notes["sbo.no_effect"].layer_classes:
        yield "sbo.no_effect"
    try:
        name = selected_variant(request)
    except Refused:
        return
    variant, hazard = rules.sbo.variants[name], rules.notes["sbo.in_place"]
    runs_shared = deployment.model.n_shared_experts and not deployment.fusion.slots
    if name in hazard.variants and deployment.moe_runner in hazard.runners and runs_shared:
        yield "sbo.in_place"
    if variant.blackwell and any("combine.send @comm" in line for line in variant.layer):
        yield "sbo.send_sms"
