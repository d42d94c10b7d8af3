"""The scenario file: one question about one deployment, strictly typed.

Every model here refuses unknown keys, conversions between types, NaN and infinities. The
descriptions are the units; they appear in errors and in the JSON Schema that editors read.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Strict,
    Tag,
    model_validator,
)

from scenarios.document import Document
from scenarios.errors import KeyPath, ScenarioError, dotted

MAX_RANKS = 4096
MAX_TOKENS = 1 << 24


class Section(BaseModel):
    """A mapping of the scenario file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _shape(value: Any) -> str:
    """Which branch of `one value or another shape` is meant, so that an error is about that one."""
    if isinstance(value, (tuple, list)):
        return "list"
    return "mapping" if isinstance(value, (dict, BaseModel)) else "one"


def _one_line(text: str) -> str:
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in text):
        raise ValueError("has a line break or another control character; it needs one line")
    return text


Count = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
PerRank = Annotated[
    Annotated[Count, Tag("one")]
    | Annotated[tuple[Count, ...], Strict(False), Field(min_length=1), Tag("list")],
    Discriminator(_shape),
]


class ModelSpec(Section):
    """A library model or config.json with some hyper-parameters replaced."""

    base: str = Field(description="library name, or path to a Hugging Face config.json")
    num_layers: int | None = Field(default=None, ge=1, le=1024, description="layers")
    first_k_dense: int | None = Field(
        default=None, ge=0, le=1024, description="leading dense layers"
    )
    hidden_size: int | None = Field(default=None, ge=1, le=1 << 20, description="elements")
    intermediate_size: int | None = Field(default=None, ge=1, le=1 << 20, description="elements")
    moe_intermediate_size: int | None = Field(
        default=None, ge=1, le=1 << 20, description="elements"
    )
    n_routed_experts: int | None = Field(default=None, ge=1, le=1 << 16, description="experts")
    n_shared_experts: int | None = Field(default=None, ge=0, le=64, description="experts")
    top_k: int | None = Field(default=None, ge=1, le=256, description="experts per token")
    n_group: int | None = Field(default=None, ge=1, le=1 << 16, description="groups of experts")
    topk_group: int | None = Field(default=None, ge=1, le=1 << 16, description="groups per token")
    vocab_size: int | None = Field(default=None, ge=1, le=1 << 24, description="tokens")


class Parallel(Section):
    """How the model is spread. The ranks are `attention_tp * attention_dp`; they hold `ep` parts."""

    ep: int = Field(ge=1, le=MAX_RANKS, description="expert-parallel ranks")
    attention_tp: int = Field(default=1, ge=1, le=MAX_RANKS, description="tensor-parallel ranks")
    attention_dp: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RANKS,
        description="data-parallel ranks of attention; ep when left out",
    )


class Decode(Section):
    """One decode step."""

    batch_per_rank: PerRank = Field(
        description="sequences per rank; a list gives each rank its own"
    )
    kv_tokens: PerRank = Field(description="tokens in the KV cache of each sequence")


class Prefill(Section):
    """One prefill (extend) step."""

    tokens_per_rank: PerRank = Field(description="new tokens per rank; a list: each rank its own")
    sequence_tokens: int = Field(ge=1, le=MAX_TOKENS, description="new tokens per sequence")
    prefix_tokens: int = Field(
        default=0, ge=0, le=MAX_TOKENS, description="cached tokens per sequence"
    )


class Phase(Section):
    """Exactly one of `decode` and `prefill`."""

    decode: Decode | None = None
    prefill: Prefill | None = None

    @model_validator(mode="after")
    def _one(self) -> Phase:
        if (self.decode is None) == (self.prefill is None):
            raise ValueError("needs exactly one of: decode, prefill")
        return self


class Speculative(Section):
    """Speculative decoding."""

    draft_tokens: int = Field(
        default=0, ge=0, le=64, description="tokens verified per sequence; 0: off"
    )


class A2ASpec(Section):
    """The all-to-all of the experts."""

    backend: str = Field(default="deepep", description="all-to-all backend")
    mode: Literal["auto", "normal", "low_latency"] = "auto"
    max_dispatch_tokens_per_rank: int = Field(
        default=128, ge=1, le=1024, description="tokens per rank that a low-latency buffer holds"
    )
    num_sms: int = Field(
        default=20, ge=2, le=256, multiple_of=2, description="SMs of normal-mode kernels"
    )


class Formats(Section):
    """Number formats."""

    weights: Literal["bf16", "fp8_block", "nvfp4"] = "fp8_block"
    dispatch: Literal["bf16", "fp8"] = "fp8"
    kv_cache: Literal["bf16", "fp8"] = "bf16"


class RoutingSpec(Section):
    """Where tokens go: one load for all layers."""

    distribution: Literal["uniform", "power_law", "histogram", "file"] = "uniform"
    alpha: float = Field(
        default=0.0, ge=0.0, le=8.0, description="exponent of power_law, most skewed near 1.6"
    )
    seed: int = Field(default=0, ge=0, le=(1 << 32) - 1, description="seed")
    redundant_experts: int = Field(
        default=0, ge=0, le=1 << 16, description="extra physical experts"
    )
    eplb: bool = Field(default=False, description="place copies of busy experts by load")
    histogram: Annotated[tuple[float, ...], Strict(False)] = Field(
        default=(), max_length=1 << 16, description="one count per logical expert, for histogram"
    )
    path: str = Field(default="", description="numpy file of top-k ids [tokens, k], for file")
    grouped: bool = Field(default=True, description="keep the model's limit on expert groups")


class SharedExperts(Section):
    """Flags of shared-expert fusion."""

    fusion: Literal["auto", "enforce", "disable"] = "auto"
    waterfill: bool = False


class Runtime(Section):
    """The serving engine."""

    sglang: str = Field(
        default="0.5.23", description="version of the rules, in quotes if it has one dot"
    )
    moe_runner: Literal[
        "deep_gemm",
        "triton",
        "cutlass",
        "marlin",
        "flashinfer_cutlass",
        "flashinfer_cutedsl",
        "flashinfer_trtllm",
        "flashinfer_trtllm_routed",
    ] = Field(default="deep_gemm", description="grouped GEMM library, as the rules know it")
    launch: Literal["auto", "cuda_graph", "eager"] = "auto"
    tbo_token_distribution_threshold: float = Field(
        default=0.48, ge=0.0, le=0.5, description="fraction"
    )
    step_overhead_us: float = Field(
        default=0.0, ge=0.0, le=1e6, description="us added to every step for what is not modelled"
    )
    memory_fraction: float = Field(
        default=0.95, gt=0.0, le=1.0, description="share of HBM that may be used"
    )
    mem_fraction_static: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="share of the memory free before loading that weights and KV pool take",
    )
    max_total_tokens: int | None = Field(
        default=None, ge=1, le=1 << 30, description="most tokens in the KV pool of a rank"
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment variables (text)")
    other_mode_ranks: Annotated[tuple[Count, ...], Strict(False)] = Field(
        default=(),
        max_length=MAX_RANKS,
        description="ranks whose batch in this step is of the other kind (prefill beside decode)",
    )


class UserSchedule(Section):
    """A schedule written here: an operation list with yields for two child batches (`ops`, `delta`),
    or the stream lines of one layer (`lines`)."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][\w.-]*$", description="name")
    ops: str | None = Field(default=None, max_length=4096, description="operation list")
    delta: int | None = Field(
        default=None, ge=0, le=64, description="stages that the first child is ahead"
    )
    lines: str | None = Field(default=None, max_length=1 << 16, description="stream lines")

    @model_validator(mode="after")
    def _one(self) -> UserSchedule:
        if (self.ops is None) == (self.lines is None):
            raise ValueError("needs exactly one of: ops (with delta), lines")
        if self.lines is not None and self.delta is not None:
            raise ValueError("has a delta, which belongs to ops and not to lines")
        return self


ModelChoice = Annotated[
    Annotated[str, Field(min_length=1), Tag("one")] | Annotated[ModelSpec, Tag("mapping")],
    Discriminator(_shape),
]
ScheduleItem = Annotated[
    Annotated[str, Field(min_length=1), Tag("one")] | Annotated[UserSchedule, Tag("mapping")],
    Discriminator(_shape),
]


class Scenario(Section):
    """A scenario; `fault` makes an error that points into the file it was read from."""

    name: Annotated[str, AfterValidator(_one_line)] = Field(
        min_length=1, max_length=200, description="one line for people"
    )
    model: ModelChoice = Field(description="library name, path to a config.json, or {base: ...}")
    hardware: str = Field(min_length=1, description="library profile or path to one")
    parallel: Parallel
    phase: Phase
    speculative: Speculative = Speculative()
    a2a: A2ASpec = A2ASpec()
    quantization: Formats = Formats()
    routing: RoutingSpec = RoutingSpec()
    shared_experts: SharedExperts = SharedExperts()
    runtime: Runtime = Runtime()
    schedules: Annotated[tuple[ScheduleItem, ...], Strict(False)] = Field(
        default=("sequential", "baseline", "sbo", "tbo"),
        min_length=1,
        max_length=64,
        description="names, or {name, ops, delta}",
    )
    _document: Document | None = PrivateAttr(default=None)

    def attach(self, document: Document) -> Scenario:
        """Remembers the file that this scenario was read from; returns itself."""
        self._document = document
        return self

    def folder(self, *path: str) -> Path:
        """Where a relative path at this key starts: the scenario's folder, or the working directory
        when the value was given on the command line."""
        if self._document is None or self.is_override(*path):
            return Path()
        return Path(self._document.file).parent

    def is_override(self, *path: str) -> bool:
        """Whether the value at this key, or around it, was given on the command line."""
        origins = self._document.origins if self._document is not None else {}
        return any(path[: n + 1] in origins for n in range(len(path)))

    def fault(
        self,
        path: KeyPath,
        problem: str,
        *,
        allowed: str = "",
        near: Iterable[str] = (),
        kind: type[ScenarioError] = ScenarioError,
    ) -> ScenarioError:
        """An error of this `kind` about the value at `path`, with file, line and column where it came from
        one."""
        value: Any = self
        for part in path:
            value = getattr(value, str(part)) if isinstance(value, BaseModel) else value[part]
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True)
        if self._document is None:
            return kind(problem, key=dotted(path), value=value, allowed=allowed, near=near)
        return self._document.error(
            path, problem, value=value, allowed=allowed, near=near, kind=kind
        )
