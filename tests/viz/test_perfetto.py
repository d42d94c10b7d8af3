"""The native trace, read back with the package's own classes, equals the timelines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from schedules.timeline import Counter, Span, Timeline, Waited
from tests.viz.made import made_timeline
from viz.extra import MissingExtra
from viz.perfetto import perfetto_trace, write_perfetto

pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

Slice = tuple[str, str, str, int, int]


def read_back(
    content: bytes,
) -> tuple[list[Slice], dict[tuple[str, str], list[tuple[int, float]]], Any]:
    """Slices as (group, lane, op, start, end), counters by (group, name), and the packets."""
    trace = pb2.Trace()
    trace.ParseFromString(content)
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    slices: list[Slice] = []
    counters: dict[tuple[str, str], list[tuple[int, float]]] = {}
    opened: dict[int, tuple[str, int]] = {}
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, tracks[packet.track_event.track_uuid]
        group = tracks[track.parent_uuid].name
        if event.type == pb2.TrackEvent.TYPE_SLICE_BEGIN:
            assert track.uuid not in opened, "slices of one track overlap"
            opened[track.uuid] = (event.name, packet.timestamp)
        elif event.type == pb2.TrackEvent.TYPE_SLICE_END:
            name, start = opened.pop(track.uuid)
            slices.append((group, track.name, name, start, packet.timestamp))
        else:
            counters.setdefault((group, track.name), []).append(
                (packet.timestamp, event.double_counter_value)
            )
    assert not opened
    return slices, counters, trace.packet


def expected(name: str, timeline: Timeline) -> set[Slice]:
    return {
        (f"{timeline.origin} {name}, rank {s.rank}", s.lane, s.op, s.start_ns, s.end_ns)
        for s in timeline.spans
    }


def test_trace_equals_timelines() -> None:
    predicted = made_timeline("tbo", layers=3)
    measured = Timeline("made-tbo", "made", "measured", predicted.spans[:40])
    slices, counters, _ = read_back(perfetto_trace({"tbo": predicted, "tbo on GPUs": measured}))
    assert set(slices) == expected("tbo", predicted) | expected("tbo on GPUs", measured)
    assert len(slices) == len(predicted.spans) + len(measured.spans)
    for counter in predicted.counters:
        assert counters[f"predicted tbo, rank {counter.rank}", counter.name] == list(counter.points)
    assert len(counters) == len(predicted.counters)


def test_flow_joins_cause_and_waiter() -> None:
    send = Span("L0.send", 0, "main", 0, 0, 50, "combine_send")
    wait = Waited("peer_wait", 30, "L0.send", 0)
    recv = Span(
        "L0.recv", 1, "main", 10, 40, 90, "combine_recv", waits=(wait,), sms=24, label="measured"
    )
    timeline = Timeline(
        "p", "m", "predicted", (send, recv), (Counter("sms_resident", 1, ((0, 0.0),)),)
    )
    _, _, packets = read_back(perfetto_trace({"p": timeline}))
    events = {p.track_event.name: p.track_event for p in packets if p.track_event.name}
    assert list(events["L0.send"].flow_ids) == list(events["L0.recv"].terminating_flow_ids) == [1]
    notes = {a.name: a.int_value or a.string_value for a in events["L0.recv"].debug_annotations}
    assert notes["sms"] == 24
    assert notes["waited.0"] == "peer_wait 30 ns for L0.send, rank 0"


def test_overlapping_flights_take_two_tracks() -> None:
    spans = tuple(Span(f"f{k}", 0, "flight", k, 10 * k, 10 * k + 15, "flight") for k in range(3))
    slices, _, packets = read_back(perfetto_trace({"p": Timeline("p", "m", "predicted", spans)}))
    assert {s[2] for s in slices} == {"f0", "f1", "f2"}
    assert sum(p.track_descriptor.name == "flight" for p in packets) == 2


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(MissingExtra, match=r"moe-overlap\[perfetto\]"):
        write_perfetto(tmp_path / "x.pftrace", {"p": made_timeline("tbo", layers=1)})
    assert not list(tmp_path.iterdir())
