"""Slots of fused shared experts: ids, layouts, weights, local rows, padding (SGLang 0.5.23).

A fused shared expert is one more row of the grouped GEMM. In the *global* layout it is one id after
all routed ones, replicated on every rank, each of which computes it for all tokens; in the *per_rank*
layout every rank's block of rows ends with private slots, and only one rank computes a token's shared
expert. `n` is the routed physical experts of a rank, `P = W n` of all ranks, `S` the fused experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

IdRows = npt.NDArray[np.integer[Any]]
Weights = npt.NDArray[np.float32]
Layout = Literal["global", "per_rank"]
Platform = Literal["cuda", "hip"]

DEEPEP_CLASS = ("deepep", "deepep_v2", "mooncake", "mori", "pplx")
_PER_RANK = (*DEEPEP_CLASS, "megamoe")


def is_deepep_class(backend: str) -> bool:
    """Whether SGLang treats the all-to-all backend as DeepEP-like (nixl is not)."""
    return backend in DEEPEP_CLASS


def slot_layout(backend: str) -> Layout:
    """Where fused shared experts live under this all-to-all backend."""
    return "per_rank" if backend in _PER_RANK else "global"


@dataclass(frozen=True, slots=True)
class Slots:
    """One layout of the grouped GEMM's rows over `ep_size` ranks: `per_rank` routed physical experts a
    rank and `shared` fused ones."""

    layout: Layout
    ep_size: int
    per_rank: int
    shared: int

    @property
    def routed(self) -> int:
        """Routed physical experts over all ranks (P)."""
        return self.ep_size * self.per_rank

    @property
    def rows_per_rank(self) -> int:
        """Local rows of one rank: the same in both layouts."""
        return self.per_rank + self.shared

    @property
    def total_ids(self) -> int:
        """Expert ids that exist, shared ones included: `N + S + R` or `N + W S + R`."""
        copies = self.ep_size if self.layout == "per_rank" else 1
        return self.routed + copies * self.shared

    def widen(self, ids: IdRows, *, keep_invalid: bool = True) -> IdRows:
        """Routed physical ids as ids of this layout; -1 stays -1. The type is kept if it holds all ids.

        `keep_invalid=False` floors -1 like any id, which gives -1 - S in the per-rank layout: what
        SGLang's torch remap does until padding is masked; its ROCm kernel keeps -1.
        """
        if self.total_ids > np.iinfo(ids.dtype).max:
            ids = ids.astype(np.int64)
        if self.layout == "global":
            return ids
        moved = ids + ids // self.per_rank * self.shared
        return np.where(ids < 0, ids, moved) if keep_invalid else moved

    def narrow(self, ids: IdRows) -> IdRows:
        """The inverse of `widen`: routed physical ids, -1 for shared slots and for -1."""
        if self.layout == "global":
            return np.where(ids < self.routed, ids, -1)
        rank, row = np.divmod(ids, self.rows_per_rank)
        return np.where((ids >= 0) & (row < self.per_rank), rank * self.per_rank + row, -1)

    def shared_ids(self, rank: int) -> list[int]:
        """Ids of the shared slots that tokens of `rank` use unless Waterfill chooses."""
        if self.layout == "global":
            return [self.routed + s for s in range(self.shared)]
        first = rank * self.rows_per_rank + self.per_rank
        return [first + s for s in range(self.shared)]

    def local_rows(self, rank: int, checkpoint_ids: IdRows) -> IdRows:
        """Local row on `rank` of checkpoint-order ids (routed ones, then the shared ones); -1 elsewhere.

        Every rank holds every shared expert, so an id beyond the routed ones is a row of each.
        """
        here = checkpoint_ids - rank * self.per_rank
        routed = np.where((here >= 0) & (here < self.per_rank), here, -1)
        if not self.shared:
            return np.where(checkpoint_ids < self.routed, routed, -1)
        beyond = checkpoint_ids - self.routed
        return np.where(beyond >= 0, self.per_rank + beyond, routed)


def slots_from_total(layout: Layout, ep_size: int, num_experts: int, shared: int) -> Slots:
    """The layout of a MoE layer that was given `num_experts` ids in all."""
    copies = ep_size if layout == "per_rank" else 1
    return Slots(layout, ep_size, (num_experts - copies * shared) // ep_size, shared)


def rows_written(
    slots: Slots,
    rank: int,
    checkpoint_id: int,
    *,
    num_logical: int,
    with_locations: bool,
    global_sized: bool,
) -> list[int]:
    """Rows of a weight parameter on `rank` that a checkpoint's expert fills, ascending.

    Without expert locations (EPLB metadata) a checkpoint id is a physical id; with them routed expert
    `e` fills all its replicas, in the trivial placement. A `global_sized` parameter (NVFP4 input
    scales) has a row per id of all ranks; its shared value goes to every rank's slot, but only
    when the locations are known.
    """
    is_shared = checkpoint_id >= num_logical
    if with_locations and not is_shared:
        physical = list(range(checkpoint_id, slots.routed, num_logical))
    elif with_locations:
        physical = [slots.routed + checkpoint_id - num_logical]
    else:
        physical = [checkpoint_id]
    if not global_sized:
        rows = slots.local_rows(rank, np.array(physical)).tolist()
        return sorted(row for row in rows if row >= 0)
    if is_shared and with_locations and slots.shared and slots.layout == "per_rank":
        offset = slots.per_rank + checkpoint_id - num_logical
        return [q * slots.rows_per_rank + offset for q in range(slots.ep_size)]
    return physical


def is_factor_folded(
    *, layer_flag: bool, aiter: bool, grouped: bool, biased: bool, scoring: str
) -> bool:
    """Whether the routed scaling factor is already in the top-k weights: the layer says so, or AITER's
    router with a correction bias (grouped top-k, or square-root softplus scores) applies it."""
    return layer_flag or (aiter and biased and (grouped or scoring == "sqrtsoftplus"))


def layer_folds_factor(quant: str, runner: str) -> bool:
    """Whether a layer applies the routed scaling factor in the top-k weights: ModelOpt FP4 unless the
    runner is marlin, the TensorRT-LLM runners, and FP8 on cutlass."""
    if runner in ("flashinfer_trtllm", "flashinfer_trtllm_routed"):
        return True
    if quant == "modelopt_fp4":
        return runner != "marlin"
    return quant == "fp8" and runner == "cutlass"


def shared_weight(factor: float | None, folded: bool) -> float:
    """Top-k weight of a shared slot: 1, or `1 / factor` when the whole output is later multiplied by
    the routed scaling factor."""
    return 1.0 if folded or not factor else 1.0 / factor


def empty_width(top_k: int, shared: int, layout: Layout, waterfill: bool) -> int:
    """Columns of the top-k of an empty batch; ranks that disagree hang the exchange."""
    if waterfill:
        return top_k + 1
    return top_k + (shared if layout == "per_rank" else 0)


def append_shared(
    ids: IdRows,
    weights: Weights,
    slots: Slots,
    rank: int,
    weight: float,
    *,
    keep_invalid: bool = True,
) -> tuple[IdRows, Weights]:
    """Ids [T, k + S] in the layout and weights [T, k + S], the shared slots of `rank` last."""
    wide = slots.widen(ids, keep_invalid=keep_invalid)
    shared = np.tile(np.array(slots.shared_ids(rank), dtype=wide.dtype), (len(ids), 1))
    gates = np.full(shared.shape, weight, dtype=np.float32)
    return (
        np.concatenate([wide, shared], axis=1),
        np.concatenate([weights.astype(np.float32), gates], axis=1),
    )


@dataclass(frozen=True, slots=True)
class TopK:
    """Ids and weights that reach the dispatcher, and the ids that the load recorder counts."""

    ids: IdRows
    weights: Weights
    recorded: IdRows


def post_process(
    ids: IdRows,
    weights: Weights,
    slots: Slots,
    rank: int,
    *,
    shared_gate: float,
    scale: float | None = None,
    non_padded: int | None = None,
    platform: Platform = "cuda",
) -> TopK:
    """From the router's choice to what is dispatched.

    In the global layout the router has already written the `S` shared columns; `scale` (1/W under
    expert parallelism, where every rank adds its copy) multiplies them. In the per-rank layout they
    are appended here with weight `shared_gate`. Rows from `non_padded` on are padding: CUDA gives them
    id -1 (in the global layout all but the shared columns), HIP id 0 and weight 0.
    """
    fused, appended = slots.shared, slots.shared > 0 and slots.layout == "per_rank"
    ids, weights = ids.copy(), weights.astype(np.float32)
    padding = np.arange(len(ids)) >= (len(ids) if non_padded is None else non_padded)
    routed = ids.shape[1] - (0 if appended else fused)
    if fused and not appended and scale is not None:
        weights[:, routed:] *= np.float32(scale)
    if platform == "hip":
        ids[padding] = 0
        weights[padding] = 0
        # The recorder of the global layout is given the shared column too.
        recorded = ids.copy()
    else:
        ids[padding, :routed] = -1
        recorded = ids[:, :routed].copy()
    if appended:
        ids, weights = append_shared(ids, weights, slots, rank, shared_gate)
        if platform == "hip":
            weights[padding] = 0
        else:
            ids[padding] = -1
    return TopK(ids, weights, recorded)
