"""What a builder is asked for: one deployment and batch, how many layers, and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from models.deployment import Batch, Deployment
from models.fused_routing import fused_routing
from models.routing import Routing
from models.sglang_rules import Refused, Rules, load_rules
from models.sglang_sbo import is_blackwell
from schedules.builders.turns import CHILDREN
from schedules.split import Cut, dealt, split_batch, split_routing

# 1: Waterfill levels what all ranks send together, else what each sends by itself.
WATERFILL_ENV = "SGLANG_DISABLE_STATIC_WATERFILL"
Launching = Literal["cuda_graph", "eager"]
Fold = bool | Literal["exact", "representative", "extremes"]


@dataclass(frozen=True, eq=False)
class Child:
    """One child of a split batch: what every rank holds, where its tokens go, and every rank's cut."""

    name: str
    batch: Batch
    routing: Routing
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, eq=False)
class Request:
    """One program to build.

    `routing` holds routed experts only; `dispatched` adds the fused shared slot of the deployment.
    `layers` MoE layers; with `whole_step` also embedding, dense layers and head around them. `launch`
    None is what SGLang resolves: a graph for decode under low latency, else eager. `env` are
    environment variables of the server. `sm_cap` overrides the limit of DeepGEMM kernels under TBO:
    None follows the rules, 0 lifts it. `threshold` is the split threshold, `cuda` the CUDA version.
    `ops`, `delta` and `lines` are a user's own schedule. `other_mode_ranks` hold a batch of the other
    kind (prefill beside decode): only what they say to the other ranks is modelled.
    """

    name: str
    deployment: Deployment
    batch: Batch
    routing: Routing
    layers: int
    fold: Fold = True
    rules: Rules = field(default_factory=load_rules)
    whole_step: bool = False
    launch: Launching | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    sm_cap: int | None = None
    threshold: float | None = None
    cuda: tuple[int, int] = (12, 8)
    ops: str | None = None
    delta: int | None = None
    lines: str | tuple[str, ...] | None = None
    other_mode_ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers {self.layers}: a program has at least one layer")
        ranks = self.deployment.ep_size
        if len(self.batch.new_tokens) != ranks or self.routing.ep_size != ranks:
            raise ValueError(
                f"ep_size {ranks}, but the batch has {len(self.batch.new_tokens)} ranks and the "
                f"routing {self.routing.ep_size}"
            )

    @cached_property
    def _whole(self) -> tuple[Batch, Routing]:
        return dealt(self.batch, self.routing, self.deployment.attention_tp)

    @property
    def whole(self) -> Batch:
        """The batch that no schedule has cut, dealt to the ranks of each attention group."""
        return self._whole[0]

    @cached_property
    def mode(self) -> str:
        """SGLang's forward mode of the batch."""
        if self.batch.phase == "prefill":
            return "EXTEND"
        verify = any(max(lens, default=0) > 1 for lens in self.batch.new_tokens)
        return "TARGET_VERIFY" if verify else "DECODE"

    def mode_of(self, rank: int) -> str:
        """SGLang's forward mode of a rank: idle without a token."""
        if rank in self.other_mode_ranks:
            return "DECODE" if self.batch.phase == "prefill" else "EXTEND"
        return self.mode if self.whole.tokens[rank] else "IDLE"

    @cached_property
    def split(self) -> tuple[Batch, Batch, tuple[Cut, ...]]:
        """What both children of a two-batch split hold, and every rank's cut."""
        shared = self.deployment.attention_tp
        return split_batch(
            self.batch, threshold=self.threshold, rules=self.rules, attention_tp=shared
        )

    @cached_property
    def children(self) -> tuple[Child, Child]:
        """Both children of a two-batch split."""
        *batches, cuts = self.split
        routed = split_routing(self.routing, cuts, self.deployment.attention_tp)
        child_a, child_b = (
            Child(name, batch, self._dispatched(routing), cuts)
            for name, batch, routing in zip(CHILDREN, batches, routed, strict=True)
        )
        return child_a, child_b

    @cached_property
    def dispatched(self) -> Routing:
        """The routing of the whole batch as it is dispatched, a fused shared slot included."""
        return self._dispatched(self._whole[1])

    def _dispatched(self, routed: Routing) -> Routing:
        dynamic = self.env.get(WATERFILL_ENV, "0") == "1"
        return fused_routing(
            routed, self.deployment.fusion, mode="dynamic" if dynamic else "static"
        )

    @property
    def low_latency(self) -> bool:
        """Whether the exchanges are low-latency ones."""
        return self.deployment.a2a.mode == "low_latency"

    @property
    def launching(self) -> Launching:
        """Graph or eager. `Refused` when a graph is asked for that cannot be captured."""
        no_host_wait = self.low_latency or self.deployment.a2a.collective
        capturable = self.batch.phase == "decode" and no_host_wait
        if self.launch == "cuda_graph" and not no_host_wait:
            raise Refused(self.rules.refusal("a2a.graph_normal"))
        return self.launch or ("cuda_graph" if capturable else "eager")

    @cached_property
    def blackwell(self) -> bool:
        """Whether SGLang treats the machine as Blackwell."""
        return is_blackwell(self.rules, self.deployment.machine.compute_capability, self.cuda)

    @property
    def shared_outside(self) -> bool:
        """Whether the environment leaves the shared expert outside single-batch overlap."""
        return self.env.get(self.rules.sbo.outside_env, "0").lower() in ("1", "true", "yes", "y")

    @property
    def env_comm_sms(self) -> int | None:
        """The environment's SM count of the combine's send, None when not set."""
        value = self.env.get(self.rules.sbo.comm_sms_env)
        if value is None:
            return None
        if not value.isdigit() or not 0 < int(value) < self.deployment.machine.num_sms:
            limit = self.deployment.machine.num_sms - 1
            raise ValueError(f"{self.rules.sbo.comm_sms_env}={value!r}: allowed: 1 to {limit}")
        return int(value)
