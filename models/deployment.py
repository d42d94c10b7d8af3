"""A model deployed on a machine: the floor-0 objects that a scenario resolves to.

`Model` is read from a Hugging Face `config.json` by `models.config`; `Batch` is what each rank
holds in one step; `Kernel` is one launch of a layer before a schedule has placed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from models.machine import Machine
from models.work import Grid, Work

Phase = Literal["decode", "prefill"]
A2AMode = Literal["normal", "low_latency"]
# Of `Attention.compression` the ratio whose keys an indexer picks, and whose groups overlap.
INDEXED_RATIO = 4


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of the attention block. `kind` mla: q_lora_rank (0: no query compression), kv_lora_rank and
    the nope, rope and value head sizes. `kind` gqa: num_kv_heads, head_dim and, where it differs from
    head_dim, v_head_dim; the other MLA sizes are 0. `index_topk`: keys that sparse attention keeps per
    query (0: all), chosen by index_heads of index_head_dim. `window`: keys that sliding attention sees
    (0: all). `kind` mqa: one key of head_dim for all heads, which is the value too, q_lora_rank, groups of
    heads that share a rank o_lora_rank, and `compression`: how many layers have each ratio of tokens to a
    compressed key (0: none)."""

    kind: Literal["mla", "gqa", "mqa"]
    num_heads: int
    num_kv_heads: int = 0
    head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    index_topk: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    window: int = 0
    o_lora_rank: int = 0
    o_groups: int = 0
    compression: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """Public hyper-parameters of one MoE model; `source` says where they were read. `hc_mult`: residual
    streams of hyper-connections (0: one plain residual)."""

    name: str
    architecture: str
    model_type: str
    hidden_size: int
    num_layers: int
    first_k_dense: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    top_k: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    scoring: Literal["sigmoid", "softmax", "sqrtsoftplus"]
    norm_topk_prob: bool
    vocab_size: int
    attention: Attention
    shared_intermediate_size: int = 0
    quant_method: str | None = None
    source: str = ""
    hc_mult: int = 0

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_layers - self.first_k_dense


@dataclass(frozen=True, slots=True)
class Quantization:
    """Formats: `weights` of the linear layers and experts, `dispatch` payload, `kv_cache`."""

    weights: Literal["bf16", "fp8_block", "nvfp4"] = "fp8_block"
    dispatch: Literal["bf16", "fp8"] = "fp8"
    kv_cache: Literal["bf16", "fp8"] = "bf16"


@dataclass(frozen=True, slots=True)
class A2A:
    """The all-to-all: backend, resolved mode, the low-latency cap in tokens per rank, and the SMs of the
    normal-mode kernels."""

    backend: str = "deepep"
    mode: A2AMode = "low_latency"
    max_dispatch_tokens_per_rank: int = 128
    num_sms: int = 20

    @property
    def collective(self) -> bool:
        """Whether data-parallel attention's all-gather and reduce-scatter take its place."""
        return self.backend == "none"


@dataclass(frozen=True, slots=True)
class Fusion:
    """Resolved shared-expert fusion: `slots` fused shared experts (0: not fused), whether the slot is
    private per rank (per_rank) or one global id, and whether Waterfill chooses the rank."""

    slots: int = 0
    layout: Literal["none", "global", "per_rank"] = "none"
    waterfill: bool = False


@dataclass(frozen=True)
class Deployment:
    """One model on one machine with its parallelism, exchange, formats and fusion."""

    model: Model
    machine: Machine
    ep_size: int
    attention_tp: int = 1
    attention_dp: int = 1
    redundant_experts: int = 0
    a2a: A2A = field(default_factory=A2A)
    quantization: Quantization = field(default_factory=Quantization)
    fusion: Fusion = field(default_factory=Fusion)
    moe_runner: str = "deep_gemm"

    @property
    def physical_experts(self) -> int:
        """Routed experts with their redundant copies, over all ranks."""
        return self.model.n_routed_experts + self.redundant_experts

    @property
    def experts_per_rank(self) -> int:
        """Routed physical experts on one rank."""
        return self.physical_experts // self.ep_size

    @property
    def slots_per_rank(self) -> int:
        """Rows of the grouped GEMM on one rank, fused shared slots included."""
        return self.experts_per_rank + self.fusion.slots


@dataclass(frozen=True)
class Batch:
    """What every rank holds in one step, sequence by sequence: `new_tokens[rank][i]` tokens enter the layer
    and attend to `prefix_tokens[rank][i]` tokens already in the KV cache (plus themselves, causally).
    `rows` states the tokens of each rank, padding included, where an attention group deals them evenly
    to its ranks; () where each rank has those of its own sequences."""

    phase: Phase
    new_tokens: tuple[tuple[int, ...], ...]
    prefix_tokens: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...] = ()

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """Tokens per rank that enter the layer."""
        return self.rows or tuple(sum(lens) for lens in self.new_tokens)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch of a layer. `name` is the tail of the op's name (`gemm1`, `dispatch.send`). `reads` and
    `writes` name the child's activations of this layer (`hidden`, `x8`, `recv`), without weights.
    `role` and `family` are set on the kernels of an exchange; `exchange` is then `dispatch` or `combine`."""

    name: str
    work: Work
    grid: Grid = Grid()
    host_class: str = "torch"
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    exchange: Literal["dispatch", "combine"] | None = None
    role: Literal["notify", "send", "recv", "whole"] | None = None


@dataclass(frozen=True)
class LayerKernels:
    """The kernels of one layer on one rank for one (child) batch.

    `groups` is keyed by the letters of the serving engine's op lists (P Q C M G T Da Db X Ca Cb S O Z,
    `models/rules/sglang-0.5.23.yaml`); a missing letter launches nothing. `buffers` gives the bytes of
    every buffer that the kernels name. `flights` gives, for `dispatch` and `combine`, the part of a
    low-latency transfer that holds no SMs.
    """

    groups: Mapping[str, tuple[Kernel, ...]]
    buffers: Mapping[str, int]
    flights: Mapping[str, Work] = field(default_factory=dict)
