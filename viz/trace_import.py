"""A PyTorch profiler (Kineto) trace becomes a timeline: what ran on each stream, and what it waited for.

Chrome's JSON format, plain or gzipped. A GPU event is a span on the lane `stream N` of its rank: the
job's rank where the file states it, else the device number. What a trace does not say is left out: there
are no cost labels, no layers, and no events between streams. A wait is `host` up to the end of the launch
call and `queued` after it. `sms` is at most the blocks of the grid, so an upper bound.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from models.errors import InputError
from schedules.timeline import Span, Timeline, Waited
from viz.kernel_names import kernel_kind, short_kernel_name

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime")
Event = Mapping[str, Any]


def import_trace(*paths: Path | str) -> Timeline:
    """One timeline of the traces of one run, one file per rank, on the first event's clock.

    InputError names the file when it is not such a trace or has no GPU event, or when two files
    give spans to one rank.
    """
    loaded = [(str(path), *_load(Path(path))) for path in paths]
    origin = min(event["ts"] for _, _, events in loaded for event in _gpu(events))
    spans: list[Span] = []
    for source, document, events in loaded:
        found = _spans(document, events, origin)
        taken = {span.rank for span in spans} & {span.rank for span in found}
        if taken:
            raise InputError(source, "rank", sorted(taken), "one file per rank")
        spans += found
    spans.sort(key=lambda s: (s.start_ns, s.rank, s.lane, s.op))
    names = ", ".join(Path(path).name.removesuffix(".gz").removesuffix(".json") for path in paths)
    return Timeline(names, _machine(loaded[0][1]), "imported", tuple(spans))


def _load(path: Path) -> tuple[Mapping[str, Any], list[Event]]:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        document = json.loads(text)
    except OSError as error:
        raise InputError(
            str(path), "file", error.strerror or str(error), "a readable file"
        ) from None
    except (ValueError, EOFError, RecursionError) as error:
        raise InputError(
            str(path), "content", str(error), "Chrome trace JSON, gzipped or not"
        ) from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise InputError(str(path), "traceEvents", events, "a list of events")
    if not _gpu(events):
        raise InputError(
            str(path), "traceEvents", "no GPU event", "a trace that recorded GPU activity"
        )
    return document, events


def _gpu(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if _timed(e) and e.get("cat", "").lower() in GPU_CATEGORIES]


def _timed(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    times = (event.get("ts"), event.get("dur"))
    return all(isinstance(t, int | float) and t == t and abs(t) < 1e18 for t in times)


def _spans(document: Mapping[str, Any], events: list[Event], origin: float) -> list[Span]:
    launches = {
        e["args"]["correlation"]: _ns(e["ts"] + e["dur"], origin)
        for e in events
        if _timed(e) and e.get("cat") in LAUNCH_CATEGORIES and "correlation" in e.get("args", {})
    }
    job_rank = (document.get("distributedInfo") or {}).get("rank")
    sms = {d.get("id"): d.get("numSms", 0) for d in document.get("deviceProperties") or ()}
    seen: Tally[tuple[int, str]] = Tally()
    spans = []
    ordered = sorted(_gpu(events), key=lambda e: (e["ts"], str(e.get("tid"))))
    for event in ordered:
        span = _span(event, origin, job_rank, sms)
        seen[span.rank, span.op] += 1
        spans.append(replace(span, op=f"{span.op}#{seen[span.rank, span.op]}"))
    return _with_waits(spans, [launches.get(e.get("args", {}).get("correlation")) for e in ordered])


def _span(event: Event, origin: float, job_rank: int | None, sms: Mapping[Any, int]) -> Span:
    args = event.get("args", {})
    device = args.get("device", event.get("pid", 0))
    name, start = str(event.get("name", "")), _ns(event["ts"], origin)
    is_kernel = event["cat"].lower() == "kernel"
    return Span(
        op=short_kernel_name(name) if is_kernel else name.split(" (")[0].lower().replace(" ", "_"),
        rank=int(device if job_rank is None else job_rank),
        lane=f"stream {args.get('stream', event.get('tid'))}",
        ready_ns=start,
        start_ns=start,
        end_ns=start + round(event["dur"] * 1000),
        kind=kernel_kind(name) if is_kernel else "other",
        sms=min(prod(args.get("grid", (0,))), sms.get(device, 0)),
    )


def _ns(ts: float, origin: float) -> int:
    """Nanoseconds since the origin; subtracting first keeps what a double has of an epoch in us."""
    return round((ts - origin) * 1000)


def _with_waits(spans: list[Span], launched: list[int | None]) -> list[Span]:
    """Waits since the lane's previous span ended (or since 0): for the host until the launch call
    returned, then queued."""
    before: dict[tuple[int, str], Span] = {}
    out = []
    for span, launch in zip(spans, launched, strict=True):
        previous = before.get((span.rank, span.lane))
        free = previous.end_ns if previous else 0
        until = min(span.start_ns, max(free, launch)) if launch is not None else free
        waits = []
        if until > free:
            waits.append(Waited("host", until - free))
        if span.start_ns > max(free, until):
            culprit = (previous.op, previous.rank) if previous else (None, None)
            waits.append(Waited("queued", span.start_ns - max(free, until), *culprit))
        span = replace(span, ready_ns=max(free, until), waits=tuple(waits))
        before[span.rank, span.lane] = span
        out.append(span)
    return out


def _machine(document: Mapping[str, Any]) -> str:
    devices = document.get("deviceProperties") or ()
    return str(devices[0].get("name", "unknown")) if devices else "unknown"
