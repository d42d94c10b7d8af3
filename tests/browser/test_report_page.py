"""The report in a real browser: what it shows is the document's, and its controls do what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SHOTS, Opened
from tests.viz.made import made_comparison
from tests.viz.test_palette import linear
from viz.figures import COLUMNS, lookup
from viz.palette import FAMILIES, family_name
from viz.report import write_report

pytestmark = pytest.mark.browser

Open = Callable[..., Opened]
AT = """([name, rank, op]) => {
  const section = moeOverlap.sections.find((s) => s.name === name);
  section.node.scrollIntoView({ block: "center" });
  const { data } = section;
  const i = data.c.op.findIndex((k, n) => data.c.ops[k] === op && data.c.rank[n] === rank && data.c.lanes[data.c.lane[n]] !== "flight");
  const y = section.rows.findIndex((row) => row.spans.includes(i));
  const box = section.plot.getBoundingClientRect();
  const { from, to } = moeOverlap.window;
  const share = ((data.c.start[i] + data.c.end[i]) / 2 - section.offset - from) / (to - from);
  return [box.left + 118 + share * (box.width - 136), box.top + 22 + (y + 0.5) * 22];
}"""
WINDOWS = "moeOverlap.sections.filter((s) => s.drawn).map((s) => s.plot.layout.xaxis.range.map((v) => Math.round(v * 1000)))"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    document, timelines = made_comparison()
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, document, timelines)
    return document, path


@pytest.fixture
def opened(report: tuple[dict[str, Any], Path], open_page: Open) -> Opened:
    return open_page(report[1])


def place(opened: Opened, name: str, rank: int, op: str) -> tuple[float, float]:
    """The middle of an op on the screen, its section scrolled into view and drawn."""
    opened.page.evaluate(AT, [name, rank, op])
    opened.page.wait_for_timeout(150)
    x, y = opened.page.evaluate(AT, [name, rank, op])
    return float(x), float(y)


def dock(opened: Opened) -> str:
    return str(opened.page.inner_text("#dock"))


def test_figures_equal_the_document(opened: Opened, report: tuple[dict[str, Any], Path]) -> None:
    cells = opened.page.eval_on_selector_all(
        "#figures [data-value]",
        "nodes => nodes.map(n => [n.closest('tr').dataset.schedule, n.dataset.key, n.textContent])",
    )
    expected = [
        [row["name"], key, column.form(value)]
        for row in report[0]["schedules"]
        for column in COLUMNS
        for key in column.keys
        if (value := lookup(row, key)) is not None
    ]
    assert cells == expected
    assert opened.page.inner_text("[data-key=why]") == report[0]["why"]


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1280, 800, "light"), (1920, 1080, "dark")]
)
def test_page_fits_the_screen(
    report: tuple[dict[str, Any], Path], open_page: Open, width: int, height: int, scheme: str
) -> None:
    opened = open_page(report[1], width, height, scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.shot(f"report-{width}-{scheme}")
    place(opened, "tbo", 0, "L2.a.attn")
    opened.shot(f"report-{width}-{scheme}-lanes")


def test_schedules_stand_under_each_other_on_one_axis(opened: Opened) -> None:
    opened.page.evaluate("moeOverlap.drawAll()")
    assert opened.page.eval_on_selector_all(
        "section .head h2", "all => all.map(h => h.textContent)"
    ) == ["sequential", "baseline", "tbo"]
    windows = opened.page.evaluate(WINDOWS)
    assert len(windows) == 3
    assert windows[0] == windows[1] == windows[2]


def test_hover_tells_work_sms_cost_and_waits(opened: Opened) -> None:
    opened.page.mouse.move(*place(opened, "tbo", 0, "L2.b.combine.recv"))
    tip = opened.page.inner_text("#tip")
    for words in (
        "L2.b.combine.recv",
        "combine_recv",
        "rank 0, main",
        "measured",
        "for an event: L2.b.combine",
    ):
        assert words in tip
    opened.page.mouse.move(5, 5)
    assert opened.page.is_hidden("#tip")


def test_click_shows_causes_and_waiters_and_they_lead_on(opened: Opened) -> None:
    opened.page.mouse.click(*place(opened, "sequential", 1, "L2.gemm1"))
    assert dock(opened).startswith("L2.gemm1 — sequential")
    assert (
        opened.page.inner_text("#dock .causes >> nth=0")
        .splitlines()[1]
        .startswith("L2.dispatch.recv rank 1, 0.8 µs")
    )
    opened.page.click("#dock .waiters button")
    assert dock(opened).startswith("L2.act — sequential")
    opened.page.click("#dock .causes button")
    assert dock(opened).startswith("L2.gemm1 — sequential")
    marks = opened.page.evaluate(
        "moeOverlap.sections[0].plot.layout.shapes.filter(s => s.type === 'path' && s.line.width >= 2.5).length"
    )
    assert marks == 3
    opened.shot("selected")
    opened.page.keyboard.press("Escape")
    assert opened.page.is_hidden("#dock")


def test_search_counts_dims_and_walks(opened: Opened) -> None:
    opened.page.fill("#search", "gemm1")
    found = sum(
        "gemm1" in span.op and span.rank in (0, 1)
        for t in made_comparison()[1].values()
        for span in t.spans
    )
    assert opened.page.inner_text("#found") == f"{found} found"
    place(opened, "sequential", 0, "L2.attn")
    opacities = opened.page.evaluate(
        "moeOverlap.sections[0].plot.data.filter(t => t.fill === 'toself').map(t => t.opacity ?? 1)"
    )
    assert set(opacities) == {1, 0.14}
    opened.page.focus("#search")
    opened.page.keyboard.press("Enter")
    assert "gemm1 — sequential" in dock(opened)
    first = dock(opened)
    opened.page.keyboard.press("Enter")
    assert dock(opened) != first
    opened.page.fill("#search", "no such op")
    assert opened.page.inner_text("#found") == "0 found"


def test_zoom_of_one_is_a_zoom_of_all(opened: Opened) -> None:
    x, y = place(opened, "baseline", 0, "L2.attn")
    opened.page.evaluate("moeOverlap.drawAll()")
    home = opened.page.evaluate(WINDOWS)[0]
    opened.page.mouse.move(x - 60, y)
    opened.page.mouse.down()
    opened.page.mouse.move(x + 60, y, steps=4)
    opened.page.mouse.up()
    opened.page.wait_for_timeout(300)
    windows = opened.page.evaluate(WINDOWS)
    assert windows[0] == windows[1] == windows[2]
    assert home[0] < windows[0][0] < windows[0][1] < home[1]
    assert (
        abs((windows[0][1] - windows[0][0]) / (home[1] - home[0]) - 120 / (1240 - 24 - 136)) < 0.02
    )
    opened.page.click("#zoom-reset")
    opened.page.wait_for_timeout(300)
    assert opened.page.evaluate(WINDOWS) == [home] * 3


def test_theme_switch_changes_page_and_bars(opened: Opened) -> None:
    place(opened, "sequential", 0, "L2.attn")
    look = "[getComputedStyle(document.body).backgroundColor, moeOverlap.sections[0].plot.data[0].fillcolor]"
    light = opened.page.evaluate(look)
    opened.page.click("#theme")
    dark = opened.page.evaluate(look)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert opened.page.inner_text("#theme") == "Light"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_stand_out_from_their_bars(
    report: tuple[dict[str, Any], Path], open_page: Open, scheme: str
) -> None:
    opened = open_page(report[1], scheme=scheme)
    opened.page.evaluate("moeOverlap.drawAll()")
    written = opened.page.evaluate(
        "moeOverlap.sections[0].plot.data.filter(t => t.mode === 'text').flatMap(t => t.text.map(n => [n, t.textfont.color]))"
    )
    bars = {one.name: getattr(one, scheme) for one in FAMILIES}
    pairs = {
        (bars[family_name("grouped_gemm_masked", name)], ink)
        for name, ink in written
        if name in ("gemm1", "gemm2")
    }
    assert len(pairs) == 1
    assert all(contrast(bar, ink) >= 4.5 for bar, ink in pairs)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it."""
    weights = (0.2126, 0.7152, 0.0722)
    shades = sorted(
        sum(w * v for w, v in zip(weights, linear(colour), strict=True)) for colour in (one, other)
    )
    return (shades[1] + 0.05) / (shades[0] + 0.05)


def test_keyboard_moves_selects_and_zooms(opened: Opened) -> None:
    place(opened, "sequential", 0, "L2.attn")
    opened.page.focus("section[data-timeline=sequential] .plot")
    opened.page.keyboard.press("ArrowRight")
    first = dock(opened)
    opened.page.keyboard.press("ArrowRight")
    assert dock(opened) != first
    opened.page.keyboard.press("ArrowLeft")
    assert dock(opened) == first
    before = opened.page.evaluate("moeOverlap.window.to - moeOverlap.window.from")
    opened.page.keyboard.press("+")
    assert opened.page.evaluate("moeOverlap.window.to - moeOverlap.window.from") == pytest.approx(
        0.6 * before
    )
    opened.page.keyboard.press("/")
    assert opened.page.evaluate("document.activeElement.id") == "search"


def test_the_bar_does_not_hide_what_gets_the_focus(opened: Opened) -> None:
    plot = "section[data-timeline=baseline] .plot"
    opened.page.evaluate("moeOverlap.drawAll()")
    opened.page.eval_on_selector(plot, "p => scrollBy(0, p.getBoundingClientRect().top - 20)")
    opened.page.focus(plot)
    opened.page.wait_for_timeout(200)
    edges = opened.page.evaluate(
        "[document.querySelector('.controls').getBoundingClientRect().bottom,"
        " document.activeElement.getBoundingClientRect().top]"
    )
    assert edges[0] <= edges[1]


def test_layers_ranks_and_switches(opened: Opened) -> None:
    place(opened, "sequential", 0, "L2.attn")
    lanes = "moeOverlap.sections[0].plot.layout.yaxis.ticktext.length"
    assert opened.page.evaluate(lanes) == 4
    opened.page.fill("#ranks", "1")
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate(lanes) == 2
    axes = (
        "Object.keys(moeOverlap.sections[0].plot.layout).filter(k => k.startsWith('yaxis')).length"
    )
    assert opened.page.evaluate(axes) == 3
    opened.page.uncheck("#counters")
    assert opened.page.evaluate(axes) == 1
    opened.page.select_option("#layer", "")
    assert opened.page.evaluate("moeOverlap.window.to") > 2_800_000
    opened.page.select_option("#layer", "1")
    opened.page.click("#layer-next")
    assert opened.page.input_value("#layer") == "2"


def test_printing_draws_every_timeline(
    report: tuple[dict[str, Any], Path], open_page: Open
) -> None:
    opened = open_page(report[1], height=300)
    assert opened.page.evaluate("moeOverlap.sections[2].drawn") == 0
    opened.page.click("#theme")
    opened.page.evaluate(
        "addEventListener('beforeprint', () => { document.body.dataset.printed = document.documentElement.dataset.theme; })"
    )
    opened.page.pdf(path=SHOTS / "report.pdf")
    assert opened.page.evaluate("moeOverlap.sections.every((s) => s.drawn > 0)")
    assert opened.page.evaluate(
        "[document.body.dataset.printed, document.documentElement.dataset.theme]"
    ) == ["light", "dark"]
