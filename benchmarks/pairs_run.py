"""Measures the pairs of `benchmarks.pairs_draw` on this machine's two GPUs.

    torchrun --nproc-per-node 2 -m benchmarks.pairs_run --seed 44 --out measured.jsonl

One line a pair, as soon as it is measured: both loops alone, beside each other, and alone again. What
the file holds is not measured again, nor is a pair during which an earlier run was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.pairs import Calls, predicted_file
from benchmarks.pairs_draw import pairs
from benchmarks.pairs_plan import (
    GATE_UP,
    RANKS,
    Compute,
    Pair,
    compute_work,
    parts_of,
    period,
    sleep_ns,
)
from models.machine import Machine
from models.profile import load_machine
from models.routing import Routing

MOST_SMS = 32
LIMIT_S = 60.0
# Seconds of both loops before anything counts: the power control takes most of one.
SETTLE_S, LEAST, REPEATS = 1.0, 4, 3
# Rows that a masked GEMM's buffers hold for each expert.
ALLOCATED = 64

Call = Callable[[], Any]


def finished(path: Path) -> set[str]:
    """Pairs that the file mentions: measured, or begun by a run that did not come back."""
    if not path.exists():
        return set()
    return {json.loads(line)["pair"] for line in path.read_text().splitlines() if line.strip()}


def compute_call(session: Any, pair: Pair, num_sms: int) -> Call:
    """One call of the pair's compute kernel, limited as the pair says."""
    makers: dict[str, Callable[[Any, Compute, int | None], Call]] = {
        "dense": _dense,
        "grouped": _grouped,
        "weights": _weights,
        "attention": _attention,
        "elementwise": _elementwise,
    }
    return makers[pair.compute.family](session, pair.compute, pair.budget(num_sms))


def _dense(session: Any, compute: Compute, sms: int | None) -> Call:
    from executor.small_kernels import quantise

    weight = session.weights.linear[compute.kernel]
    _same(compute, session, {"n": weight[0].shape[0], "k": weight[0].shape[1]})
    x = quantise(_random(compute.size, weight[0].shape[1]), column_major=True)
    return lambda: session.gemm.dense(x, weight, sms)


def _stacked(session: Any, compute: Compute) -> Any:
    weights = session.weights
    weight = weights.gate_up if compute.kernel == GATE_UP else weights.down
    _same(compute, session, {"n": weight[0].shape[1], "k": weight[0].shape[2]})
    return weight


def _grouped(session: Any, compute: Compute, sms: int | None) -> Call:
    import torch

    from executor.small_kernels import quantise

    weight = _stacked(session, compute)
    experts, _, k = weight[0].shape
    x = quantise(_random(experts * _padded(compute.size), k), column_major=True)
    ids = torch.arange(experts, dtype=torch.int32, device="cuda")
    expert_of = ids.repeat_interleave(_padded(compute.size))
    return lambda: session.gemm.contiguous(x, weight, expert_of, sms)


def _padded(rows: int) -> int:
    return -(-rows // 128) * 128


def _weights(session: Any, compute: Compute, sms: int | None) -> Call:
    import torch

    from executor.small_kernels import quantise

    weight, rows = _stacked(session, compute), compute.size
    experts, _, k = weight[0].shape
    values, scales = quantise(_random(experts * ALLOCATED, k), column_major=False)
    by_column = scales.view(experts, ALLOCATED, -1).transpose(1, 2).contiguous().transpose(1, 2)
    x = (values.view(experts, ALLOCATED, k), by_column)
    counts = torch.full((experts,), rows, dtype=torch.int32, device="cuda")
    return lambda: session.gemm.masked(x, weight, counts, rows, sms)


def _attention(session: Any, compute: Compute, sms: int | None) -> Call:
    """The layer's whole operation: plain and rotated halves of the keys are joined first."""
    from executor.partition import Partitions
    from executor.prefill_attention import attended, without_efficient

    made, attention = compute_work(compute, session.deployment), session.deployment.model.attention
    heads, rows = made.dim("heads"), compute.count * compute.size
    nope = made.dim("qk_dim") - attention.qk_rope_head_dim
    query = _random(rows, heads * made.dim("qk_dim"))
    kv = _random(rows, heads * (nope + made.dim("v_dim")))
    rotated = _random(rows, attention.qk_rope_head_dim)
    partitions = Partitions()

    def call() -> None:
        with without_efficient():
            attended(query, kv, rotated, heads, nope, compute.count)

    def limited() -> None:
        with partitions.limited(sms or 0):
            call()

    return limited if sms else call


def _elementwise(session: Any, compute: Compute, sms: int | None) -> Call:
    from executor.small_kernels import rms_norm, silu_mul_quantise

    model = session.deployment.model
    if compute.kernel == "norm1":
        x, weight = _random(compute.size, model.hidden_size), session.weights.norms["norm1"]
        return lambda: rms_norm(x, weight)
    both = _random(compute.size, 2 * model.moe_intermediate_size)
    return lambda: silu_mul_quantise(both)


def _random(rows: int, columns: int) -> Any:
    import torch

    return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")


def _same(compute: Compute, session: Any, dims: dict[str, int]) -> None:
    """ValueError when the weights are not those that the prediction has."""
    made = compute_work(compute, session.deployment)
    wanted = {key: made.dim(key) for key in dims}
    if wanted != dims:
        raise ValueError(f"{compute.name}: weights have {dims}, the prediction has {wanted}")


def exchange_call(session: Any, routing: Routing, pair: Pair) -> Call:
    """One call of the pair's exchange. A dispatch makes room for the most that it may receive, so that
    the host waits for no counts; it is the dispatch of a layer otherwise, notify included."""
    import torch

    from executor.calibrate.subjects import exchange_subject
    from executor.small_kernels import quantise

    if pair.exchange == "combine":
        return exchange_subject(session, routing, "combine", pair.num_sms).call
    session.exchange.set_num_sms(pair.num_sms)
    ids = torch.as_tensor(routing.ids[session.rank]).to(device="cuda", dtype=torch.int64)
    ids = ids.contiguous()
    weights = torch.rand(ids.shape, dtype=torch.float32, device="cuda")
    hidden = session.deployment.model.hidden_size
    packed = quantise(_random(ids.shape[0], hidden), column_major=False)
    exchange = session.exchange
    per_rank, _, per_expert, in_rank, _ = exchange.buffer.get_dispatch_layout(
        ids, exchange.num_experts
    )
    most = sum(routing.tokens)
    return lambda: exchange.buffer.dispatch(
        packed,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=ids,
        topk_weights=weights,
        expert_alignment=128,
        num_worst_tokens=most,
    )


@dataclass
class Loops:
    """Two loops on this rank, ready to be run."""

    session: Any
    calls: tuple[Call, Call]
    counts: tuple[int, int]

    def run(self, compute: bool, exchange: bool, late: int = 0) -> dict[str, Any]:
        """Periods of the loops that take part, and when the last call of all ended after the gate."""
        import torch

        session = self.session
        counts = [
            count if on else 0 for count, on in zip(self.counts, (compute, exchange), strict=True)
        ]
        streams = (session.pool.stream("main", 0), session.pool.stream("alt", 0))
        sleep = sleep_ns((counts[0], counts[1]))
        torch.cuda.synchronize()
        session.gate.launch(streams[0], sleep + (late if session.rank else 0))
        origin = torch.cuda.Event(enable_timing=True)
        origin.record(streams[0])
        streams[1].wait_event(origin)
        marks: list[list[Any]] = [[], []]
        for call, count, stream, loop in zip(self.calls, counts, streams, marks, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(count):
                    call()
                    loop.append(torch.cuda.Event(enable_timing=True))
                    loop[-1].record(stream)
        torch.cuda.synchronize()
        ends = [[origin.elapsed_time(mark) * 1e6 for mark in loop] for loop in marks]
        found: dict[str, Any] = {"last_ns": max(max(loop) for loop in ends if loop)}
        for index, name in enumerate(("compute", "exchange")):
            seen = period(ends[index], ends[1 - index])
            found[name] = asdict(seen) if seen else None
        return found


class Bench:
    """One rank's part."""

    def __init__(
        self, machine: Machine, wanted: Mapping[str, Calls], beat: Callable[[str], None]
    ) -> None:
        import torch
        import torch.distributed as dist

        from executor.calibrate.clocks import nvml_reader
        from executor.sessions import Sessions

        self.rank, self.machine, self.wanted = int(os.environ["RANK"]), machine, wanted
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))
        self.sessions = Sessions(self.rank, RANKS, dist.group.WORLD, MOST_SMS, 0, beat)
        self.reader = nvml_reader(torch.cuda.current_device())

    def measure(self, pair: Pair) -> dict[str, Any]:
        """Alone, `REPEATS` times beside each other, alone; of every rank, and the clock meanwhile."""
        import torch

        from executor.calibrate.clocks import Watch
        from executor.peers import gathered

        resolved = pair.resolved()
        session = self.sessions.of(resolved.deployment)
        counts, late = self.wanted[pair.name]
        calls: list[Call] = []
        error = ""
        try:
            calls.append(compute_call(session, pair, self.machine.num_sms))
            calls.append(exchange_call(session, resolved.routing, pair))
            for call in calls:
                call()
            torch.cuda.synchronize()
        except (RuntimeError, AssertionError, ValueError) as failed:
            error = str(failed).splitlines()[0] if str(failed) else type(failed).__name__
        errors = [text for text in gathered(error) if text]
        if errors:
            return {"pair": pair.name, "failed": errors}
        loops = Loops(session, (calls[0], calls[1]), counts)
        with Watch(self.reader) as watch:
            self._settle(loops)
            runs: dict[str, Any] = {"before": self._alone(loops)}
            runs["beside"] = [loops.run(True, True, late) for _ in range(REPEATS)]
            runs["after"] = self._alone(loops)
        state = asdict(watch.state) if watch.state else {}
        sides = gathered((runs, state))
        return {
            "pair": pair.name,
            "counts": counts,
            "late_ns": late,
            "ranks": [side[0] for side in sides],
            "clocks": [side[1] for side in sides],
        }

    def _settle(self, loops: Loops) -> None:
        """Both loops beside each other until power has settled; as often on every rank."""
        from executor.peers import gathered

        loops.run(True, True)
        began = time.monotonic()
        loops.run(True, True)
        count = max(LEAST, ceil(SETTLE_S / max(gathered(time.monotonic() - began))))
        for _ in range(count):
            loops.run(True, True)

    def _alone(self, loops: Loops) -> dict[str, Any]:
        return {
            "compute": loops.run(True, False)["compute"],
            "exchange": loops.run(False, True)["exchange"],
        }


def compile_gemms(wanted: list[Pair], machine: Machine) -> None:
    """Compile the pairs' GEMMs in many processes; quick where DeepGEMM's cache holds them."""
    from executor.calibrate.compile import GEMM_KINDS, Job, compile_all

    jobs: dict[Job, None] = {}
    for pair in wanted:
        op = parts_of(pair, machine).compute
        if op.work.kind in GEMM_KINDS:
            jobs[(op.work, op.grid.sm_budget or 0, ALLOCATED, pair.compute.size)] = None
    problems = [problem for problem in compile_all(list(jobs), RANKS) if problem]
    print(f"compiled {len(jobs)} GEMMs {problems or ''}", flush=True)


def run(arguments: argparse.Namespace) -> None:
    """All pairs that are missing, until the time is up; rank 0 decides and writes."""
    from executor.calibrate.gaps import library_versions
    from executor.cuda import device_facts
    from executor.peers import barrier, gathered
    from executor.watchdog import Watchdog

    watchdog = Watchdog(int(os.environ["RANK"]), LIMIT_S)
    watchdog.pause("compiling")
    began = time.monotonic()
    machine = load_machine(arguments.profile)
    skip = finished(arguments.out)
    bench = Bench(machine, calls_of(arguments.seed), watchdog.beat)
    matching = [pair for pair in pairs(arguments.seed) if arguments.match in pair.name]
    wanted = gathered([pair for pair in matching if pair.name not in skip])[0]
    if bench.rank == 0 and wanted:
        compile_gemms(wanted, machine)
    barrier()
    facts = dict(device_facts()) | {"libraries": library_versions()}
    for pair in wanted[:1]:
        bench.sessions.of(pair.resolved().deployment)
    for pair in wanted:
        if not gathered(time.monotonic() - began < arguments.seconds)[0]:
            break
        watchdog.beat(pair.name)
        if bench.rank == 0:
            write(arguments.out, {"pair": pair.name, "began": True})
        entry = bench.measure(pair)
        if bench.rank == 0:
            write(arguments.out, entry | {"facts": facts})
            print(f"[{time.monotonic() - began:6.1f} s] {told(entry)}", flush=True)
    watchdog.stop()
    os._exit(0)


def calls_of(seed: int) -> dict[str, Calls]:
    """How often each loop calls and how late the second rank starts, as was predicted."""
    records = [json.loads(line) for line in predicted_file(seed).read_text().splitlines()]
    return {
        record["pair"]: ((record["counts"][0], record["counts"][1]), record["late_ns"])
        for record in records
    }


def write(path: Path, entry: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def told(entry: dict[str, Any]) -> str:
    """Rank 0's us a call, alone and beside."""
    if "ranks" not in entry:
        return f"{entry['pair']}: {entry['failed']}"
    runs = entry["ranks"][0]
    parts = []
    for loop in ("compute", "exchange"):
        alone, beside = runs["before"][loop], runs["beside"][0][loop]
        times = [f"{one['mean_ns'] / 1e3:.0f}" if one else "-" for one in (alone, beside)]
        parts.append(f"{loop} {' -> '.join(times)}")
    return f"{entry['pair']}: {', '.join(parts)}"


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("measured.jsonl"))
    parser.add_argument("--seed", type=int, default=44)
    parser.add_argument("--match", default="", help="only pairs whose name holds this")
    parser.add_argument("--profile", default="h200-2x-nvlink-measured")
    parser.add_argument("--seconds", type=float, default=110.0)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
