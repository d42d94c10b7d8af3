"""Makes the pictures of README.md: `python docs/pictures.py` (needs playwright and a Chromium).

Each is a screenshot of a page that the command line writes, of the demo scenario as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

SCENARIO = "deepseek-v3-h100-ep72-decode"
DOCS = Path(__file__).parent
LANES = "section.timeline[data-timeline=tbo]"
WIDTH, MARGIN = 1280, 8


def main() -> None:
    """Write docs/report.png and docs/explain.png."""
    chromium = shutil.which("chromium") or sys.exit("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report, explained = Path(folder) / "report.html", Path(folder) / "explain.html"
        command = (sys.executable, "-m", "moe_overlap")
        subprocess.run([*command, "compare", SCENARIO, "--html", str(report)], check=True)
        subprocess.run([*command, "explain", SCENARIO, "-o", str(explained)], check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1500}, color_scheme="light")
        shoot(page, report, DOCS / "report.png", "body", LANES)
        shoot(page, explained, DOCS / "explain.png", ".figure >> nth=4", LANES)
        browser.close()


def shoot(page: Any, source: Path, target: Path, first: str, last: str) -> None:
    """One screenshot from the top of `first` to the end of `last`, once the lanes are drawn."""
    page.goto(source.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    for _ in range(2):  # lanes that come into view are drawn, and make the page longer
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": WIDTH, "height": height})
        page.wait_for_timeout(1500)
    top, end = (page.locator(found).first.bounding_box() for found in (first, last))
    bottom = end["y"] + end["height"] + MARGIN
    y = max(0, top["y"] - MARGIN)
    clip = {"x": 0, "y": y, "width": WIDTH, "height": bottom - y}
    page.screenshot(path=target, clip=clip)


if __name__ == "__main__":
    main()
