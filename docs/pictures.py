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


def main() -> None:
    """Write docs/report.png and docs/explain.png."""
    chromium = shutil.which("chromium") or sys.exit("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report, explained = Path(folder) / "report.html", Path(folder) / "explain.html"
        command = (sys.executable, "-m", "moe_overlap")
        subprocess.run([*command, "compare", SCENARIO, "--html", str(report)], check=True)
        subprocess.run([*command, "explain", SCENARIO, "-o", str(explained)], check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1500}, color_scheme="light")
        shoot(page, report, DOCS / "report.png", lambda: None)
        page.set_viewport_size({"width": 1280, "height": 1180})
        shoot(page, explained, DOCS / "explain.png", lambda: to_lanes(page))
        browser.close()


def to_lanes(page: Any) -> None:
    """The fifth figure, from its heading on."""
    page.evaluate("document.querySelectorAll('.figure')[4].scrollIntoView()")
    page.wait_for_timeout(1500)
    page.evaluate("document.querySelectorAll('.figure')[4].scrollIntoView()")


def shoot(page: Any, source: Path, target: Path, prepare: Any) -> None:
    """One screenshot once the lanes are drawn."""
    page.goto(source.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    prepare()
    page.wait_for_timeout(800)
    page.screenshot(path=target)


if __name__ == "__main__":
    main()
