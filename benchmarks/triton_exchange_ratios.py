"""Our exchanges beside DeepEP's, and the down GEMM with signals beside the same without, on two GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.triton_gemm_ratios import Record, Report
from benchmarks.triton_timing import Timing, time_graph, time_loop
from executor.kernel_set import MissingResource
from executor.kernels import gemm, low_latency, normal
from executor.kernels.gemm import Tiling
from executor.kernels.peer_memory import PeerMemory, by_handles, symmetric
from executor.small_kernels import quantise

EXPERTS, HIDDEN, TOP_K = 64, 7168, 8
DECODE_TOKENS = (8, 32, 64, 128)
PREFILL_TOKENS, PREFILL_SMS = 4096, 24
GOAL_SHOWN = 0.833
DEADLINE_NS = 20_000_000_000


@dataclass(frozen=True)
class Tokens:
    """One rank's tokens, drawn by seed so that every rank can draw every rank's."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    @staticmethod
    def draw(count: int, seed: int) -> Tokens:
        """`count` tokens with distinct random experts."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        x = torch.randn(count, HIDDEN, device="cuda", generator=generator).bfloat16()
        scores = torch.rand(count, EXPERTS, device="cuda", generator=generator)
        weights, ids = scores.topk(TOP_K, dim=-1)
        return Tokens(x, ids, weights.contiguous())


def memory(nbytes: int, report: Report) -> PeerMemory:
    """Symmetric memory, or interprocess handles with a line that says why."""
    device = torch.device("cuda", torch.cuda.current_device())
    try:
        return symmetric(nbytes, dist.group.WORLD, device)
    except MissingResource as error:
        report({"what": "no symmetric memory", "reason": str(error)})
        return by_handles(nbytes, dist.group.WORLD, device)


def relative(found: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative error; infinite where something is not a number."""
    error = (found.float() - reference).norm() / reference.norm()
    return float(error) if bool(torch.isfinite(error)) else float("inf")


class LowLatencyCases:
    """Low latency at several token counts."""

    def __init__(self, rank: int, ranks: int, report: Report) -> None:
        self.rank, self.report = rank, report
        shape = low_latency.Shape(ranks, EXPERTS, HIDDEN, TOP_K, max(DECODE_TOKENS))
        region = memory(low_latency.region_bytes(shape), report)
        self.exchange = low_latency.LowLatency(region, shape, deadline_ns=DEADLINE_NS)
        self.shape = shape

    def check(self, count: int) -> bool:
        """A pair with a factor for each expert, against plain torch; False when it is wrong."""
        tokens = Tokens.draw(count, 17 * count + self.rank)
        self.exchange.send_dispatch(tokens.x, tokens.ids)
        rows, _ = self.exchange.receive_dispatch()
        factors = (
            1
            + self.rank * self.shape.local_experts
            + torch.arange(self.shape.local_experts, device="cuda")
        )
        y = (gemm.dequantised_rows(rows) * factors.view(-1, 1, 1)).bfloat16()
        self.exchange.send_combine(y)
        out = self.exchange.receive_combine(tokens.ids, tokens.weights)
        error = relative(out, low_latency.plain_combine(tokens.x, tokens.ids, tokens.weights))
        code = int(self.exchange.error)
        self.report({"what": "low latency check", "tokens": count, "error": error, "code": code})
        return error < 0.06 and code == 0

    def pair(self, tokens: Tokens, y: torch.Tensor) -> Callable[[], None]:
        """Dispatch and combine of one layer, without the experts between."""

        def call() -> None:
            self.exchange.send_dispatch(tokens.x, tokens.ids)
            self.exchange.receive_dispatch()
            self.exchange.send_combine(y)
            self.exchange.receive_combine(tokens.ids, tokens.weights)

        return call

    def measure(self, theirs: Any) -> None:
        """Pairs by graph replay, ours and DeepEP's; halves of ours apart."""
        shape = (self.shape.local_experts, self.shape.capacity, HIDDEN)
        y = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        for count in DECODE_TOKENS:
            tokens = Tokens.draw(count, 29 * count + self.rank)
            dist.barrier()
            ours = time_graph(self.pair(tokens, y), 10, aligned=True)
            record = {"what": "low latency", "tokens": count, **asdict(ours)}
            if theirs is not None:
                dist.barrier()
                other = time_graph(deep_ep_pair(theirs, tokens, y), 10, aligned=True)
                record |= {"deep_ep_us": other.us, "ratio": round(ours.us / other.us, 3)}
            self.report(record | {"goal": GOAL_SHOWN, "code": int(self.exchange.error)})


def deep_ep_pair(library: Any, tokens: Tokens, y: torch.Tensor) -> Callable[[], None]:
    """The same pair by DeepEP."""

    def call() -> None:
        _, _, handle, hook = library.send_dispatch(tokens.x, tokens.ids)
        hook()
        _, hook = library.send_combine(y, tokens.ids, tokens.weights, handle)
        hook()

    return call


class NormalCase:
    """Normal mode at one size and budget."""

    def __init__(self, rank: int, ranks: int, report: Report) -> None:
        self.rank, self.report = rank, report
        shape = normal.NormalShape(ranks, EXPERTS, HIDDEN, TOP_K, PREFILL_TOKENS, HIDDEN // 128)
        region = memory(normal.region_bytes(shape), report)
        self.exchange = normal.Normal(region, shape, deadline_ns=DEADLINE_NS)
        self.shape = shape
        self.tokens = Tokens.draw(PREFILL_TOKENS, 41 + rank)
        self.packed = quantise(self.tokens.x, column_major=False)

    def dispatch(self) -> normal.Route:
        """Layout, notify, transfer."""
        route = self.exchange.layout(self.tokens.ids)
        self.exchange.notify(route)
        self.transfer(route)
        return route

    def transfer(self, route: normal.Route) -> None:
        """Counts and rows of a known layout."""
        self.exchange.transfer(
            self.packed, self.tokens.ids, self.tokens.weights, route, PREFILL_SMS
        )

    def check(self) -> bool:
        """Rows multiplied by the weights of their local experts come back as a weighted sum."""
        route = self.dispatch()
        rows = int(route.plan[self.shape.ranks])
        arrived = self.exchange.arrived(rows)
        expert = arrived.ids + self.rank * self.shape.local_experts
        factor = torch.where(arrived.ids >= 0, arrived.weights * (1 + expert), 0.0).sum(1)
        values = gemm.dequantised_rows((arrived.rows, arrived.scales))
        self.exchange.results(rows).copy_(values * factor[:, None])
        out = self.exchange.combine(route, PREFILL_SMS)
        tokens = self.tokens
        reference = low_latency.plain_combine(tokens.x, tokens.ids, tokens.weights)
        error, code = relative(out, reference), int(self.exchange.error)
        self.report({"what": "normal check", "rows": rows, "error": error, "code": code})
        return error < 0.06 and code == 0

    def measure(self, theirs: Any) -> None:
        """Dispatch with known counts, combine, each beside DeepEP's, which is given its handle."""
        route = self.dispatch()
        rows = int(route.plan[self.shape.ranks])

        def ours() -> None:
            self.exchange.notify(route)
            self.transfer(route)

        def combine() -> torch.Tensor:
            return self.exchange.combine(route, PREFILL_SMS)

        dist.barrier()
        times: dict[str, Timing] = {"dispatch": time_graph(ours, aligned=True)}
        times["layout"] = time_graph(lambda: self.exchange.layout(self.tokens.ids))
        dist.barrier()
        times["combine"] = time_graph(combine, aligned=True)
        for name, timing in times.items():
            record: Record = {"what": "normal", "name": name, "sms": PREFILL_SMS, "rows": rows}
            self.report(record | asdict(timing) | {"code": int(self.exchange.error)})
        for name, other in ({} if theirs is None else self._deep_ep(theirs)).items():
            record = {"what": "normal ratio", "name": name, "us": times[name].us}
            record |= {"deep_ep_us": other.us, "deep_ep_launch": other.launch}
            self.report(record | {"ratio": round(times[name].us / other.us, 3), "goal": GOAL_SHOWN})

    def _deep_ep(self, library: Any) -> dict[str, Timing]:
        library.set_num_sms(PREFILL_SMS)
        tokens = self.tokens
        received, _, _, _, handle = library.dispatch(
            self.packed, tokens.ids, tokens.weights, on_comm=False
        )
        back = torch.randn(received[0].shape, device="cuda", dtype=torch.bfloat16)
        dist.barrier()
        dispatch = time_loop(lambda: library.buffer.dispatch(self.packed, handle=handle))
        dist.barrier()
        combine = time_loop(lambda: library.combine(back, handle, on_comm=False))
        return {"dispatch": dispatch, "combine": combine}


class SignalCases:
    """The down GEMM and the combine: one after the other, and with signals side by side."""

    def __init__(self, low: LowLatencyCases) -> None:
        self.low, self.exchange, self.report = low, low.exchange, low.report
        experts = low.shape.local_experts
        w = torch.randn(experts, HIDDEN, 2048, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(experts, low.shape.capacity, 2048, device="cuda", dtype=torch.bfloat16)
        scales = (experts, HIDDEN // 128, 16)
        self.w = (w.to(gemm.FP8), torch.rand(*scales, device="cuda") * 0.02)
        scales = (experts, 16, low.shape.capacity)
        self.x = (x.to(gemm.FP8), torch.rand(*scales, device="cuda").transpose(1, 2))
        self.y = torch.empty(
            experts, low.shape.capacity, HIDDEN, dtype=torch.bfloat16, device="cuda"
        )
        self.signals = gemm.signal_words(experts, low.shape.capacity, "rows", "cuda")
        self.side: Any = torch.cuda.Stream()
        self.turn = 0

    def measure(self, tiling: Tiling) -> None:
        """Every token count and a few budgets: results equal, times beside one another."""
        for count in DECODE_TOKENS:
            tokens = Tokens.draw(count, 53 * count + self.low.rank)
            for buffer in (0, 1):
                self.exchange.send_dispatch(tokens.x, tokens.ids, buffer)
                self.counts = self.exchange.receive_dispatch(buffer)[1]
            torch.cuda.synchronize()
            dist.barrier()
            for comm in (4, 8, 16, 32):
                self._compare(tokens, tiling, comm)

    def _compare(self, tokens: Tokens, tiling: Tiling, comm: int) -> None:
        compute = 132 - comm
        calls: dict[str, Callable[[], torch.Tensor]] = {
            "whole GPU, in turn": partial(self.in_turn, tokens, tiling, 132, None),
            "budgets, in turn": partial(self.in_turn, tokens, tiling, compute, comm),
            "signals": partial(self.signalled, tokens, tiling, compute, comm),
        }
        results = {name: call() for name, call in calls.items()}
        torch.cuda.synchronize()
        error = relative(results["signals"], results["whole GPU, in turn"].float())
        for name, call in calls.items():
            dist.barrier()
            timing = time_graph(call, 4, aligned=True)
            self.report(
                {"what": "signals", "tokens": tokens.x.shape[0], "comm_sms": comm, "schedule": name}
                | {"error": error, **asdict(timing), "code": int(self.exchange.error)}
            )

    def in_turn(self, tokens: Tokens, tiling: Tiling, sms: int, comm: int | None) -> torch.Tensor:
        """GEMM, then send, then receive."""
        buffer = self._next()
        gemm.masked(self.x, self.w, self.counts, sms, tiling=tiling, out=self.y)
        self.exchange.send_combine(self.y, buffer, comm)
        return self.exchange.receive_combine(tokens.ids, tokens.weights, buffer)

    def signalled(self, tokens: Tokens, tiling: Tiling, sms: int, comm: int) -> torch.Tensor:
        """GEMM that raises signals beside a send that polls them, then receive."""
        buffer = self._next()
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        gemm.masked(
            self.x, self.w, self.counts, sms, tiling=tiling, out=self.y, signals=self.signals
        )
        with torch.cuda.stream(self.side):
            self.exchange.send_combine(self.y, buffer, comm, self.signals, tiling)
            self.side.wait_stream(main)
            out = self.exchange.receive_combine(tokens.ids, tokens.weights, buffer)
        main.wait_stream(self.side)
        return out

    def _next(self) -> int:
        """Combines without a dispatch between them must alternate buffers."""
        self.turn += 1
        return self.turn % 2
