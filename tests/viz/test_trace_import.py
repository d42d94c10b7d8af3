"""Profiler traces: every GPU event becomes a span with its own times; faults name the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import InputError
from viz.trace_import import import_trace

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
ALEXNET = TRACES / "a100-alexnet.json.gz"


def gpu_events(path: Path) -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def write(path: Path, *events: dict[str, Any], **document: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events, **document}))
    return path


def kernel(name: str, ts: float, dur: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    device = args.pop("device", 0)
    args |= {"device": device, "stream": stream}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


@pytest.mark.parametrize("name", ["a100-alexnet.json.gz", "mi250-toy.json.gz"])
def test_all_gpu_events_with_their_times(name: str) -> None:
    events, timeline = gpu_events(TRACES / name), import_trace(TRACES / name)
    first = min(e["ts"] for e in events)
    expected = sorted((round((e["ts"] - first) * 1000), round(e["dur"] * 1000)) for e in events)
    assert sorted((s.start_ns, s.duration_ns) for s in timeline.spans) == expected
    assert timeline.origin == "imported"
    assert len({(s.rank, s.op) for s in timeline.spans}) == len(events)


def test_alexnet_streams_machine_and_rank() -> None:
    timeline = import_trace(ALEXNET)
    lanes = [s.lane for s in timeline.spans]
    assert (lanes.count("stream 7"), lanes.count("stream 20")) == (91, 7)
    assert timeline.machine == "NVIDIA A100-PG509-200"
    assert timeline.ranks == (0,)
    assert max(s.sms for s in timeline.spans) == 108


def test_waits_fill_the_time_between_spans_of_a_lane() -> None:
    ends = {"stream 7": 0, "stream 20": 0}
    for span in import_trace(ALEXNET).spans:
        assert sum(w.ns for w in span.waits) == max(0, span.start_ns - ends[span.lane])
        ends[span.lane] = span.end_ns


def test_wait_is_for_the_host_until_the_launch_returns(tmp_path: Path) -> None:
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": 118,
        "dur": 7,
        "args": {"correlation": 5},
    }
    path = write(
        tmp_path / "t.json", kernel("a", 100, 10), launch, kernel("b", 130, 4, correlation=5)
    )
    second = import_trace(path).spans[1]
    assert [(w.cause, w.ns, w.culprit) for w in second.waits] == [
        ("host", 15_000, None),
        ("queued", 5_000, "a#1"),
    ]
    assert second.ready_ns == 25_000


def test_two_ranks_share_the_first_events_clock(tmp_path: Path) -> None:
    one = write(tmp_path / "r0.json", kernel("a", 1000.5, 2), distributedInfo={"rank": 0})
    two = write(tmp_path / "r1.json", kernel("a", 1003.25, 2), distributedInfo={"rank": 1})
    assert [(s.rank, s.start_ns) for s in import_trace(one, two).spans] == [(0, 0), (1, 2750)]
    with pytest.raises(InputError, match=r"r1\.json.*rank"):
        import_trace(two, two)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8bjunk", "Chrome trace JSON"),
        (b"\x00\xff", "Chrome trace JSON"),
        (b"{}", "a list of events"),
        (b'{"traceEvents": 3}', "a list of events"),
        (b"[]", "recorded GPU activity"),
        (
            b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}, 7]',
            "recorded GPU activity",
        ),
        (b"[" * 100_000, "Chrome trace JSON"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        import_trace(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="a readable file"):
            import_trace(path)
