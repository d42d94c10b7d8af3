"""Which layer is drawn, and the drawing and the table on a terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from schedules.timeline import Span, Timeline
from tests.viz.made import made_comparison, made_timeline
from viz.terminal import compare_table, refusals
from viz.terminal_timeline import timeline_text
from viz.window import Window, steady_window


def printed(what: Any, width: int = 80) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def spans(*times: tuple[int, int, int]) -> Timeline:
    made = tuple(Span(f"L{layer}.x", 0, "main", s, s, e, "gemm", layer) for layer, s, e in times)
    return Timeline("p", "m", "predicted", made)


def test_steady_layer_is_a_middle_one_with_a_successor() -> None:
    timeline = spans((0, 0, 90), (1, 100, 190), (2, 205, 290), (3, 300, 390))
    assert steady_window(timeline) == Window(100, 190, 1)
    assert steady_window(timeline, 3) == Window(300, 390, 3)
    with pytest.raises(KeyError, match="no layer 4; the timeline has 0 to 3"):
        steady_window(timeline, 4)


def test_steady_layer_is_an_moe_layer_where_there_are_any() -> None:
    dense = [Span(f"L{k}.x", 0, "main", k, k, k + 1, "gemm", k) for k in range(6)]
    moe = [Span(f"L{k}.dispatch", 0, "main", k, k, k + 1, "dispatch", k) for k in range(6, 9)]
    assert steady_window(Timeline("p", "m", "predicted", (*dense, *moe))).layer == 7


def test_without_layers_the_window_is_everything() -> None:
    assert steady_window(spans((-1, 5, 70))) == Window(0, 70)
    assert steady_window(spans((7, 5, 70))) == Window(5, 70, 7)


def test_drawing_fits_the_width_and_places_ops_to_scale() -> None:
    timeline = spans((0, 0, 50_000), (0, 50_000, 100_000))
    lines = printed(timeline_text(timeline), 70)
    assert all(len(line) <= 70 for line in lines)
    bar = next(line for line in lines if line.startswith("rank 0 main"))
    cells = bar.removeprefix("rank 0 main ")
    assert len(cells) == 58
    assert cells[28] == cells[29] == "G"
    assert cells.count("x") == 2


def test_drawing_shows_both_children_flights_and_gaps() -> None:
    lines = printed(timeline_text(made_timeline("tbo")), 110)
    main = next(line for line in lines if line.startswith("rank 0 main"))
    flight = next(line for line in lines if line.startswith("rank 0 flight"))
    assert "A attn A" in main
    assert "a attn a" in main
    assert "combine" in flight
    assert "·" in flight
    assert "child b" in "".join(lines)


def test_unknown_rank_is_named() -> None:
    with pytest.raises(KeyError, match=r"no rank 9; the timeline has \(0, 1\)"):
        timeline_text(made_timeline("tbo", layers=1), ranks=(0, 9))


def test_compare_table_fits_80_columns_and_has_the_figures() -> None:
    document, _ = made_comparison(layers=58, ranks=1)
    lines = printed(compare_table(document), 80)
    assert all(len(line) <= 80 and "…" not in line for line in lines)
    tbo = next(row for row in document["schedules"] if row["name"] == "tbo")
    line = next(line for line in lines if line.startswith("tbo"))
    assert f"{tbo['step_us'] / 1000:.2f}" in line.split()
    assert f"{tbo['layer_us']:.1f}" in line.split()
    assert next(line for line in lines if line.startswith("sbo")).split()[2:] == ["–"] * 7


def test_refusals_say_rule_and_reason() -> None:
    document, _ = made_comparison(layers=1)
    assert [line.plain for line in refusals(document)] == [
        "sbo refused (sbo_sm90): SGLang does not start with SBO on <compute capability 9>"
    ]
