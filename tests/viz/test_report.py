"""The report's HTML without a browser: self-contained, the document's numbers, nothing unescaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.viz.made import made_comparison
from viz.figures import COLUMNS, lookup, micro, signed_percent
from viz.page import json_script, render
from viz.report import report_page, write_report


class Reader(HTMLParser):
    """Collects numbers of the table by (schedule, key), script contents by id, and outside addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.numbers: dict[tuple[str, str], str] = {}
        self.scripts: dict[str, str] = {}
        self.outside: list[str] = []
        self.texts: dict[str, str] = {}
        self._row = self._script = self._key = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.outside += [
            v for k, v in found.items() if k in ("src", "href") and not v.startswith(("data:", "#"))
        ]
        self._row = found.get("data-schedule", self._row)
        self._key = found.get("data-key", "")
        if "data-value" in found:
            self.numbers[self._row, found["data-key"]] = found["data-value"]
        self._script = found.get("id", "") if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts.setdefault(self._script, data)
        if self._key:
            self.texts.setdefault(self._key, data)


@pytest.fixture(scope="module")
def comparison() -> tuple[dict[str, Any], str]:
    document, timelines = made_comparison()
    return document, render(report_page(document, timelines))


def test_every_number_of_the_table_is_the_documents(comparison: tuple[dict[str, Any], str]) -> None:
    document, html = comparison
    shown = Reader(html).numbers
    for row in document["schedules"]:
        for column in COLUMNS:
            for key in column.keys:
                value = lookup(row, key)
                assert shown.get((row["name"], key)) == (None if value is None else repr(value))


def test_document_and_timelines_are_embedded_whole(comparison: tuple[dict[str, Any], str]) -> None:
    document, html = comparison
    scripts = Reader(html).scripts
    assert json.loads(scripts["document"]) == document
    _, timelines = made_comparison()
    for index, timeline in enumerate(timelines.values()):
        columns = json.loads(scripts[f"timeline-{index}"])
        names = [columns["ops"][k] for k in columns["op"]]
        assert list(zip(names, columns["rank"], columns["start"], columns["end"], strict=True)) == [
            (s.op, s.rank, s.start_ns, s.end_ns) for s in timeline.spans
        ]
        assert sum(columns["wait_ns"]) == sum(w.ns for s in timeline.spans for w in s.waits)


def test_page_needs_nothing_from_outside(comparison: tuple[dict[str, Any], str]) -> None:
    html = comparison[1]
    assert Reader(html).outside == []
    assert re.search(r'Content-Security-Policy" content="default-src \'none\'', html)


def test_verdict_and_refusal_are_written(comparison: tuple[dict[str, Any], str]) -> None:
    document, html = comparison
    texts = Reader(html).texts
    assert texts["best"] == document["best"]
    assert texts["why"] == document["why"]
    assert "SGLang does not start with SBO on &lt;compute capability 9&gt;" in html


def test_text_of_the_document_cannot_become_markup() -> None:
    document, timelines = made_comparison(layers=1)
    document["scenario"] = document["why"] = "</script><script>alert(1)</script>"
    html = render(report_page(document, timelines))
    assert "<script>alert" not in html
    assert Reader(html).texts["why"] == document["why"]


def test_json_script_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError):
        json_script("x", float("nan"))


def test_writing_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    document, timelines = made_comparison(layers=1)
    target = tmp_path / "report.html"
    write_report(target, document, timelines)
    before = target.read_bytes()
    document["schedules"][0]["step_us"] = float("inf")
    with pytest.raises(ValueError):
        write_report(target, document, timelines)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_comparison_without_timelines_is_a_table() -> None:
    document, _ = made_comparison(layers=1)
    document |= {"best": None, "verdict": None}
    html = render(report_page(document, {}))
    assert "none can run" in html
    assert 'class="badge' not in html
    assert 'id="search"' not in html


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.04, "0.0 µs"), (9999.9, "9,999.9 µs"), (10_000, "10.00 ms"), (-12_345.6, "-12.35 ms")],
)
def test_micro(us: float, text: str) -> None:
    assert micro(us) == text


def test_signed_percent() -> None:
    assert [signed_percent(r) for r in (1.083, 1.0, 0.75)] == ["+8.3 %", "+0.0 %", "−25.0 %"]
