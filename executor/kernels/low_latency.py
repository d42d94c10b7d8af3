"""Low-latency dispatch and combine between the GPUs of a node; plain torch beside.

Per buffer a rank's region holds: the next free row of each local expert, a word per source rank for
each direction, received rows [E, W * T, hidden] with scales and sources, and returned rows
[T * top_k, hidden]. Words are set back by whoever waited for them, which is safe because a peer sends
again only after this rank has answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from executor.kernel_set import ExecutorError
from executor.kernels import peer_memory
from executor.kernels.gemm import DEFAULT, FP8, Signals, Tiling, check_budget
from executor.kernels.low_latency_kernels import (
    combine_recv_kernel,
    combine_send_kernel,
    dispatch_recv_kernel,
    dispatch_send_kernel,
)
from executor.kernels.peer_memory import Buffers, Layout, PeerMemory
from executor.kernels.signals import DEADLINE_NS

WORD = 4
DONE_STRIDE = 4 * WORD


@dataclass(frozen=True)
class Shape:
    """Sizes of an exchange: physical experts of all ranks, tokens that a rank sends at most."""

    ranks: int
    experts: int
    hidden: int
    top_k: int
    max_tokens: int
    fp8: bool = True

    @property
    def local_experts(self) -> int:
        """Experts of one rank."""
        return self.experts // self.ranks

    @property
    def capacity(self) -> int:
        """Rows of one expert."""
        return self.ranks * self.max_tokens


class _Places:
    """Byte offsets of one buffer's parts."""

    def __init__(self, shape: Shape, layout: Layout) -> None:
        rows = shape.local_experts * shape.capacity
        self.next = layout.add(shape.local_experts * WORD)
        self.dispatched = layout.add(shape.ranks * DONE_STRIDE)
        self.combined = layout.add(shape.ranks * DONE_STRIDE)
        self.rows = layout.add(rows * shape.hidden * (1 if shape.fp8 else 2))
        self.scales = layout.add(rows * shape.hidden // 128 * WORD if shape.fp8 else 0)
        self.sources = layout.add(rows * WORD)
        self.returned = layout.add(shape.max_tokens * shape.top_k * shape.hidden * 2)


def region_bytes(shape: Shape, buffers: int = 2) -> int:
    """Peer memory that a rank needs."""
    return peer_memory.region_bytes(partial(_Places, shape), buffers)


class LowLatency:
    """Exchanges of one rank. Every call launches one kernel on the current stream.

    `error` holds 0, or after a wait past its deadline 1 + source (dispatch), 1001 + expert (signal),
    2001 + source (combine).
    """

    def __init__(
        self,
        memory: PeerMemory,
        shape: Shape,
        *,
        buffers: int = 2,
        deadline_ns: int = DEADLINE_NS,
    ) -> None:
        self.shape, self._memory, self._deadline_ns = shape, memory, deadline_ns
        self._buffers = Buffers(memory, partial(_Places, shape), 3, buffers)
        self.error = self._buffers.error
        device = memory.own.device
        self._counts = torch.zeros(buffers, shape.local_experts, dtype=torch.int32, device=device)
        self._experts = 1 << max(0, shape.local_experts - 1).bit_length()

    def send_dispatch(
        self, x: torch.Tensor, ids: torch.Tensor, buffer: int = 0, ctas: int | None = None
    ) -> None:
        """Rows [T, hidden] bf16 to the experts `ids` [T, top_k] (-1: none), on at most `ctas` CTAs."""
        shape, places = self.shape, self._buffers.places[buffer]
        self._check(x, ctas)
        if x.shape[0] > shape.max_tokens:
            raise ExecutorError(
                f"{x.shape[0]} tokens; this exchange was built for {shape.max_tokens}"
            )
        items = x.shape[0] * shape.top_k
        dispatch_send_kernel[(max(1, min(items, ctas or items)),)](
            x, ids, self._memory.addresses, self._buffers.tickets[buffer, 0:], x.shape[0], shape.hidden,
            shape.capacity, shape.local_experts, shape.ranks,
            self._memory.rank * shape.max_tokens * shape.top_k, places.rows, places.scales,
            places.sources, places.next, places.dispatched + self._memory.rank * DONE_STRIDE,
            SLOTS=shape.top_k, FP8=shape.fp8, GROUPS=1 << (shape.hidden // 128 - 1).bit_length(),
            num_warps=4,
        )  # fmt: skip

    def receive_dispatch(
        self, buffer: int = 0
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """(rows [E, W * T, hidden] with scales [E, W * T, hidden / 128] if FP8, counts [E])."""
        shape, places, counts = self.shape, self._buffers.places[buffer], self._counts[buffer]
        dispatch_recv_kernel[(1,)](
            self._memory.addresses, counts, self.error, self._deadline_ns, self._memory.rank,
            shape.ranks, shape.local_experts, places.next, places.dispatched,
            EXPERTS=self._experts, num_warps=4,
        )  # fmt: skip
        outer = (shape.local_experts, shape.capacity)
        dtype = FP8 if shape.fp8 else torch.bfloat16
        rows = self._memory.view(places.rows, (*outer, shape.hidden), dtype)
        if not shape.fp8:
            return rows, counts
        scales = self._memory.view(places.scales, (*outer, shape.hidden // 128), torch.float32)
        return (rows, scales), counts

    def send_combine(
        self,
        y: torch.Tensor,
        buffer: int = 0,
        ctas: int | None = None,
        signals: Signals | None = None,
        tiling: Tiling = DEFAULT,
    ) -> None:
        """Expert rows [E, W * T, hidden] bf16 back to their sources.

        With `signals` each row waits for its word, as raised by `gemm.masked` of that tiling.
        `ctas` is the budget; without it many small CTAs share the SMs.
        """
        shape, places = self.shape, self._buffers.places[buffer]
        self._check(y, ctas)
        poll = 0 if signals is None else 1 if signals.grain == "rows" else 2
        rows, warps = (4, 16) if ctas else (1, 4)
        combine_send_kernel[(ctas or (1024 if y.is_cuda else 8),)](
            y.view(torch.int32), self._counts[buffer], self._memory.addresses,
            self._buffers.tickets[buffer, 1:], self.error if signals is None else signals.words,
            self.error, self._deadline_ns, shape.hidden // 2, shape.capacity, shape.local_experts,
            self._memory.rank, shape.ranks, shape.max_tokens * shape.top_k, places.sources,
            places.returned, places.combined + self._memory.rank * DONE_STRIDE,
            -(-shape.hidden // tiling.block_n),
            POLL=poll, ROWS=rows, BLOCK=min(4096, 1 << (shape.hidden // 2 - 1).bit_length()),
            EXPERTS=self._experts, num_warps=warps,
        )  # fmt: skip

    def receive_combine(
        self, ids: torch.Tensor, weights: torch.Tensor, buffer: int = 0
    ) -> torch.Tensor:
        """Each token's weighted sum [T, hidden] bf16 over its returned rows."""
        shape, places = self.shape, self._buffers.places[buffer]
        tokens = ids.shape[0]
        out = torch.empty(tokens, shape.hidden, dtype=torch.bfloat16, device=ids.device)
        block = min(1024, 1 << (shape.hidden - 1).bit_length())
        combine_recv_kernel[(max(1, tokens), -(-shape.hidden // block))](
            ids, weights, out, self._memory.addresses, self._buffers.tickets[buffer, 2:], self.error,
            self._deadline_ns, tokens, shape.hidden, self._memory.rank, shape.ranks,
            places.returned, places.combined, SLOTS=shape.top_k, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return out

    def _check(self, rows: torch.Tensor, ctas: int | None) -> None:
        if rows.dtype != torch.bfloat16 or rows.shape[-1] != self.shape.hidden:
            raise ExecutorError(
                f"exchange of {rows.dtype} rows of {rows.shape[-1]}; "
                f"this one sends torch.bfloat16 rows of {self.shape.hidden}"
            )
        if ctas is not None:
            check_budget("exchange on", ctas, rows.device)


def plain_dispatch(
    xs: list[torch.Tensor], ids: list[torch.Tensor], expert: int
) -> list[tuple[int, int, torch.Tensor]]:
    """(source rank, token, row) of every row that the expert gets."""
    return [
        (rank, token, x[token])
        for rank, (x, chosen) in enumerate(zip(xs, ids, strict=True))
        for token in (chosen == expert).any(1).nonzero().flatten().tolist()
    ]


def plain_combine(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What a token gets back when every expert multiplies its row by (1 + expert), in float32."""
    factors = torch.where(ids >= 0, (1 + ids) * weights, torch.zeros_like(weights)).sum(1)
    return x.float() * factors[:, None]
