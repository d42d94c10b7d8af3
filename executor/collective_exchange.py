"""Normal-mode dispatch and combine by `all_to_all_single`, for ranks that cannot write each other's
memory (several hosts, no peer access). It has the methods of `executor.kernels.normal.Normal`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from executor.kernels.gemm import FP8
from executor.kernels.normal import (
    ROWS_PER_BLOCK,
    Arrived,
    NormalShape,
    Route,
    count_routes,
)
from executor.kernels.signals import error_word


class Collective:
    """Exchanges of one rank over a process group of NCCL, or gloo on the CPU. NCCL takes the SMs that
    it likes, so a budget has no effect here; counts are waited for on the host."""

    def __init__(self, shape: NormalShape, group: Any, device: torch.device) -> None:
        self.shape, self.group = shape, group
        self.error = error_word(device)
        self._sent: dict[int, list[int]] = {}
        self._came: dict[int, list[int]] = {}
        self._rows: dict[int, Arrived] = {}
        self._results: dict[int, torch.Tensor] = {}

    def layout(self, ids: torch.Tensor, buffer: int = 0) -> Route:
        """Count where the rows of `ids` [T, top_k] go."""
        return count_routes(self.shape, ids, buffer)

    def notify(self, route: Route) -> None:
        """Exchange counts with all ranks and fill the route's plan."""
        shape = self.shape
        sizes = route.sizes.view(shape.ranks, 1 + shape.local_experts)
        told = torch.empty_like(sizes)
        dist.all_to_all_single(told, sizes.contiguous(), group=self.group)
        self._sent[route.buffer] = sizes[:, 0].tolist()
        self._came[route.buffer] = told[:, 0].tolist()
        padded = (told[:, 1:].sum(0) + ROWS_PER_BLOCK - 1) // ROWS_PER_BLOCK * ROWS_PER_BLOCK
        route.plan[: shape.ranks] = 0
        route.plan[shape.ranks] = told[:, 0].sum()
        route.plan[shape.ranks + 1 :] = padded

    def transfer(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        ids: torch.Tensor,
        weights: torch.Tensor,
        route: Route,
        num_sms: int,
    ) -> None:
        """Move the rows."""
        values, scales = x if isinstance(x, tuple) else (x, x.new_zeros(len(x), 0).float())
        token, peer = self._order(route)
        first = (peer * self.shape.local_experts).unsqueeze(1)
        local = ids[token] - first
        here = (ids[token] >= 0) & (local >= 0) & (local < self.shape.local_experts)
        local = torch.where(here, local, -1).to(torch.int32)
        rows = self._there(values.view(torch.uint8)[token], route)
        self._rows[route.buffer] = Arrived(
            rows.view(FP8 if self.shape.scales else torch.bfloat16),
            self._there(scales[token], route),
            self._there(local, route),
            self._there(weights[token], route),
        )

    def arrived(self, rows: int, buffer: int = 0) -> Arrived:
        """The received rows."""
        return self._rows[buffer]

    def results(self, rows: int, buffer: int = 0) -> torch.Tensor:
        """Where to write the results of received rows, bf16 [rows, hidden]."""
        device = self.error.device
        out = torch.empty(rows, self.shape.hidden, dtype=torch.bfloat16, device=device)
        self._results[buffer] = out
        return out

    def combine(self, route: Route, num_sms: int) -> torch.Tensor:
        """Sum of each token's results [T, hidden] bf16."""
        token, _ = self._order(route)
        sent, came = self._sent[route.buffer], self._came[route.buffer]
        results = self._results[route.buffer][: sum(came)]
        back = results.new_empty(sum(sent), self.shape.hidden)
        dist.all_to_all_single(back, results, sent, came, group=self.group)
        total = torch.zeros(
            route.places.shape[0], self.shape.hidden, dtype=torch.float32, device=back.device
        )
        return total.index_add_(0, token, back.float()).to(torch.bfloat16)

    def _order(self, route: Route) -> tuple[torch.Tensor, torch.Tensor]:
        """Token and peer of every row that is sent, peer by peer."""
        peer, token = (route.places.T >= 0).nonzero(as_tuple=True)
        return token, peer

    def _there(self, rows: torch.Tensor, route: Route) -> torch.Tensor:
        came = self._came[route.buffer]
        out = rows.new_empty(sum(came), *rows.shape[1:])
        if rows.shape[1]:
            dist.all_to_all_single(
                out, rows.contiguous(), came, self._sent[route.buffer], group=self.group
            )
        return out
