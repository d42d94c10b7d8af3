"""The nouns of floor 0: what one kernel has to do (`Work`) and how it asks for SMs (`Grid`).

A kernel never carries a time. Times are answered by `models.machine.Costs` for a work and a
number of SMs, so that one program can be priced by a profile, by an imported trace or by a
spin kernel's own arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GridKind = Literal["wave", "static", "dynamic"]
LimitedBy = Literal["grid", "green_context", "ignored"]

COMPUTE_KINDS = (
    "embedding",
    "norm",
    "gemm",
    "bmm",
    "rope",
    "kv_write",
    "attention_decode",
    "attention_prefill",
    "gate",
    "topk",
    "quantise",
    "permute",
    "grouped_gemm_masked",
    "grouped_gemm_contiguous",
    "silu_mul",
    "unpermute",
    "add",
    "head",
)
EXCHANGE_KINDS = (
    "layout",
    "notify",
    "dispatch",
    "combine",
    "dispatch_send",
    "dispatch_recv",
    "combine_send",
    "combine_recv",
    "flight",
    "collective",
)
SPIN_KINDS = ("spin",)
WORK_KINDS = COMPUTE_KINDS + EXCHANGE_KINDS + SPIN_KINDS


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel does on one rank, in shapes, floating-point operations and bytes.

    `dims` are the kernel's own sizes by name, sorted (`m`, `n`, `k` of a GEMM; `tokens`,
    `ep_size`, `nodes` of an exchange; `ctas`, `cta_ns` of a spin kernel). `flops` are counted per
    dtype of the multiplication. `read_bytes` and `write_bytes` are HBM traffic with each input
    read once. `block_rows` is the grain of its completion signals in rows, 0 when it raises none.
    """

    kind: str
    dims: tuple[tuple[str, int], ...] = ()
    flops: tuple[tuple[str, int], ...] = ()
    read_bytes: int = 0
    write_bytes: int = 0
    block_rows: int = 0

    def __post_init__(self) -> None:
        if self.kind not in WORK_KINDS:
            raise ValueError(f"unknown work kind {self.kind!r}; known: {', '.join(WORK_KINDS)}")

    def dim(self, name: str) -> int:
        """The size called `name`; KeyError names the kind and the sizes there are."""
        for key, value in self.dims:
            if key == name:
                return value
        known = ", ".join(key for key, _ in self.dims)
        raise KeyError(f"work {self.kind!r} has no dim {name!r}; it has: {known}")

    @property
    def hbm_bytes(self) -> int:
        """HBM bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def total_flops(self) -> int:
        """Floating-point operations over all dtypes."""
        return sum(count for _, count in self.flops)


def work(
    kind: str,
    *,
    flops: dict[str, int] | None = None,
    read_bytes: int = 0,
    write_bytes: int = 0,
    block_rows: int = 0,
    **dims: int,
) -> Work:
    """A `Work` from keyword sizes; sorts them so that equal works compare and hash equal."""
    return Work(
        kind,
        tuple(sorted(dims.items())),
        tuple(sorted((flops or {}).items())),
        read_bytes,
        write_bytes,
        block_rows,
    )


@dataclass(frozen=True, slots=True)
class Grid:
    """How a kernel asks for SMs.

    `sm_budget` is the most SMs it may hold (None: all). `limited_by` says what enforces the
    budget; `ignored` means that the kernel has no way to honour it, so it takes all SMs. `kind`
    is *wave* (CTAs come and go), *static* (persistent, each CTA has its share of tiles at launch)
    or *dynamic* (persistent, tiles are pulled). A `gang` is placed whole or not at all.
    """

    sm_budget: int | None = None
    limited_by: LimitedBy = "grid"
    kind: GridKind = "wave"
    gang: bool = False

    @property
    def enforced_budget(self) -> int | None:
        """The budget that binds, None when there is none or the kernel ignores it."""
        return None if self.limited_by == "ignored" else self.sm_budget
