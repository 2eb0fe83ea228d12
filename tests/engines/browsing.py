"""A real browser that looks at a real site, and notices whatever a careful person would complain about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from live.sites import RealSite
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route, expect, sync_playwright

from tapfinger.core.contract import Phase

#: Where systems keep it.
PLACES = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome", "/opt/google/chrome/chrome")
CHROMIUM = next((path for path in PLACES if Path(path).exists()), None)
_QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")

#: Milliseconds; machines that run tests are busy.
PATIENCE = 20_000
expect.set_options(timeout=PATIENCE)

EXPLANATION = {
    "phase": "queued",
    "summary": "Every cluster is full.",
    "waiting_since": 0.0,
    "waited": 3.0,
    "estimate": {"seconds": 75.0, "how": "from the speeds of what runs"},
    "clusters": [
        {"cluster": "left", "verdict": "full", "text": "needs 4 cpu, 0 are free", "probability": 0.25},
        {"cluster": "right", "verdict": "ineligible", "text": "is not eligible", "probability": None},
    ],
    "overtaken_by": [7],
    "placement": None,
}


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_QUIET)
        yield browser
        browser.close()


class Looker:
    """Opens pages of one site."""

    def __init__(self, browser: Browser, site: RealSite) -> None:
        self._browser = browser
        self._site = site
        self._pages: list[Page] = []
        self.complaints: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._site.port}"

    @property
    def token(self) -> str:
        return (self._site.state / "token").read_text().strip()

    def page(self, width: int = 1280, explains: bool = True, **more: Any) -> Page:
        """A page that nobody has signed in to. ``explains``: whether the coordinator says why tasks wait."""
        context = self._browser.new_context(viewport={"width": width, "height": 800}, **more)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)
        if explains:
            page.route("**/api/v1/queue?*", self._queue)
            page.route("**/api/v1/tasks/*/explain", self._explain)
        else:
            for path in ("**/api/v1/queue?*", "**/api/v1/tasks/*/explain"):
                page.route(path, lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
        self._pages.append(page)
        return page

    def sign_in(self, token: str | None = None, **more: Any) -> Page:
        """A page with the board on it."""
        page = self.page(**more)
        page.goto(f"{self.url}/#token={token or self.token}")
        page.wait_for_selector("#board.ready")
        return page

    def close(self) -> None:
        for page in self._pages:
            page.unroute_all(behavior="ignoreErrors")
            page.context.close()

    def _console(self, message: ConsoleMessage) -> None:
        # Chromium notes every refused or failed request; what the page makes of those is tested.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith(self.url):
            self.complaints.append(f"asked {request.url}")

    def _queue(self, route: Route) -> None:
        client = self._site.client
        assert client is not None
        waiting = reversed(client.list([Phase.QUEUED]))
        tasks = [{"task": t.id, "summary": "Every cluster is full.", "waited": 3.0, "estimate": 75.0} for t in waiting]
        route.fulfill(json={"tasks": tasks})

    def _explain(self, route: Route) -> None:
        task = int(route.request.url.split("/")[-2])
        route.fulfill(content_type="application/json", body=json.dumps({"task": task, **EXPLANATION}))


def overflow(page: Page) -> int:
    """Pixels that reach beyond the right edge, of the page or of an open panel."""
    wide: int = page.evaluate(
        "Math.max(...[document.documentElement, ...document.querySelectorAll('dialog[open]')]"
        ".map((box) => box.scrollWidth - Math.min(innerWidth, box.clientWidth)))"
    )
    return wide
