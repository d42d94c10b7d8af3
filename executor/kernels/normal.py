"""Normal-mode dispatch and combine between the GPUs of a node, on a budget of SMs; plain torch beside.

Dispatch is layout, notify (counts to all ranks), the host's wait for the counts, transfer. A row goes
once to every rank that has one of its experts. Combine reads each token's rows from those ranks and
adds them; the weights were applied where the experts are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from executor.kernel_set import ExecutorError
from executor.kernels import peer_memory
from executor.kernels.gemm import FP8, check_budget
from executor.kernels.low_latency import DONE_STRIDE, WORD
from executor.kernels.normal_kernels import (
    combine_kernel,
    layout_kernel,
    notify_kernel,
    transfer_kernel,
)
from executor.kernels.peer_memory import Buffers, Layout, PeerMemory
from executor.kernels.signals import DEADLINE_NS

ROWS_PER_BLOCK = 128


@dataclass(frozen=True)
class NormalShape:
    """Sizes of an exchange: physical experts of all ranks, tokens that a rank sends at most. `scales`
    is the number of float32 scales of a row that is sent, 0 for bf16 rows."""

    ranks: int
    experts: int
    hidden: int
    top_k: int
    max_tokens: int
    scales: int

    @property
    def local_experts(self) -> int:
        """Experts of one rank."""
        return self.experts // self.ranks

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that is sent, without scales."""
        return self.hidden * (1 if self.scales else 2)


class _Places:
    """Byte offsets of one buffer's parts."""

    def __init__(self, shape: NormalShape, layout: Layout) -> None:
        rows = shape.ranks * shape.max_tokens
        self.table_words = -(-(shape.ranks + shape.local_experts) // 4) * 4
        self.table = layout.add(shape.ranks * self.table_words * WORD)
        self.told, self.done, self.ready, self.read = (
            layout.add(shape.ranks * DONE_STRIDE) for _ in range(4)
        )
        self.rows = layout.add(rows * shape.row_bytes)
        self.scales = layout.add(rows * shape.scales * WORD)
        self.ids = layout.add(rows * shape.top_k * WORD)
        self.weights = layout.add(rows * shape.top_k * WORD)
        self.results = layout.add(rows * shape.hidden * 2)


def region_bytes(shape: NormalShape, buffers: int = 2) -> int:
    """Peer memory that a rank needs."""
    return peer_memory.region_bytes(partial(_Places, shape), buffers)


@dataclass(frozen=True)
class Route:
    """Where a rank's rows go: place of each token on each rank [T, W] (-1: not there), and the plan,
    int32 [W + 1 + E]: where its rows begin on each rank, rows received, padded counts of its experts."""

    places: torch.Tensor
    sizes: torch.Tensor
    plan: torch.Tensor
    buffer: int


@dataclass(frozen=True)
class Arrived:
    """Received rows with scales (bf16 rows have none), local ids (-1: elsewhere) and weights [R, k]."""

    rows: torch.Tensor
    scales: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def expert_block(shape: NormalShape) -> int:
    """A power of two above the number of local experts: one is left for what goes elsewhere."""
    return 1 << shape.local_experts.bit_length()


def count_routes(shape: NormalShape, ids: torch.Tensor, buffer: int) -> Route:
    """The route of `ids` [T, top_k], its plan yet to be filled; ExecutorError for too many tokens."""
    tokens = ids.shape[0]
    if tokens > shape.max_tokens:
        raise ExecutorError(f"{tokens} tokens; this exchange was built for {shape.max_tokens}")
    num_sizes = shape.ranks * (1 + shape.local_experts)
    num_plan = shape.ranks + 1 + shape.local_experts
    words = torch.empty(
        tokens * shape.ranks + num_sizes + num_plan, dtype=torch.int32, device=ids.device
    )
    places, sizes, plan = words.split((tokens * shape.ranks, num_sizes, num_plan))
    layout_kernel[(shape.ranks,)](
        ids, places, sizes, tokens, shape.ranks, shape.local_experts, SLOTS=shape.top_k,
        SLOTS_2=1 << (shape.top_k - 1).bit_length(), EXPERTS=expert_block(shape), BLOCK=512,
        num_warps=8,
    )  # fmt: skip
    return Route(places.view(tokens, shape.ranks), sizes, plan, buffer)


class Normal:
    """Exchanges of one rank. Every call launches one kernel on the current stream. `error` holds 0, or
    after a wait past its deadline 3001, 4001, 5001, 6001 + source (notify, transfer, ready, read)."""

    def __init__(
        self,
        memory: PeerMemory,
        shape: NormalShape,
        *,
        buffers: int = 2,
        deadline_ns: int = DEADLINE_NS,
    ) -> None:
        self.shape, self._memory, self._deadline_ns = shape, memory, deadline_ns
        self._buffers = Buffers(memory, partial(_Places, shape), 2, buffers)
        self.error = self._buffers.error
        # Made once: a view of the region costs the host several calls, a slice of it one.
        self._arrived = [self._arrived_in(places) for places in self._buffers.places]
        self._results = [
            memory.view(
                places.results, (shape.ranks * shape.max_tokens, shape.hidden), torch.bfloat16
            )
            for places in self._buffers.places
        ]
        self._experts = expert_block(shape)
        self._slots = 1 << (shape.top_k - 1).bit_length()

    def layout(self, ids: torch.Tensor, buffer: int = 0) -> Route:
        """Count where the rows of `ids` [T, top_k] go."""
        return count_routes(self.shape, ids, buffer)

    def notify(self, route: Route) -> None:
        """Exchange counts with all ranks and fill the route's plan."""
        shape, places = self.shape, self._buffers.places[route.buffer]
        notify_kernel[(1,)](
            route.sizes, route.plan, self._memory.addresses, self.error, self._deadline_ns,
            self._memory.rank, shape.ranks, shape.local_experts, ROWS_PER_BLOCK,
            places.table, places.table_words, places.told,
            RANKS=1 << (shape.ranks - 1).bit_length(), EXPERTS=self._experts, num_warps=4,
        )  # fmt: skip

    def transfer(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        ids: torch.Tensor,
        weights: torch.Tensor,
        route: Route,
        num_sms: int,
    ) -> None:
        """Move the rows; afterwards all ranks' rows are in this rank's buffer."""
        shape, places = self.shape, self._buffers.places[route.buffer]
        values, scales = x if isinstance(x, tuple) else (x, x)
        self._check(num_sms, values)
        row_words = shape.row_bytes // WORD
        transfer_kernel[(num_sms,)](
            values.view(torch.int32), scales.view(torch.int32), ids, weights, route.places,
            route.plan, self._memory.addresses, self._buffers.tickets[route.buffer, 0:], self.error,
            self._deadline_ns, ids.shape[0], self._memory.rank, shape.ranks, shape.local_experts,
            row_words, shape.scales, places.rows, places.scales, places.ids, places.weights,
            places.done, SLOTS=shape.top_k, SLOTS_2=self._slots, ROWS=8 if shape.scales else 4,
            BLOCK=1 << (row_words - 1).bit_length(),
            SCALE_BLOCK=1 << max(0, shape.scales - 1).bit_length(), num_warps=16,
        )  # fmt: skip

    def arrived(self, rows: int, buffer: int = 0) -> Arrived:
        """Views of `rows` received rows, as the plan counts them; valid until the next transfer."""
        whole = self._arrived[buffer]
        return Arrived(
            whole.rows[:rows], whole.scales[:rows], whole.ids[:rows], whole.weights[:rows]
        )

    def _arrived_in(self, places: _Places) -> Arrived:
        shape, view = self.shape, self._memory.view
        most = shape.ranks * shape.max_tokens
        return Arrived(
            view(places.rows, (most, shape.hidden), FP8 if shape.scales else torch.bfloat16),
            view(places.scales, (most, shape.scales), torch.float32),
            view(places.ids, (most, shape.top_k), torch.int32),
            view(places.weights, (most, shape.top_k), torch.float32),
        )

    def results(self, rows: int, buffer: int = 0) -> torch.Tensor:
        """Where to write the results of received rows, bf16 [rows, hidden], for combine to read."""
        return self._results[buffer][:rows]

    def combine(self, route: Route, num_sms: int) -> torch.Tensor:
        """Sum of each token's results [T, hidden] bf16."""
        shape, places = self.shape, self._buffers.places[route.buffer]
        self._check(num_sms)
        tokens = route.places.shape[0]
        out = torch.empty(tokens, shape.hidden, dtype=torch.bfloat16, device=route.places.device)
        combine_kernel[(num_sms,)](
            route.places, route.plan, out, self._memory.addresses, self._buffers.tickets[route.buffer, 1:],
            self.error, self._deadline_ns, tokens, shape.hidden, self._memory.rank, shape.ranks,
            places.results, places.ready, places.read,
            RANKS=shape.ranks, ROWS=16, BLOCK=1024, STAGES=3, num_warps=16,
        )  # fmt: skip
        return out

    def _check(self, num_sms: int, rows: torch.Tensor | None = None) -> None:
        check_budget("exchange on", num_sms, self._memory.own.device)
        wanted = FP8 if self.shape.scales else torch.bfloat16
        if rows is not None and (rows.dtype != wanted or rows.shape[-1] != self.shape.hidden):
            raise ExecutorError(
                f"exchange of {rows.dtype} rows of {rows.shape[-1]}; "
                f"this one sends {wanted} rows of {self.shape.hidden}"
            )


def plain_transfer(ids: list[torch.Tensor], rank: int, local_experts: int) -> list[tuple[int, int]]:
    """(source rank, token) of the rows that a rank receives, in their order."""
    first = rank * local_experts
    return [
        (source, token)
        for source, chosen in enumerate(ids)
        for token, row in enumerate(chosen.tolist())
        if any(first <= expert < first + local_experts for expert in row)
    ]
