"""Cuts a profiler trace of one run down to what an import needs, and to what may be shown.

    python -m benchmarks.trim_trace trace.json.gz trimmed.json.gz

Kept: kernels, copies, the ranges that name ops, and the launch call of each kernel. Dropped: everything
about the process and the machine but the GPU's name, and host ranges of the library below our own.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

KEPT = ("kernel", "gpu_memcpy", "gpu_memset", "user_annotation", "gpu_user_annotation")
LAUNCHES = ("cuda_runtime", "cuda_driver")
ARGUMENTS = ("correlation", "stream", "grid", "block", "registers per thread", "shared memory")


def trimmed(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with the events of the module's docstring, times from 0 in µs."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    on_gpu = {_correlation(e) for e in events if e.get("cat") in KEPT[:3]}
    kept = [
        event
        for event in events
        if event.get("cat") in KEPT
        or (event.get("cat") in LAUNCHES and _correlation(event) in on_gpu)
    ]
    zero = min(event["ts"] for event in kept)
    names = {item.get("name") for item in trace.get("deviceProperties", [])}
    return {
        "schemaVersion": trace.get("schemaVersion", 1),
        "deviceProperties": [{"id": 0, "name": name} for name in sorted(filter(None, names))],
        "traceEvents": [_slim(event, zero) for event in sorted(kept, key=lambda e: e["ts"])],
    }


def _correlation(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _slim(event: dict[str, Any], zero: float) -> dict[str, Any]:
    arguments = {k: v for k, v in event.get("args", {}).items() if k in ARGUMENTS}
    return {
        "ph": "X",
        "cat": event["cat"],
        "name": event["name"],
        "pid": 0,
        "tid": event["tid"] if event["cat"] in KEPT[:3] else 0,
        "ts": round(event["ts"] - zero, 3),
        "dur": round(event["dur"], 3),
        "args": arguments,
    }


def main() -> None:
    """Read, trim, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    opened = gzip.open if arguments.source.suffix == ".gz" else open
    with opened(arguments.source, "rt") as file:
        trace = json.load(file)
    text = json.dumps(trimmed(trace), separators=(",", ":")).encode()
    arguments.target.write_bytes(gzip.compress(text, mtime=0))
    print(f"{arguments.target}: {len(text)} bytes, {arguments.target.stat().st_size} packed")


if __name__ == "__main__":
    main()
