"""A page of 58 layers on 8 ranks: seconds to write it, to its first paint, to its lanes, and per zoom step.

The CPU time of the page is what opening it takes where nothing else runs.

python -m benchmarks.pages [CHROMIUM]; says so and ends well when there is no Chromium or no playwright.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from moe_overlap.prediction import simulate
from scenarios import load
from scenarios.resolve import resolve
from schedules.timeline import Timeline
from viz.view import write_view

SCENARIO, LAYERS = "deepseek-v3-h200-ep8-decode", 58
SCHEDULES = ("sequential", "baseline", "tbo")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
DRAWN_MS = "document.body.dataset.drawMs"
ZOOMS = ("#zoom-in",) * 5 + ("#zoom-out",) * 5


def timelines() -> dict[str, Timeline]:
    """Every rank of the scenario by itself, all its MoE layers."""
    resolved = resolve(load(SCENARIO, []))
    return {name: simulate(resolved, name, layers=LAYERS, fold=False) for name in SCHEDULES}


def browse(page: Any, path: Path) -> list[tuple[str, float, float]]:
    """(what, ms, goal in ms) of opening the page and of zooming it."""
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
    began = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    ready = 1000 * (time.perf_counter() - began)
    found = metrics.send("Performance.getMetrics")["metrics"]
    busy = next(1000 * one["value"] for one in found if one["name"] == "ThreadTime")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    steps = zoom_steps(page)
    page.select_option("#layer", "")
    whole = float(page.evaluate(DRAWN_MS))
    return [
        ("first paint", paint, 2000),
        ("lanes drawn", ready, 2000),
        ("  of it, page's CPU time", busy, 2000),
        ("zoom step, one layer", median(steps), 150),
        ("whole step drawn", whole, 1000),
        ("zoom step, whole step", median(zoom_steps(page)), 150),
    ]


def zoom_steps(page: Any) -> list[float]:
    """ms that each of ten zoom steps draws for, all timelines on the screen."""
    steps = []
    for button in ZOOMS:
        page.click(button)
        steps.append(float(page.evaluate(DRAWN_MS)))
    return steps


def main() -> None:
    """Print one line a figure."""
    chromium = shutil.which(sys.argv[1] if len(sys.argv) > 1 else "chromium")
    found = timelines()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        began = time.perf_counter()
        write_view(path, found)
        spans = sum(len(timeline.spans) for timeline in found.values())
        size = path.stat().st_size / 2**20
        print(
            f"{'page written':24s}{1000 * (time.perf_counter() - began):8.0f} ms   {spans} spans, {size:.1f} MiB"
        )
        try:
            from playwright.sync_api import sync_playwright
        except ModuleNotFoundError:
            chromium = None
        if chromium is None:
            print("no Chromium or no playwright: nothing measured in a browser")
            return
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            for what, ms, goal in browse(page, path):
                print(f"{what:24s}{ms:8.0f} ms   goal {goal:.0f}")
            browser.close()


if __name__ == "__main__":
    main()
