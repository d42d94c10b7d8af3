"""JSON forms: exact round trips, shared matrices, and one clear error for every wrong document."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.host import HostProbe
from models.work import WORK_KINDS, Work, work
from schedules.codec import FormError
from schedules.files import load_program, load_timeline, save_program, save_timeline, write_beside
from schedules.json_form import (
    program_from_json,
    program_to_json,
    timeline_from_json,
    timeline_to_json,
)
from schedules.program import Exchange, Launch, Op, Program, RankClass, Record, Step, Stream
from schedules.timeline import Counter, Span, Timeline, Waited

_PAIRS = st.dictionaries(st.text(max_size=3), st.integers(), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
_WORKS = st.builds(Work, kind=st.sampled_from(WORK_KINDS), dims=_PAIRS, flops=_PAIRS)
st.register_type_strategy(Work, _WORKS)


def _small() -> Program:
    traffic = ((0, 7), (7, 0))
    exchanges = tuple(
        Exchange(f"L{layer}.dispatch", "low_latency", (0, 1), traffic, "ll.0", work("flight"))
        for layer in range(3)
    )
    gemm = work("gemm", m=4, n=8, k=16, flops={"fp8": 1024})
    ops = [Op(f"L{layer}.gemm1", "main", gemm, layer=layer) for layer in range(3)]
    steps: tuple[Step, ...] = (*(Launch(op, "cpp") for op in ops), Record("E0", "main"))
    return Program("small", (Stream("main"),), (RankClass((0, 1), steps),), exchanges)


def _timeline() -> Timeline:
    span = Span("a", 0, "main", 0, 5, 9, waits=(Waited("host", 5), Waited("sm_wait", 0, "b", 1)))
    return Timeline("p", "m", "predicted", (span,), (Counter("hbm_gbps", 0, ((0, 1.5), (9, 0.0))),))


def test_probes_of_the_host_come_back_and_are_left_out_where_there_are_none() -> None:
    probes = (HostProbe((("event", 7), ("gemm", 45_000)), 0.02, 1), HostProbe((("gemm", 47_000),)))
    measured = replace(_timeline(), origin="measured", host_probes=probes)
    document = json.loads(json.dumps(timeline_to_json(measured)))
    first = {"ns": {"event": 7, "gemm": 45_000}, "spread": 0.02, "rank": 1}
    assert document["host_probes"] == [first, {"ns": {"gemm": 47_000}}]
    assert timeline_from_json(document) == measured
    assert "host_probes" not in timeline_to_json(_timeline())
    document["host_probes"][1]["ns"]["gemm"] = "slow"
    with pytest.raises(FormError, match=r"host_probes\[1\]\.ns"):
        timeline_from_json(document)
    for negative in ({"ns": {"gemm": -1}}, {"ns": {}, "spread": -0.1}, {"ns": {}, "rank": -1}):
        document["host_probes"] = [negative]
        with pytest.raises(FormError, match="at least 0"):
            timeline_from_json(document)


@settings(max_examples=40, deadline=None)
@given(st.builds(Program))
def test_any_program_comes_back_equal(program: Program) -> None:
    document = json.loads(json.dumps(program_to_json(program)))
    assert program_from_json(document) == program


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0), st.integers(0)), max_size=4),
    st.lists(st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False))),
)
def test_any_timeline_comes_back_equal(
    times: list[tuple[int, int]], points: list[tuple[int, float]]
) -> None:
    spans = tuple(Span(f"op{i}", i, "main", a, a, a + b) for i, (a, b) in enumerate(times))
    timeline = Timeline("p", "m", "measured", spans, (Counter("x", 0, tuple(points)),), 12)
    assert timeline_from_json(json.loads(json.dumps(timeline_to_json(timeline)))) == timeline


def test_equal_layers_share_one_matrix_and_one_work() -> None:
    document = program_to_json(_small())
    assert len(document["matrices"]) == 1
    assert [w["kind"] for w in document["works"]] == ["flight", "gemm"]
    read = program_from_json(document)
    assert all(exchange.bytes is read.exchanges[0].bytes for exchange in read.exchanges)


def _wrong(path: list[Any], value: Any) -> dict[str, Any]:
    document: Any = json.loads(json.dumps(program_to_json(_small())))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy.deepcopy(document)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], 2, "schema: expected 1, found 2"),
        (["schema"], True, "schema: expected 1, found True"),
        (["kind"], "timeline", "kind: expected 'program'"),
        (["extra"], 1, "extra: unknown key"),
        (["classes"], None, "missing key 'classes'"),
        (["classes", 0, "ranks", 1], "1", "classes[0].ranks[1]: expected an integer, found '1'"),
        (["classes", 0, "steps", 2, "op", "nmae"], "x", "classes[0].steps[2].op.nmae: unknown key"),
        (
            ["classes", 0, "steps", 2, "op", "name"],
            None,
            "classes[0].steps[2].op: missing key 'name'",
        ),
        (
            ["classes", 0, "steps", 2, "do"],
            "lanch",
            "steps[2].do: 'lanch' is not known; did you mean",
        ),
        (
            ["classes", 0, "steps", 2, "op", "work"],
            2,
            "op.work: index 2 lies outside the table of 2",
        ),
        (["classes", 0, "steps", 2, "op", "work"], -1, "op.work: index -1 lies outside"),
        (
            ["classes", 0, "steps", 2, "op", "grid"],
            {"kind": "wav"},
            "op.grid.kind: 'wav' is not known",
        ),
        (["works", 1, "kind"], "gem", "works[1]: unknown work kind 'gem'"),
        (["works", 1, "flops", "fp8"], 1.5, "works[1].flops.fp8: expected an integer, found 1.5"),
        (["matrices", 0, 1, 0], [], "matrices[0][1][0]: expected an integer"),
        (["exchanges", 1, "family"], "fast", "exchanges[1].family: 'fast' is not known"),
        (["streams"], {"name": "main"}, "streams: expected a list"),
        (["streams", 0], [], "streams[0]: expected an object"),
    ],
)
def test_errors_name_the_path(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(FormError) as caught:
        program_from_json(_wrong(path, value))
    assert message in str(caught.value)


@pytest.mark.parametrize("document", [None, 3, [], "x", {}, {"kind": "program"}])
def test_other_json_is_refused(document: object) -> None:
    for read in (program_from_json, timeline_from_json):
        with pytest.raises(FormError):
            read(document)


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    document = timeline_to_json(_timeline())
    document["spans"][0]["end_ns"] = 4
    with pytest.raises(FormError, match=r"spans\[0\]: end_ns lies before start_ns"):
        timeline_from_json(document)


def test_files_come_back_equal(tmp_path: Path) -> None:
    save_program(_small(), tmp_path / "program.json")
    save_timeline(_timeline(), tmp_path / "timeline.json")
    assert load_program(tmp_path / "program.json") == _small()
    assert load_timeline(tmp_path / "timeline.json") == _timeline()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["program.json", "timeline.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "program.json"
    save_program(_small(), target)
    with pytest.raises(UnicodeEncodeError):
        write_beside(target, "\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_beside(tmp_path / "folder", "text")
    assert load_program(target) == _small()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "program.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "program.json:1:2: "),
        (b"\xff\xfe\x00", "not a UTF-8 text"),
        (b'{"schema": NaN}', "NaN is not allowed"),
        (b'{"schema": 1, "schema": 1}', "'schema' stands twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "program.json: "),
        (b'{"schema": 1, "kind": "program"}', "program.json: document: missing key 'name'"),
    ],
)
def test_bad_files_give_one_message(tmp_path: Path, content: bytes, message: str) -> None:
    target = tmp_path / "program.json"
    target.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        load_program(target)
    assert str(caught.value).startswith(str(target))
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_message(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ValueError, match=str(path)):
            load_timeline(path)
