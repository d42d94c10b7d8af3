"""The grouped GEMM pair: tables time gate-and-up GEMM, activation and down GEMM together."""

from __future__ import annotations

from dataclasses import dataclass

from models.counts import BF16, activation_bytes, weight_bytes
from models.work import Work, work

_WEIGHTS = {16: "bf16", 8: "fp8_block", 4: "nvfp4"}
_DTYPE = {16: "bf16", 8: "fp8", 4: "fp4"}
_BITS = {dtype: bits for bits, dtype in _DTYPE.items()}


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair that a kernel belongs to: the grid's kind, active experts, computed rows, sizes of the
    experts, bits of a weight; `part` 1 and 2 are the GEMMs, 0 the activation between them."""

    kind: str
    active: int
    rows: int
    hidden: int
    inner: int
    bits: int
    part: int

    @property
    def work(self) -> Work:
        """The pair as one work."""
        return pair_work(self.kind, self.active, self.rows, self.hidden, self.inner, self.bits)

    @property
    def table(self) -> str:
        """Name of its table and form."""
        return f"{self.kind}.{_DTYPE[self.bits]}"


def pair_of(work: Work) -> Pair | None:
    """The pair that `work` is a part of; None for a kernel that is part of none."""
    sizes = dict(work.dims)
    if work.kind.startswith("grouped_gemm"):
        contiguous = work.kind.endswith("contiguous")
        rows = sizes["padded"] if contiguous else sizes["rows"]
        n, k, part = sizes["n"], sizes["k"], sizes["part"]
        hidden, inner = (k, n // 2) if part == 1 else (n, k)
        bits = _BITS[work.flops[0][0]]
        return Pair(work.kind, sizes["active"], rows, hidden, inner, bits, part)
    if work.kind == "silu_mul" and "active" in sizes:
        kind = "grouped_gemm_masked" if sizes["masked"] else "grouped_gemm_contiguous"
        return Pair(
            kind,
            sizes["active"],
            sizes["rows"],
            sizes["hidden"],
            sizes["columns"],
            sizes["bits"],
            0,
        )
    return None


def pair_work(kind: str, active: int, rows: int, hidden: int, inner: int, bits: int) -> Work:
    """Both GEMMs over `rows` rows with the weights of `active` experts; the activation between them is
    part of the measured time and of no byte here, as in the fits."""
    weights = _WEIGHTS[bits]
    per_expert = weight_bytes(2 * inner, hidden, weights) + weight_bytes(hidden, inner, weights)
    inputs = activation_bytes(rows, hidden, weights) + activation_bytes(rows, inner, weights)
    return work(
        kind,
        flops={_DTYPE[bits]: 2 * rows * 3 * inner * hidden},
        read_bytes=active * per_expert + inputs,
        write_bytes=rows * (2 * inner + hidden) * BF16,
        active=active,
        rows=rows,
    )


def shares(pair: Pair, floor_ns: float, pair_ns: float, act_ns: float) -> float:
    """Time of the pair's `part` when the whole takes `pair_ns`: a third of the floor each; the
    activation its traffic's time `act_ns`, at most a third of the rest; the GEMMs 2 to 1, as their
    weights and operations are."""
    floor = min(floor_ns, pair_ns)
    rest = pair_ns - floor
    act = min(act_ns, rest / 3)
    part = {0: act, 1: (rest - act) * 2 / 3, 2: (rest - act) / 3}[pair.part]
    return floor / 3 + part
