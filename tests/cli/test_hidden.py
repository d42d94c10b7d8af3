"""Communication beside compute, from intervals by hand and from a real trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hidden import hidden, is_communication, union

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
