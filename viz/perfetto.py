"""Timelines as one trace in Perfetto's native format, for https://ui.perfetto.dev or its desktop shell.

One group of tracks per timeline and rank ("predicted tbo, rank 0"), in it a track per lane and a track
per counter. A flow runs from the op that ended a wait to the op that waited for it. Every slice carries
what the page's hover shows as debug annotations. Nanoseconds are kept exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from schedules.files import write_beside
from schedules.timeline import Span, Timeline
from viz.extra import optional
from viz.palette import family, family_name

_COUNTER_UNITS = {"hbm_gbps": "GB/s", "nvlink_gbps": "GB/s", "nic_gbps": "GB/s"}
_SEQUENCE = 1


def write_perfetto(path: Path | str, timelines: Mapping[str, Timeline]) -> None:
    """Write one native trace with all timelines by name. MissingExtra without the `perfetto` package,
    OSError when the file cannot be written."""
    write_beside(Path(path), perfetto_trace(timelines))


def perfetto_trace(timelines: Mapping[str, Timeline]) -> bytes:
    """The serialised trace. MissingExtra without the `perfetto` package."""
    needs = "the Perfetto export"
    builder = optional(
        "perfetto.trace_builder.proto_builder", "perfetto", needs
    ).TraceProtoBuilder()
    proto = optional("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto", needs)
    writer = _Writer(builder, proto)
    for name, timeline in timelines.items():
        writer.timeline(name, timeline)
    trace: bytes = builder.serialize()
    return trace


class _Writer:
    """Adds packets to one trace; track and flow ids are numbered in order of use."""

    def __init__(self, builder: Any, proto: Any) -> None:
        self.builder, self.proto = builder, proto
        self.tracks, self.flow_ids = count(1), count(1)

    def timeline(self, name: str, timeline: Timeline) -> None:
        """All tracks, slices and counters of one timeline."""
        groups = {
            rank: self._track(f"{timeline.origin} {name}, rank {rank}") for rank in timeline.ranks
        }
        flows = _flows(timeline, self.flow_ids)
        rows: dict[tuple[int, str, int], int] = {}
        for span, row in _rows(timeline):
            key = (span.rank, span.lane, row)
            if key not in rows:
                rows[key] = self._track(span.lane, groups[span.rank])
            self._slice(span, rows[key], flows.get(id(span), ((), ())))
        for counter in timeline.counters:
            parent = groups.get(counter.rank)
            if parent is None:
                parent = groups[counter.rank] = self._track(
                    f"{timeline.origin} {name}, rank {counter.rank}"
                )
            track = self._track(counter.name, parent, _COUNTER_UNITS.get(counter.name, "SMs"))
            for ns, value in counter.points:
                event = self._event(ns, track, self.proto.TrackEvent.TYPE_COUNTER)
                event.double_counter_value = value

    def _track(self, name: str, parent: int = 0, unit: str = "") -> int:
        descriptor = self.builder.add_packet().track_descriptor
        descriptor.uuid = next(self.tracks)
        descriptor.name = name
        if parent:
            descriptor.parent_uuid = parent
        if unit:
            descriptor.counter.unit_name = unit
        else:
            descriptor.child_ordering = self.proto.TrackDescriptor.EXPLICIT
            descriptor.sibling_order_rank = descriptor.uuid
        uuid: int = descriptor.uuid
        return uuid

    def _event(self, ns: int, track: int, kind: int) -> Any:
        packet = self.builder.add_packet()
        packet.timestamp = ns
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet.track_event

    def _slice(self, span: Span, track: int, flows: tuple[Any, Any]) -> None:
        event = self._event(span.start_ns, track, self.proto.TrackEvent.TYPE_SLICE_BEGIN)
        event.name = span.op
        event.categories.append(family(family_name(span.kind, span.op, span.lane)).title)
        event.flow_ids.extend(flows[0])
        event.terminating_flow_ids.extend(flows[1])
        for name, value in _annotations(span):
            annotation = event.debug_annotations.add()
            annotation.name = name
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value = value
        self._event(span.end_ns, track, self.proto.TrackEvent.TYPE_SLICE_END)


def _annotations(span: Span) -> Iterator[tuple[str, int | str]]:
    yield "kind", span.kind
    yield "layer", span.layer
    yield "child", span.child
    yield "sms", span.sms
    yield "ready_ns", span.ready_ns
    yield "alone_ns", span.alone_ns
    yield "cost", span.label
    for name, entries in (("waited", span.waits), ("stalled", span.stalls)):
        for number, entry in enumerate(entries):
            culprit = f" for {entry.culprit}, rank {entry.culprit_rank}" if entry.culprit else ""
            yield f"{name}.{number}", f"{entry.cause} {entry.ns} ns{culprit}"


def _rows(timeline: Timeline) -> Iterator[tuple[Span, int]]:
    """Spans with the number of a track of their lane on which they overlap nothing."""
    ends: dict[tuple[int, str], list[int]] = {}
    for span in timeline.spans:
        rows = ends.setdefault((span.rank, span.lane), [])
        row = next((k for k, end in enumerate(rows) if end <= span.start_ns), len(rows))
        rows[row : row + 1] = [span.end_ns]
        yield span, row


def _flows(timeline: Timeline, ids: Iterator[int]) -> dict[int, tuple[list[int], list[int]]]:
    """Flow ids that begin and that end at a span, by `id(span)`: one flow per cross-lane wait."""
    by_op = {(span.rank, span.op): span for span in timeline.spans if span.lane != "flight"}
    flights = {(span.rank, span.op): span for span in timeline.spans if span.lane == "flight"}
    found: dict[int, tuple[list[int], list[int]]] = {}
    for span in timeline.spans:
        for wait in (*span.waits, *span.stalls):
            key = (
                span.rank if wait.culprit_rank is None else wait.culprit_rank,
                wait.culprit or "",
            )
            culprit = by_op.get(key) or flights.get(key)
            if culprit is None or culprit is span or wait.cause == "queued":
                continue
            flow = next(ids)
            found.setdefault(id(culprit), ([], []))[0].append(flow)
            found.setdefault(id(span), ([], []))[1].append(flow)
    return found
