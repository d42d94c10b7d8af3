"""The pages of view, validate and explain in a real browser, from the product's own predictions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe_overlap.comparison import compare
from moe_overlap.explanation import explain
from scenarios import load
from schedules.files import save_timeline
from schedules.timeline import Counter, Span, Timeline, Waited
from tests.browser.conftest import Opened
from tests.viz.made import made_timeline
from viz.explain import write_explanation
from viz.report import write_report
from viz.trace_import import import_trace
from viz.validate_page import write_validation
from viz.view import write_view

pytestmark = pytest.mark.browser

Open = Callable[..., Opened]
ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "fixtures" / "traces" / "mi250-toy.json.gz"


def test_view_of_an_imported_trace(tmp_path: Path, open_page: Open) -> None:
    trace = import_trace(TRACE)
    write_view(tmp_path / "view.html", {"trace": trace})
    opened = open_page(tmp_path / "view.html")
    assert opened.page.is_hidden("#critical")
    opened.page.fill("#search", "elementwise")
    expected = sum("elementwise" in span.op for span in trace.spans)
    assert opened.page.inner_text("#found") == f"{expected} found"


@pytest.mark.parametrize(
    ("ranks", "label"),
    [((0, 11), "0, 11"), ((0, 1), "0-1"), ((0, 1, 2, 3, 11), "0-1 of 0-3, 11")],
)
def test_the_rank_box_names_the_ranks_that_there_are(
    tmp_path: Path, open_page: Open, ranks: tuple[int, ...], label: str
) -> None:
    """A folded timeline has some of the ranks: 0 and 11 are two, not twelve."""
    made = made_timeline("tbo", layers=1, ranks=len(ranks))
    spans = tuple(replace(span, rank=ranks[span.rank], waits=()) for span in made.spans)
    write_view(tmp_path / "view.html", {"tbo": replace(made, spans=spans, counters=())})
    opened = open_page(tmp_path / "view.html")
    assert opened.page.get_attribute("#ranks", "placeholder") == label


def test_validation_shows_both_on_one_axis(tmp_path: Path, open_page: Open) -> None:
    predicted = made_timeline("tbo")
    late = tuple(replace(span, end_ns=span.end_ns + 200) for span in predicted.spans)
    measured = replace(predicted, origin="measured", spans=late, counters=())
    write_validation(tmp_path / "v.html", "made", {"tbo": (predicted, measured)})
    opened = open_page(tmp_path / "v.html", height=1000)
    assert opened.page.eval_on_selector_all("section h2", "all => all.map(h => h.textContent)") == [
        "tbo, predicted",
        "tbo, measured",
    ]
    ranges = opened.page.evaluate("moeOverlap.sections.map((s) => s.plot.layout.xaxis.range)")
    assert ranges[0] == ranges[1]
    row = opened.page.inner_text("#ops-tbo tbody tr >> nth=0").split("\t")
    assert row[:3] == ["a.combine (flight)", "66.0 µs", "66.2 µs"]
    opened.shot("validate")


def test_explain_draws_figures_and_follows_the_picked_token(
    tmp_path: Path, open_page: Open
) -> None:
    found = explain(load("tiny", []))
    write_explanation(tmp_path / "e.html", found.document, found.timelines)
    opened = open_page(tmp_path / "e.html")
    token = found.document["slots"]["tokens"][3]
    opened.page.select_option("#token-picker", "3")
    ids: list[str] = opened.page.eval_on_selector_all(
        "#token tr:nth-child(4) td", "all => all.map(c => c.textContent)"
    )
    assert ids == [str(k) for k in token["per_rank_ids"]]
    picked = opened.page.eval_on_selector_all(
        "#slots td.picked", "all => all.map(c => c.dataset.id)"
    )
    assert sorted(map(int, picked)) == sorted(token["per_rank_ids"])
    opened.page.evaluate("moeOverlap.drawAll()")
    shaded: list[int] = opened.page.evaluate(
        "moeOverlap.sections.map((s) => s.plot.layout.shapes.filter((p) => p.layer === 'below').length)"
    )
    assert shaded == [1, 1, 1]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280
    opened.shot("explain")


@pytest.mark.parametrize(
    ("fusion", "outcome", "slot"),
    [("auto", "not fused", "no fused slot"), ("enforce", "fused", "per-rank layout")],
)
def test_explain_shows_its_documents_numbers_and_flips_with_a_flag(
    tmp_path: Path, open_page: Open, fusion: str, outcome: str, slot: str
) -> None:
    odd = "</script><script>document.title = 'run'</script> «тест»"
    found = explain(load("tiny", [f"shared_experts.fusion={fusion}", f"name={odd}"]))
    write_explanation(tmp_path / "e.html", found.document, found.timelines)
    opened = open_page(tmp_path / "e.html")
    assert opened.page.inner_text("h1").endswith(odd)
    states = opened.page.eval_on_selector_all(".state", "all => all.map(s => s.textContent)")
    assert states[:2] == [outcome, slot]
    assert f"the shared expert is {outcome}" in opened.page.inner_text(".figure >> nth=2")
    cells = opened.page.eval_on_selector_all(
        "#paths [data-value], #gains [data-value]",
        "all => all.map(c => [c.closest('table').id, c.dataset.schedule ?? c.closest('tr').dataset.schedule, c.dataset.key, Number(c.dataset.value), c.textContent])",
    )
    paths, gained = found.document["paths"], found.document["gains"]["rows"]
    layers = {row["name"]: row["layer_us"] for row in gained}
    for table, schedule, key, value, text in cells:
        assert value == (paths[schedule][key] if table == "paths" else layers[schedule])
        assert not key.endswith("us") or text.startswith(f"{value:,.1f} µs")
    assert len(cells) == 12 + len(layers)


@pytest.mark.parametrize(("batch", "best"), [(256, "tbo"), (8, "baseline")])
def test_verdict_and_words_flip_with_the_batch(
    tmp_path: Path, open_page: Open, batch: int, best: str
) -> None:
    scenario = load(
        "deepseek-v3-h100-ep72-decode",
        [f"phase.decode.batch_per_rank={batch}", "phase.decode.kv_tokens=1024"],
    )
    result = compare(scenario)
    document: dict[str, Any] = result.document()
    write_report(tmp_path / "r.html", document, result.timelines())
    opened = open_page(tmp_path / "r.html")
    assert opened.page.inner_text("[data-key=best]") == document["best"] == best
    assert opened.page.inner_text("[data-key=why]") == document["why"]
    assert opened.page.get_attribute("tr.best", "data-schedule") == best


def test_odd_timelines_are_drawn_without_complaint(tmp_path: Path, open_page: Open) -> None:
    odd = "<img src=x onerror=alert(1)>"
    zero = Span("L0.zero", 3, "main", 5, 5, 5, "gemm", 0)
    hour = Span(
        odd, 3, odd, 0, 10, 3_600_000_000_000, odd, -1, waits=(Waited("dependency", 10, "gone", 9),)
    )
    timelines = {
        "empty": Timeline("p", "m", "predicted", ()),
        odd: Timeline(odd, odd, "measured", (zero, hour), (Counter("sms_resident", 3, ()),)),
    }
    write_view(tmp_path / "odd.html", timelines)
    opened = open_page(tmp_path / "odd.html")
    opened.page.fill("#search", "<img")
    opened.page.keyboard.press("Enter")
    assert opened.page.inner_text("#dock h3 >> nth=0") == f"{odd} — {odd}"
    assert "for an event: gone" in opened.page.inner_text("#dock .causes >> nth=0")
    assert opened.page.query_selector("img") is None


def test_view_writes_a_picture(tmp_path: Path, chromium: Any) -> None:
    save_timeline(made_timeline("tbo", layers=2), tmp_path / "tbo.json")
    command = [sys.executable, "-m", "moe_overlap", "view", "tbo.json", "-o", "tbo.png"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    content = (tmp_path / "tbo.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(content[16:20]) == 1280
