"""The GEMMs of the Triton set, as the production set calls DeepGEMM's; and those with signals."""

from __future__ import annotations

import torch

from executor.kernels import gemm
from executor.kernels.gemm import Signals, Tiling, is_hopper, num_sms_of
from executor.libraries import Scaled

# Chosen by `benchmarks.triton_ratios` on an H200 with Triton 3.6.
FEW_ROWS = Tiling(64, 128, 128, 6, 4)
MANY_ROWS = Tiling(128, 128, 128, 4, 8)
MANY_ROWS_HOPPER = Tiling(128, 128, stages=6, specialised=True)


def many_rows(device: torch.device) -> Tiling:
    """The tiling where the tensor cores are the limit."""
    return MANY_ROWS_HOPPER if is_hopper(device) else MANY_ROWS


def tiling_for(rows: int, device: torch.device) -> Tiling:
    """The tiling for experts of about `rows` rows."""
    return FEW_ROWS if rows <= FEW_ROWS.block_m else many_rows(device)


class TritonGemm:
    """FP8 GEMMs with bf16 results on a number of SMs, all of the GPU's unless told otherwise."""

    version = "triton"

    def __init__(self, device: torch.device) -> None:
        self.num_sms = min(132, num_sms_of(device)) if device.type != "cuda" else num_sms_of(device)
        self._one_expert = torch.zeros(0, dtype=torch.int32, device=device)

    def dense(self, x: Scaled, weight: Scaled, sms: int | None) -> torch.Tensor:
        """[m, k] times the transposed [n, k]: a grouped GEMM of one expert."""
        rows = x[0].shape[0]
        if rows > self._one_expert.numel():
            self._one_expert = torch.zeros(rows, dtype=torch.int32, device=x[0].device)
        whole = (weight[0].unsqueeze(0), weight[1].unsqueeze(0))
        num_sms, tiling = sms or self.num_sms, many_rows(x[0].device)
        # Tiles of half the rows take no longer while all of them run at once.
        few = -(-rows // FEW_ROWS.block_m) * -(-weight[0].shape[0] // FEW_ROWS.block_n)
        if few <= num_sms or rows <= FEW_ROWS.block_m:
            tiling = FEW_ROWS
        return gemm.contiguous(x, whole, self._one_expert[:rows], num_sms, tiling=tiling)

    def contiguous(
        self, x: Scaled, weight: Scaled, expert_of: torch.Tensor, sms: int | None
    ) -> torch.Tensor:
        """Rows sorted by expert, each expert's a multiple of 128, times that expert's [n, k]."""
        tiling = many_rows(x[0].device)
        return gemm.contiguous(x, weight, expert_of, sms or self.num_sms, tiling=tiling)

    def masked(
        self,
        x: Scaled,
        weight: Scaled,
        counts: torch.Tensor,
        expected: int,
        sms: int | None,
        signals: Signals | None = None,
    ) -> torch.Tensor:
        """[E, m, k] of which `counts` rows are valid, times each expert's [n, k]."""
        tiling = tiling_for(expected, x[0].device)
        return gemm.masked(x, weight, counts, sms or self.num_sms, tiling=tiling, signals=signals)
