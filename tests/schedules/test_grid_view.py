"""The grid of a program, and a finding shown in it."""

from __future__ import annotations

import pytest

from schedules.grid_view import grid_view, show_finding
from schedules.lint import lint
from tests.schedules.lint_cases import program

BODY = """
signal s blocks=2 threshold=1
host: begin stage a.0; main: quant @112 +s work=0 writes=x; main: rec E
host: end stage a.0; comm: wait E; comm: send ?s work=0 reads=x; host: wait n
"""

GRID = """\
  step | host            | main           | comm
     0 | begin stage a.0 |                |
     1 |                 | quant @112 +s  |
     2 |                 | rec E          |
     3 | end stage a.0   |                |
     4 |                 |                | wait E
     5 |                 |                | send ?s
     6 | wait n          |                |
"""


def test_streams_are_columns_and_host_order_rows() -> None:
    assert [line.split() for line in grid_view(program(BODY)).splitlines()] == [
        line.split() for line in GRID.splitlines()
    ]


def test_a_column_begins_at_one_place_in_all_rows() -> None:
    lines = grid_view(program(BODY)).splitlines()
    places = {tuple(i for i, sign in enumerate(line) if sign == "|") for line in lines}
    assert len(places) == 1


def test_a_finding_is_marked_in_its_column() -> None:
    case = program(BODY)
    (finding,) = [item for item in lint(case) if item.rule == "never-recorded"]
    text = show_finding(case, finding, context=1)
    lines = text.splitlines()
    assert lines[0] == "error [never-recorded] rank 0"
    assert lines[2] == "       ... 5 steps above"
    marked = next(line for line in lines if line.startswith(">"))
    assert marked.startswith(">    6 | wait n")
    below = lines[lines.index(marked) + 1]
    assert below.index("^") == marked.index("wait n")
    assert "the host waits for 'n', which is never recorded" in below


def test_the_mark_points_into_the_last_column() -> None:
    lines = grid_view(program(BODY), mark=4, message="here", rows=range(3, 6)).splitlines()
    marked = next(line for line in lines if line.startswith(">"))
    assert lines[lines.index(marked) + 1].index("^") == marked.index("wait E")
    assert lines[-1] == "       ... 1 steps below"


def test_ranks_and_steps_that_do_not_exist() -> None:
    with pytest.raises(KeyError, match="no rank 3"):
        grid_view(program(BODY), 3)
    with pytest.raises(IndexError, match="no step 7"):
        grid_view(program(BODY), mark=7)


def test_a_finding_without_a_step_is_its_own_text() -> None:
    case = program("exchange x normal ranks=0 bytes=1; main: a work=0")
    (finding,) = lint(case)
    assert show_finding(case, finding) == "error [exchange-join]: no rank launches 'x'\n"
