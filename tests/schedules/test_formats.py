"""The written forms do not change unnoticed: golden files, and the example of `docs/formats.md`.

`python -m tests.schedules.test_formats` writes the golden files anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from schedules.files import (
    load_program,
    load_timeline,
    save_program,
    save_timeline,
    write_beside,
)
from schedules.program import Program
from schedules.text import format_program, parse_program
from schedules.timeline import Counter, Span, Timeline, Waited

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "formats"


def documented() -> str:
    """The program of the section "Program (text)"."""
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    section = text.split("## Program (text)")[1]
    return section.split("```")[1].removeprefix("\n")


def program() -> Program:
    """The documented program, with a class of other work besides."""
    text = documented() + "ranks 2\nmain: L3.gemm1 work=1 layer=3\n"
    return parse_program(text)


def timeline() -> Timeline:
    """A span of every sort, with waits, a stall and a counter."""
    waits = (Waited("host", 9400), Waited("dependency", 600, "L3.a.gemm1", 0))
    stalls = (Waited("peer_wait", 2000, "L3.a.dispatch", 1),)
    spans = (
        Span("L3.a.gemm1", 0, "main", 0, 0, 9000, "gemm", 3, "a", (), (), 116, 9000, "measured"),
        Span(
            "L3.a.dispatch", 0, "comm", 10000, 10000, 15000, "dispatch", 3, "a", waits, stalls, 20
        ),
        Span("L3.a.dispatch.flight", 0, "flight", 11000, 11000, 14000, "flight", 3, "a"),
    )
    counters = (Counter("sms_resident", 0, ((0, 116.0), (9000, 20.0))),)
    return Timeline("tbo", "h200-8x-ib", "predicted", spans, counters, 0)


def test_the_documented_program_is_what_we_print() -> None:
    assert format_program(parse_program(documented())) == documented()


@pytest.mark.parametrize("name", ["program.json", "program.txt", "timeline.json"])
def test_golden_files_are_written_byte_for_byte(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_golden_files_are_read() -> None:
    assert load_program(GOLDEN / "program.json") == program()
    assert parse_program((GOLDEN / "program.txt").read_text(encoding="utf-8")) == program()
    assert load_timeline(GOLDEN / "timeline.json") == timeline()


def write(folder: Path) -> None:
    """Writes the three files."""
    save_program(program(), folder / "program.json")
    save_timeline(timeline(), folder / "timeline.json")
    write_beside(folder / "program.txt", format_program(program()))


if __name__ == "__main__":
    write(GOLDEN)
