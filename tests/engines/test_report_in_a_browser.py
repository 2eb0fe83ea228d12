"""The report of `tapfinger reproduce` in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed, and drives the browser")

from engines.browsing import CHROMIUM, a_browser

from tapfinger.cli import app

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium was found to look at the report with")


def test_the_report_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "cells"))
    words = ["reproduce", "motivation", "vanilla", "--seeds", "0:2", "--tasks", "15", "--out", str(tmp_path / "here")]
    app(words, standalone_mode=False)
    faults: list[str] = []
    with a_browser() as browser:
        page = browser.new_page(viewport={"width": 375, "height": 800})
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:")) else faults.append(request.url),
        )
        page.goto((tmp_path / "here" / "report.html").as_uri())
        widths = page.evaluate("[...document.images].map(image => image.naturalWidth)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        assert page.locator("h3").count() == 2
        page.locator("nav a").last.click()
        page.set_viewport_size({"width": 1280, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert len(widths) == 3
    assert min(widths) > 500
    assert not faults
