"""A real Chromium for the tests of pages; without one they are skipped, and say what to install."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from viz.png import FLAGS, find_chromium

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@dataclass
class Opened:
    """A page and everything that it said or asked for beside its own file."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def shot(self, name: str) -> None:
        """Keep a picture under build/screenshots for people to look at."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    path = find_chromium()
    if path is None:
        pytest.skip(
            "no Chromium found: install Debian's (apt-get install chromium) or set MOE_OVERLAP_CHROMIUM"
        )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a file, waits until its timelines are drawn; every page must stay silent and offline."""
    opened: list[Opened] = []

    def open_file(
        path: Path, width: int = 1280, height: int = 800, scheme: str = "light"
    ) -> Opened:
        page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        one = Opened(page)
        page.on("console", lambda message: one.said.append(message.text))
        page.on("pageerror", lambda error: one.said.append(str(error)))
        page.on("request", lambda request: one.asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=yes]")
        one.asked.remove(path.as_uri())
        opened.append(one)
        return one

    yield open_file
    for one in opened:
        asked = [url for url in one.asked if not url.startswith(("data:", "blob:"))]
        one.page.close()
        assert one.said == []
        assert asked == []
