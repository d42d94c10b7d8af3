"""A page as a picture, by a Chromium of this machine; needs the extra `png`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from schedules.files import write_beside
from viz.extra import MissingExtra, optional
from viz.page import Page, render

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_VARIABLE = "MOE_OVERLAP_CHROMIUM"
FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
)
_PAINT_MS = 500


def write_png(path: Path | str, page: Page, *, width: int = 1280) -> None:
    """Write the whole page, `width` pixels wide, in the light theme and with every timeline drawn.

    MissingExtra without playwright or without a Chromium (`MOE_OVERLAP_CHROMIUM` names one), OSError
    when the file cannot be written.
    """
    sync_api = optional("playwright.sync_api", "png", "a picture")
    executable = find_chromium()
    if executable is None:
        raise MissingExtra(
            "png", f"a picture (and a Chromium: install one or set {BROWSER_VARIABLE})"
        )
    with tempfile.TemporaryDirectory() as folder, sync_api.sync_playwright() as playwright:
        source = Path(folder) / "page.html"
        source.write_text(render(page), "utf-8")
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
        shown.goto(source.as_uri())
        shown.wait_for_selector("body[data-ready=yes]")
        shown.evaluate("moeOverlap.drawAll()")
        shown.wait_for_timeout(_PAINT_MS)
        content: bytes = shown.screenshot(full_page=True)
        browser.close()
    write_beside(Path(path), content)


def find_chromium() -> str | None:
    """The Chromium that the environment names, else the first one on the path; None without one."""
    named = os.environ.get(BROWSER_VARIABLE)
    names = (named,) if named else BROWSERS
    return next((found for name in names if (found := shutil.which(name))), None)
