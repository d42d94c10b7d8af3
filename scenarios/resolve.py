"""From a checked scenario to the objects of floor 0: what every schedule of it is built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.config import library_models, load_model
from models.counts import FLOP_DTYPE
from models.deployment import A2A, A2AMode, Batch, Deployment, Model, Quantization
from models.errors import InputError
from models.exchanges import nodes_of
from models.fusion import Decision
from models.fusion_deployment import decide_for
from models.fusion_product import BACKENDS
from models.machine import Machine
from models.profile import library_machines, load_machine
from models.routed_ids import FewIds
from models.routing import Routing, RoutingSpec, route
from models.sglang_rules import Rules, available_versions, load_rules
from models.stored_format import weights_note
from scenarios.batch import batch_of
from scenarios.errors import BatchTooLarge, ScenarioError
from scenarios.idle import Idle, check_routing, idle_keys
from scenarios.pool import check_pool, kv_pool_tokens
from scenarios.schema import ModelSpec, Scenario, UserSchedule
from schedules.builders import schedule_names


@dataclass(frozen=True, slots=True)
class ScheduleChoice:
    """One schedule to build: a name that the builders know, or a user's operation list or lines."""

    name: str
    ops: str | None = None
    delta: int | None = None
    lines: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A scenario as the builders take it; `kv_pool_tokens` of a rank are reserved, None for no pool."""

    scenario: Scenario
    deployment: Deployment
    batch: Batch
    routing: Routing
    schedules: tuple[ScheduleChoice, ...]
    rules: Rules
    kv_pool_tokens: int | None = None

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step yields per GPU, as a mean over ranks: in prefill all new tokens, in
        decode one per sequence (drafts may be rejected, so none of them is counted)."""
        if self.batch.phase == "prefill":
            return sum(self.batch.tokens) / len(self.batch.tokens)
        lens = self.batch.new_tokens
        return sum(map(len, lens)) / len(lens)

    def built_name(self, choice: ScheduleChoice) -> str:
        """The builders' name of a choice: where the scenario's own flags lead to a fused shared expert
        or to a server that does not start, they are a suffix of every built-in schedule that carries
        none already. Where the server only logs why it does not fuse, the schedule stays as it is."""
        if "+" in choice.name or choice.ops is not None or choice.lines is not None:
            return choice.name
        if self._fusion(choice.name).outcome == "not fused":
            return choice.name
        waterfill = self.scenario.shared_experts.waterfill
        return f"{choice.name}+fused+waterfill" if waterfill else f"{choice.name}+fused"

    def fusion_note(self) -> str:
        """Why flags that speak of fusion have no effect; empty where they have one."""
        flags, decision = self.scenario.shared_experts, self._fusion("baseline")
        cleared = [step for step in decision.steps if ("disable", False) in step.changed]
        if flags.fusion == "disable" and cleared:
            return f"disable has no effect ({cleared[0].rule}): {cleared[0].reason.rstrip('.')}"
        if decision.outcome != "not fused" or not (flags.waterfill or flags.fusion == "enforce"):
            return ""
        return f"shared_experts has no effect ({decision.rule}): {decision.reason}"

    def format_note(self) -> str:
        """Where the weights are predicted in another format than the model's config says; empty where they
        are not, and where the scenario chooses the format of a library model."""
        spec, formats = self.scenario.model, self.scenario.quantization
        name = spec.base if isinstance(spec, ModelSpec) else spec
        if name in library_models() and "weights" in formats.model_fields_set:
            return ""
        return weights_note(formats.weights, self.deployment.model.quant_method, name)

    def ranks_note(self) -> str:
        """Where exchanges are priced that were measured between another number of ranks; empty where
        they were measured between as many, or none were."""
        machine, ep_size = self.deployment.machine, self.deployment.ep_size
        if not machine.measured_ranks or ep_size in machine.measured_ranks:
            return ""
        nodes = nodes_of(self.deployment)
        over = f" over {nodes} nodes of {machine.fabric.gpus_per_node}" if nodes > 1 else ""
        return (
            f"{machine.name}: exchanges were measured {_between(*machine.measured_ranks)} only; "
            f"{_between(ep_size)}{over} they are extrapolated: their times are those of the tables that "
            "the profile builds on, and what slows them is as it was measured"
        )

    def routing_note(self) -> str:
        """That uniform routing is the default's and not the file's; empty where a distribution is stated."""
        if "distribution" in self.scenario.routing.model_fields_set:
            return ""
        return (
            "routing.distribution is not stated: uniform is assumed; a skew can change the answer "
            "(--set routing.distribution=power_law --set routing.alpha=0.8)"
        )

    def notes(self) -> tuple[object, ...]:
        """What a user should know before trusting a prediction, a line each."""
        found = (self.format_note(), self.ranks_note(), self.routing_note())
        return (*self.idle_keys(), *filter(None, found))

    def idle_keys(self) -> tuple[Idle, ...]:
        """Keys of the scenario that change nothing in it."""
        return idle_keys(self.scenario, self.deployment, self.rules)

    def _fusion(self, schedule: str) -> Decision:
        flags = self.scenario.shared_experts
        return decide_for(
            self.deployment,
            self.rules.version,
            enforce=flags.fusion == "enforce",
            disable=flags.fusion == "disable",
            waterfill=flags.waterfill,
            sbo=schedule.startswith("sbo"),
            tbo=schedule == "tbo",
        )

    def choice(self, name: str) -> ScheduleChoice:
        """The scenario's schedule called `name`, or a known one that the scenario does not list."""
        for schedule in self.schedules:
            if schedule.name == name:
                return schedule
        known = schedule_names(self.rules, fused=True)
        if name in known:
            return ScheduleChoice(name)
        own = (schedule.name for schedule in self.schedules)
        names = tuple(dict.fromkeys((*own, *known)))
        raise ScenarioError(
            "unknown schedule", where=name, allowed=", ".join(names), near=names, word=name
        )


def _between(*ranks: int) -> str:
    if ranks == (1,):
        return "within 1 rank"
    return f"between {' and '.join(map(str, ranks))} ranks"


def resolve(scenario: Scenario, *, machine: Machine | None = None) -> Resolved:
    """Model, machine, deployment, batch and routing of a scenario; `machine` is the scenario's own where
    it has been loaded before.

    Raises ScenarioError or InputError, pointing at the file's line where the scenario is at fault.
    """
    rules = _rules(scenario)
    schedules = _schedules(scenario, rules)
    check_routing(scenario)
    batch = batch_of(scenario)
    model = _model(scenario)
    deployment = _deployment(scenario, model, machine or _machine(scenario), batch)
    pool = kv_pool_tokens(scenario, deployment)
    check_pool(scenario, deployment, batch, pool)
    routing = _route(scenario, batch, model)
    return Resolved(scenario, deployment, batch, routing, schedules, rules, pool)


def _rules(scenario: Scenario) -> Rules:
    known = available_versions()
    if scenario.runtime.sglang not in known:
        raise scenario.fault(
            ("runtime", "sglang"), "has no rules", allowed=", ".join(known), near=known
        )
    return load_rules(scenario.runtime.sglang)


def _model(scenario: Scenario) -> Model:
    spec = scenario.model
    key = ("model", "base") if isinstance(spec, ModelSpec) else ("model",)
    name = _place(scenario, spec.base if isinstance(spec, ModelSpec) else spec, *key)
    _check_known(scenario, key, name, library_models(), "config.json")
    try:
        if isinstance(spec, ModelSpec):
            model = load_model({**spec.model_dump(exclude_none=True), "base": name})
        else:
            model = load_model(name)
    except InputError as error:
        if isinstance(spec, ModelSpec) and error.key in spec.model_fields_set - {"base"}:
            problem = "does not fit the rest of the model"
            raise scenario.fault(("model", error.key), problem, allowed=error.allowed) from error
        raise
    if model.num_moe_layers < 1:
        raise scenario.fault(
            ("model",),
            f"has no MoE layer: {model.num_layers} layers, the first {model.first_k_dense} dense",
        )
    return model


def _machine(scenario: Scenario) -> Machine:
    name = _place(scenario, scenario.hardware, "hardware")
    _check_known(scenario, ("hardware",), name, library_machines(), "profile")
    return load_machine(name)


def _check_known(
    scenario: Scenario, key: tuple[str, ...], name: str, library: tuple[str, ...], file: str
) -> None:
    """ScenarioError for what is neither a name of the library nor a file that there is."""
    try:
        there = Path(name).is_file() or (key[0] == "model" and Path(name).is_dir())
    except OSError:  # a name longer than a file's may be
        there = False
    if name not in library and not there:
        allowed = f"the path of a {file}, or one of: {', '.join(library)}"
        problem = f"is neither {key[0]} of the library nor a file"
        raise scenario.fault(key, problem, allowed=allowed, near=library)


def _place(scenario: Scenario, name_or_path: str, *key: str) -> str:
    """A library name as it is; a relative path from where the key's paths start."""
    path = Path(name_or_path)
    is_path = len(path.parts) > 1 or path.suffix in (".yaml", ".yml", ".json")
    return str(scenario.folder(*key) / path) if is_path and not path.is_absolute() else name_or_path


def _deployment(scenario: Scenario, model: Model, machine: Machine, batch: Batch) -> Deployment:
    parallel, spec = scenario.parallel, scenario.a2a
    dp = parallel.attention_dp or max(1, parallel.ep // parallel.attention_tp)
    if dp * parallel.attention_tp != parallel.ep:
        raise scenario.fault(
            ("parallel",),
            f"attention_tp {parallel.attention_tp} x attention_dp {dp} are not the {parallel.ep} ranks",
            allowed="attention_tp * attention_dp = ep",
        )
    if spec.backend not in BACKENDS:
        key, names = ("a2a", "backend"), ", ".join(BACKENDS)
        raise scenario.fault(key, "unknown", allowed=names, near=BACKENDS)
    redundant = scenario.routing.redundant_experts
    physical = model.n_routed_experts + redundant
    if physical % parallel.ep:
        raise scenario.fault(
            ("parallel", "ep"),
            f"does not divide the {physical} physical experts "
            f"({model.n_routed_experts} routed + {redundant} redundant)",
            allowed="a divisor: " + ", ".join(map(str, _divisors(physical))),
        )
    if spec.num_sms >= machine.num_sms:
        raise scenario.fault(
            ("a2a", "num_sms"),
            f"leaves no SM of the {machine.num_sms} to compute",
            allowed=f"fewer than {machine.num_sms}",
        )
    _check_weights(scenario, machine)
    return Deployment(
        model=model,
        machine=machine,
        ep_size=parallel.ep,
        attention_tp=parallel.attention_tp,
        attention_dp=dp,
        redundant_experts=redundant,
        a2a=A2A(
            spec.backend, _mode(scenario, batch), spec.max_dispatch_tokens_per_rank, spec.num_sms
        ),
        quantization=Quantization(**scenario.quantization.model_dump()),
        moe_runner=scenario.runtime.moe_runner,
    )


def _check_weights(scenario: Scenario, machine: Machine) -> None:
    """ScenarioError for a format of the weights that the GPU does not compute in."""
    known, weights = machine.flop_dtypes, scenario.quantization.weights
    if known and FLOP_DTYPE[weights] not in known:
        raise scenario.fault(
            ("quantization", "weights"),
            f"computes in {FLOP_DTYPE[weights]}, for which {machine.name} has no gpu.peak_tflops",
            allowed=", ".join(name for name, dtype in FLOP_DTYPE.items() if dtype in known),
        )


def _mode(scenario: Scenario, batch: Batch) -> A2AMode:
    """The exchange's mode; `auto` is normal on every rank while any rank extends."""
    others = scenario.runtime.other_mode_ranks
    for i, rank in enumerate(others):
        if rank >= scenario.parallel.ep:
            allowed = f"0 to {scenario.parallel.ep - 1}"
            raise scenario.fault(("runtime", "other_mode_ranks", i), "is no rank", allowed=allowed)
    if scenario.a2a.backend == "none":  # collectives have no mode of their own
        return "normal"
    if scenario.a2a.mode != "auto":
        return scenario.a2a.mode
    return "low_latency" if batch.phase == "decode" and not others else "normal"


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _route(scenario: Scenario, batch: Batch, model: Model) -> Routing:
    fields = scenario.routing.model_dump()
    if fields["path"]:
        fields["path"] = str(scenario.folder("routing", "path") / fields["path"])
    try:
        return route(RoutingSpec(**fields), batch.tokens, model)
    except InputError as error:
        key = error.key.removeprefix("routing.")
        if key not in type(scenario.routing).model_fields:
            raise
        problem = f"{error.source}: {_found(error.value)}" if key == "path" else "does not fit"
        kind = BatchTooLarge if isinstance(error, FewIds) else ScenarioError
        raise scenario.fault(("routing", key), problem, allowed=error.allowed, kind=kind) from error


def _found(value: object) -> str:
    """What a file of ids was found to be."""
    if isinstance(value, list):
        return f"shape {value}"
    return f"id {value}" if isinstance(value, int) else str(value)


def _schedules(scenario: Scenario, rules: Rules) -> tuple[ScheduleChoice, ...]:
    choices: dict[str, ScheduleChoice] = {}
    known = schedule_names(rules, fused=True)
    for i, item in enumerate(scenario.schedules):
        if isinstance(item, UserSchedule):
            choice = ScheduleChoice(item.name, item.ops, item.delta, item.lines)
        else:
            choice = ScheduleChoice(item)
        if choice.name in choices:
            raise scenario.fault(("schedules", i), f"{choice.name!r} is given twice")
        built_in = choice.name in known
        if built_in == isinstance(item, UserSchedule):
            problem = "is a built-in name" if built_in else "unknown schedule"
            names = ", ".join(schedule_names(rules)) + ", each also +fused or +fused+waterfill"
            raise scenario.fault(("schedules", i), problem, allowed=names, near=known)
        choices[choice.name] = choice
    return tuple(choices.values())
