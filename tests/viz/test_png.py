"""Pictures: what is said when the machine lacks a browser or the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.viz.made import made_timeline
from viz.extra import MissingExtra
from viz.png import BROWSER_VARIABLE, find_chromium, write_png
from viz.view import view_page


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(MissingExtra, match=r"moe-overlap\[png\]"):
        write_png(tmp_path / "x.png", view_page({"tbo": made_timeline("tbo", layers=1)}))
    assert not list(tmp_path.iterdir())


def test_missing_browser_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    monkeypatch.setenv(BROWSER_VARIABLE, str(tmp_path / "no-browser"))
    with pytest.raises(MissingExtra, match="a Chromium"):
        write_png(tmp_path / "x.png", view_page({"tbo": made_timeline("tbo", layers=1)}))


def test_the_environment_names_the_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh")
    browser.chmod(0o755)
    monkeypatch.setenv(BROWSER_VARIABLE, str(browser))
    assert find_chromium() == str(browser)
