"""Keys that change nothing where they stand: those that contradict another key are refused, the others
are told by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from models.deployment import Deployment
from models.memory import static_pool_tokens
from models.sglang_rules import Rules
from scenarios.errors import KeyPath, dotted, shown
from scenarios.faults import field_at
from scenarios.schema import ModelSpec, Scenario, UserSchedule
from schedules.builders.request import WATERFILL_ENV

_DRAWN = ("uniform", "power_law", "histogram")
# What each of these keys is read under.
_DISTRIBUTIONS = {
    "alpha": ("power_law",),
    "histogram": ("histogram",),
    "path": ("file",),
    "seed": _DRAWN,
    "grouped": _DRAWN,
}
_NEEDED = {"power_law": "alpha", "histogram": "histogram", "file": "path"}


@dataclass(frozen=True, slots=True)
class Idle:
    """A key with a value of its own that changes nothing, and why."""

    key: str
    value: object
    why: str

    def __str__(self) -> str:
        return f"{self.key} = {shown(self.value)} has no effect: {self.why}"


def check_routing(scenario: Scenario) -> None:
    """ScenarioError for a key of `routing` that its distribution does not read, or for the one that it
    needs and lacks. Where `--set` replaced the distribution, what the file says beside it may stay."""
    routing = scenario.routing
    chosen = routing.distribution
    needed = _NEEDED.get(chosen)
    if needed is not None and needed not in routing.model_fields_set:
        raise scenario.fault(
            ("routing", "distribution"), f"needs routing.{needed}, which is missing"
        )
    replaced = scenario.is_override("routing", "distribution")
    for key, readers in _DISTRIBUTIONS.items():
        path = ("routing", key)
        if chosen in readers or not _stated(scenario, path):
            continue
        if replaced and not scenario.is_override(*path):
            continue
        raise scenario.fault(
            path,
            f"is not read with distribution {chosen}",
            allowed=f"with distribution {', '.join(readers)}",
        )


def idle_keys(scenario: Scenario, deployment: Deployment, rules: Rules) -> tuple[Idle, ...]:
    """Keys that are not at their default and still change nothing in this scenario."""
    candidates = (
        *_exchange(deployment),
        *_batch(scenario),
        *_engine(scenario, deployment),
        *_model(scenario, deployment),
    )
    found = [
        Idle(dotted(path), _value(scenario, path), why)
        for path, why in candidates
        if _stated(scenario, path)
    ]
    return (*found, *_environment(scenario, rules))


def _exchange(deployment: Deployment) -> Iterator[tuple[KeyPath, str]]:
    a2a = deployment.a2a
    if a2a.collective:
        why = "the collectives of backend none do not take it"
        yield ("a2a", "mode"), why
        yield ("a2a", "num_sms"), why
        yield ("a2a", "max_dispatch_tokens_per_rank"), why
        yield ("quantization", "dispatch"), "backend none gathers bf16"
    elif a2a.mode == "normal":
        yield ("a2a", "max_dispatch_tokens_per_rank"), "only low-latency buffers have this size"
    else:
        yield ("a2a", "num_sms"), "only normal-mode kernels take it"


def _batch(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    prefill = scenario.phase.prefill
    if prefill is None:
        if scenario.speculative.draft_tokens == 1:
            why = "a sequence without drafts has one token, too"
            yield ("speculative", "draft_tokens"), why
        return
    tokens = prefill.tokens_per_rank
    most = tokens if isinstance(tokens, int) else max(tokens)
    if prefill.sequence_tokens > most:
        why = f"no rank has more than {most} tokens, which are one sequence"
        yield ("phase", "prefill", "sequence_tokens"), why


def _engine(scenario: Scenario, deployment: Deployment) -> Iterator[tuple[KeyPath, str]]:
    runtime, splits = scenario.runtime, _names(scenario, "tbo") or _own_ops(scenario)
    if scenario.phase.decode is not None:
        yield ("runtime", "tbo_token_distribution_threshold"), "decode is cut at half its sequences"
    elif not splits:
        yield ("runtime", "tbo_token_distribution_threshold"), "no schedule splits the batch"
    if not splits and (scenario.a2a.mode != "auto" or deployment.a2a.collective):
        why = "it bears on a2a.mode auto and on two-batch overlap"
        yield ("runtime", "other_mode_ranks"), why
    if runtime.mem_fraction_static is not None and runtime.max_total_tokens is not None:
        pool = static_pool_tokens(deployment, runtime.mem_fraction_static)
        if runtime.max_total_tokens > pool:
            why = f"runtime.mem_fraction_static leaves no more than {pool:,} tokens"
            yield ("runtime", "max_total_tokens"), why


def _model(scenario: Scenario, deployment: Deployment) -> Iterator[tuple[KeyPath, str]]:
    model = deployment.model
    if isinstance(scenario.model, ModelSpec) and not model.first_k_dense:
        yield ("model", "intermediate_size"), "the model has no dense layer"
    if model.n_group == 1:
        yield ("routing", "grouped"), "the model has no groups of experts"


def _environment(scenario: Scenario, rules: Rules) -> Iterator[Idle]:
    known = {
        rules.sbo.comm_sms_env: ("sbo", "no schedule is single-batch overlap"),
        rules.sbo.outside_env: ("sbo", "no schedule is single-batch overlap"),
        WATERFILL_ENV: ("waterfill", "no schedule has Waterfill"),
    }
    for name, value in scenario.runtime.env.items():
        word, why = known.get(name, ("", "no rule reads it"))
        if not word or not _names(scenario, word):
            yield Idle(f"runtime.env.{name}", value, why)


def _names(scenario: Scenario, word: str) -> bool:
    if word == "waterfill" and scenario.shared_experts.waterfill:
        return True
    return any(word in item for item in scenario.schedules if isinstance(item, str))


def _own_ops(scenario: Scenario) -> bool:
    return any(isinstance(item, UserSchedule) and item.ops for item in scenario.schedules)


def _stated(scenario: Scenario, path: KeyPath) -> bool:
    """Whether the key has another value than its default (a key without one always has)."""
    info = field_at(path)
    assert info is not None
    return info.is_required() or _value(scenario, path) != info.default


def _value(scenario: Scenario, path: KeyPath) -> object:
    value: object = scenario
    for part in path:
        value = getattr(value, str(part))
    return value
