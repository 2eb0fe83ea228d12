"""The dashboard where several coordinators share a store: it follows the one that leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.postgres import PostgresServer
from engines.replicas import ReplicatedSite
from waiting import wait_for

pytest.importorskip("playwright", reason="playwright is not installed, and drives the browser")

from engines.browsing import CHROMIUM, PATIENCE, a_browser
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium was found to look at the dashboard with")


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer) -> Iterator[ReplicatedSite]:
    made = ReplicatedSite(tmp_path, postgres.database())
    made.up()
    yield made
    made.close()


@pytest.fixture
def page() -> Iterator[Page]:
    faults: list[str] = []
    with a_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page
    assert faults == []


def test_a_page_follows_the_leader_and_finds_its_way_back(site: ReplicatedSite, page: Page) -> None:
    a, b = site.urls["a"], site.urls["b"]
    page.goto(f"{b}/#token={site.token}")
    page.wait_for_url(f"{a}/")
    expect(page.locator("#who")).to_have_text("first, operator")
    expect(page.locator("#standby")).to_be_hidden()
    # There it can act: on the one that stands by it could not.
    page.locator('[data-cluster="left"]').get_by_role("button", name="Drain").click()
    wait_for(lambda: site.ask("a", "GET", "clusters").json()["clusters"][0]["drained"])
    site.kill("a")
    expect(page.locator("#lost")).to_be_visible()
    expect(page.locator("#standby")).to_contain_text("Another coordinator may lead by now")
    wait_for(lambda: site.role("b") == "leader")
    page.get_by_role("link", name=b).click()
    page.wait_for_url(f"{b}/")
    expect(page.locator("#link")).to_have_text("● live")
    expect(page.locator("#standby")).to_be_hidden()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_page_that_was_just_sent_here_or_is_in_use_only_offers_to_go(site: ReplicatedSite, page: Page) -> None:
    a, b = site.urls["a"], site.urls["b"]
    page.goto(f"{b}/#token={site.token}&from={a}")  # as if both named each other, for the time of an election
    expect(page.locator("#standby")).to_contain_text("This coordinator stands by and cannot change anything.")
    page.get_by_role("button", name="Submit a task").click()
    page.evaluate("sessionStorage.removeItem('tapfinger-came')")  # that was long ago
    page.get_by_label("Program and arguments").fill("sleep 1")
    site.client("a").drain("right")  # something happens, and the page hears of it
    expect(page.locator('[data-cluster="right"]')).to_contain_text("drained")
    assert page.url == f"{b}/"
    expect(page.get_by_label("Program and arguments")).to_have_value("sleep 1")
    page.keyboard.press("Escape")
    site.client("a").drain("right", undo=True)
    page.wait_for_url(f"{a}/")


def test_where_it_is_taken_to(site: ReplicatedSite, page: Page) -> None:
    """A token goes to no address that this browser cannot reach, nor from an encrypted page to an open one."""
    page.goto(f"{site.urls['a']}/#token={site.token}")
    cases = [
        ("http://10.0.0.2:7410", "http://10.0.0.1:7410", 60, "go"),
        ("http://10.0.0.2:7410", "http://10.0.0.1:7410", 3, "offer"),
        ("http://127.0.0.1:7410", "http://10.0.0.1:7410", 60, "offer"),
        ("http://127.0.0.1:7410", "http://localhost:7411", 60, "go"),
        ("https://b.example:7410", "https://a.example:7410", 60, "go"),
        ("http://b.example:7410", "https://a.example:7410", 60, "name"),
        ("https://a.example:7410", "https://a.example:7410", 60, "name"),
        ("javascript:alert(1)", "http://10.0.0.1:7410", 60, "name"),
        ("", "http://10.0.0.1:7410", 60, "name"),
    ]
    found = page.evaluate(
        "async (cases) => { const { advice } = await import('/dashboard/standby.js');"
        " return cases.map(([leader, here, seconds]) => advice(leader, new URL(here), seconds)); }",
        [list(case[:3]) for case in cases],
    )
    assert found == [case[3] for case in cases]
    # A link that somebody has made up gets no token, and no other page than this one.
    for given in ("javascript:alert(1)", "nonsense", site.urls["a"]):
        page.goto(f"{site.urls['a']}/?{len(given)}#token={site.token}&from={given}")
        expect(page.locator("#link")).to_have_text("● live")
        assert page.evaluate("sessionStorage.getItem('tapfinger-came')") is None
