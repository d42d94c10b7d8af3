"""Communication beside compute, from intervals by hand and from a real trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hidden import GATE, compact, hidden, is_communication, last_run, union
from executor.calibrate.kernel_times import kernel_runs

TRACE = Path(__file__).parents[1] / "fixtures" / "traces" / "h200-deepep-two-batch.json.gz"


def kernel(name: str, start_us: float, us: float) -> dict[str, Any]:
    return {"cat": "kernel", "name": name, "ts": start_us, "dur": us}


def test_only_exchange_time_beside_compute_counts_and_each_moment_once() -> None:
    events = [
        kernel("void deep_ep::intranode::dispatch<2>", 0.0, 10.0),
        kernel("void deep_ep::intranode::notify_dispatch<2>", 8.0, 4.0),
        kernel("gemm", 2.0, 3.0),
        kernel("norm_kernel", 4.0, 3.0),
        kernel("gemm", 11.0, 9.0),
        kernel("void deep_ep::layout::get_dispatch_layout<256>", 0.0, 1.0),
        {"cat": "cpu_op", "name": "gemm", "ts": 0.0, "dur": 50.0},
    ]
    found = hidden(events)
    assert found.communication_ns == pytest.approx(12_000)
    assert found.hidden_ns == pytest.approx(1_000 + 5_000 + 1_000)
    assert hidden(events, runs=2).hidden_ns == pytest.approx(3_500)
    assert union([(3, 4), (0, 2), (1, 3.5)]) == [(0, 4)]


def test_a_real_trace_of_two_batch_overlap_hides_some_communication() -> None:
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "kernel"}
    exchanges = [name for name in names if is_communication(name)]
    assert sorted(name.split("::")[2].split("<")[0] for name in exchanges) == [
        "cached_notify_combine",
        "combine",
        "dispatch",
        "notify_dispatch",
    ]
    found = hidden(events)
    assert 0 < found.hidden_ns < found.communication_ns


def launched(name: str, start_us: float, us: float, stream: int, *grid: int) -> dict[str, Any]:
    return kernel(name, start_us, us) | {"args": {"stream": stream, "grid": list(grid)}}


def test_the_last_runs_kernels_are_kept_from_the_gate_on_in_short() -> None:
    long = "void deep_gemm::" + 90 * "x"
    events = [
        launched(f"{GATE}SpinArgs)", 200.0, 10.0, 7, 1),
        launched("norm", 30.0, 2.0, 7, 9),
        launched(long, 213.04, 4.06, 7, 132),
        launched(f"{GATE}SpinArgs)", 0.0, 10.0, 7, 1),
        launched("norm", 210.5, 2.0, 20, 3, 4, 2),
        {"cat": "cpu_op", "name": "norm", "ts": 212.0, "dur": 1.0},
    ]
    kept = last_run(kernel_runs(events))
    assert compact([{"tbo": kept}, {"tbo": kept[:1]}]) == {
        "names": ["norm", long[:80]],
        "kernels": {
            "tbo": [[[0, 20, 0.5, 2.0, 24], [1, 7, 3.0, 4.1, 132]], [[0, 20, 0.5, 2.0, 24]]]
        },
    }


def test_without_a_gate_everything_is_kept_from_the_first_kernel_on() -> None:
    kept = last_run(kernel_runs([launched("b", 7.0, 1.0, 7, 2), launched("a", 5.0, 1.0, 7, 1)]))
    assert [(k.name, k.start_ns) for k in kept] == [("a", 0.0), ("b", 2000.0)]


def test_a_real_traces_last_run_holds_its_communication() -> None:
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    kept = last_run(kernel_runs(events))
    assert min(k.start_ns for k in kept) >= 0
    own = [k.ns for k in kept if is_communication(k.name)]
    assert sum(own) == pytest.approx(hidden(events).communication_ns)
