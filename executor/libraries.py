"""DeepEP and DeepGEMM as the serving engine calls them, found at run time.

Both libraries change their Python interfaces between releases; what is used here is looked up by
name and parameter, and what is missing is named.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from executor.kernel_set import MissingResource

Scaled = tuple[torch.Tensor, torch.Tensor]
GEMM_NAMES = {
    "dense": ("fp8_gemm_nt", "gemm_fp8_fp8_bf16_nt"),
    "contiguous": (
        "m_grouped_fp8_gemm_nt_contiguous",
        "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous",
    ),
    "masked": (
        "m_grouped_fp8_gemm_nt_masked",
        "fp8_m_grouped_gemm_nt_masked",
        "m_grouped_gemm_fp8_fp8_bf16_nt_masked",
    ),
}

SOURCES = {
    "deep_gemm": "https://github.com/deepseek-ai/DeepGEMM",
    "deep_ep": "https://github.com/deepseek-ai/DeepEP",
}


def load_library(name: str, what_for: str) -> ModuleType:
    """The module, or MissingResource with the reason that it cannot be loaded."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"; its source: {SOURCES[name]}" if name in SOURCES else ""
        raise MissingResource(
            f"{what_for} needs {name}, which does not load: {reason}{where}"
        ) from None


class DeepGemm:
    """FP8 GEMMs with bf16 results, and how many SMs they take."""

    def __init__(self, num_sms: int) -> None:
        self._module = load_library("deep_gemm", "the production set's GEMMs")
        self.version = str(getattr(self._module, "__version__", "unknown"))
        self._num_sms = num_sms
        self._current = -1
        self._dense = self._found("dense")
        self._contiguous = self._found("contiguous")
        self._masked = self._found("masked")
        self._set_num_sms: Callable[[int], None] = self._attribute(("set_num_sms",))

    def dense(self, x: Scaled, weight: Scaled, sms: int | None) -> torch.Tensor:
        """[m, k] times the transposed [n, k]."""
        rows, n = x[0].shape[0], weight[0].shape[0]
        out = x[0].new_empty((rows, n), dtype=torch.bfloat16)
        if rows:
            self._limit(sms)
            self._dense(x, weight, out)
        return out

    def contiguous(
        self, x: Scaled, weight: Scaled, expert_of: torch.Tensor, sms: int | None
    ) -> torch.Tensor:
        """Rows sorted by expert times that expert's [n, k]."""
        rows, n = x[0].shape[0], weight[0].shape[1]
        out = x[0].new_empty((rows, n), dtype=torch.bfloat16)
        if rows:
            self._limit(sms)
            self._contiguous(x, weight, out, expert_of)
        return out

    def masked(
        self, x: Scaled, weight: Scaled, counts: torch.Tensor, expected: int, sms: int | None
    ) -> torch.Tensor:
        """[E, m, k] of which `counts` rows are valid, times each expert's [n, k]."""
        experts, rows, _ = x[0].shape
        n = weight[0].shape[1]
        out = x[0].new_empty((experts, rows, n), dtype=torch.bfloat16)
        self._limit(sms)
        self._masked(x, weight, out, counts, expected)
        return out

    def _limit(self, sms: int | None) -> None:
        wanted = sms or self._num_sms
        if wanted != self._current:
            self._set_num_sms(wanted)
            self._current = wanted

    def _found(self, kind: str) -> Any:
        return self._attribute(GEMM_NAMES[kind])

    def _attribute(self, names: tuple[str, ...]) -> Any:
        for name in names:
            if hasattr(self._module, name):
                return getattr(self._module, name)
        raise MissingResource(f"deep_gemm {self.version} has none of: {', '.join(names)}")


class DeepEp:
    """One DeepEP buffer of this rank's group, in one mode."""

    def __init__(
        self,
        group: Any,
        mode: str,
        *,
        hidden: int,
        num_experts: int,
        max_tokens: int,
        most_sms: int,
    ) -> None:
        os.environ.setdefault("NVSHMEM_REMOTE_TRANSPORT", "none")
        module = load_library("deep_ep", "the production set's exchanges")
        if not hasattr(module, "Buffer"):
            raise MissingResource("deep_ep has no Buffer; the production set knows DeepEP 1.x")
        self._class = module.Buffer
        self.num_experts, self.max_tokens = num_experts, max_tokens
        self._capture = self._class.capture
        if mode == "normal":
            self.buffer = self._class(group, self._nvlink_bytes(group.size(), hidden, most_sms), 0)
        else:
            size = self._class.get_low_latency_rdma_size_hint(
                max_tokens, hidden, group.size(), num_experts
            )
            self.buffer = self._class(
                group,
                0,
                size,
                low_latency_mode=True,
                num_qps_per_rank=num_experts // group.size(),
            )

    def _nvlink_bytes(self, ranks: int, hidden: int, most_sms: int) -> int:
        """Room for the largest number of SMs that will be asked for."""
        self._class.set_num_sms(most_sms)
        configs = (self._class.get_dispatch_config(ranks), self._class.get_combine_config(ranks))
        return int(max(config.get_nvl_buffer_size_hint(hidden * 2, ranks) for config in configs))

    def set_num_sms(self, num_sms: int) -> None:
        """SMs of the normal-mode kernels from now on."""
        self._class.set_num_sms(num_sms)

    @property
    def comm_stream(self) -> torch.cuda.Stream:
        """The stream that normal-mode kernels run on."""
        stream: torch.cuda.Stream = self.buffer.get_comm_stream()
        return stream

    def dispatch(
        self, x: Scaled | torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *, on_comm: bool
    ) -> tuple[Any, torch.Tensor, torch.Tensor, list[int], tuple[Any, ...]]:
        """Layout, notify, the host's wait for the counts, transfer. With `on_comm` the caller is on
        the comm stream and orders it itself; otherwise the current stream waits for the result."""
        options = self._ordered(on_comm)
        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(
            ids, self.num_experts, **options
        )
        received, recv_ids, recv_weights, counts, handle, _ = self.buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
            expert_alignment=128,
            **self._ordered(on_comm),
        )
        return received, recv_ids, recv_weights, counts, handle

    def combine(self, x: torch.Tensor, handle: tuple[Any, ...], *, on_comm: bool) -> torch.Tensor:
        """Rows back to their sources, summed there."""
        combined, _, _ = self.buffer.combine(x, handle, **self._ordered(on_comm))
        return combined  # type: ignore[no-any-return]

    def send_dispatch(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[Any, ...]:
        """Low latency: (received, counts, handle, hook); the hook launches the receive."""
        received, counts, handle, _, hook = self.buffer.low_latency_dispatch(
            x, ids, self.max_tokens, self.num_experts, use_fp8=True, return_recv_hook=True
        )
        return received, counts, handle, hook

    def send_combine(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, handle: tuple[Any, ...]
    ) -> tuple[torch.Tensor, Any]:
        """Low latency: (combined, hook)."""
        combined, _, hook = self.buffer.low_latency_combine(
            x, ids, weights, handle, return_recv_hook=True
        )
        return combined, hook

    def _ordered(self, on_comm: bool) -> dict[str, Any]:
        if not on_comm:
            return {}
        return {
            "previous_event": self._capture(),
            "async_finish": True,
            "allocate_on_comm_stream": True,
        }
