"""The dashboard in a real browser on a real site: clicked through as people would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from live.sites import RealSite, python
from waiting import PATIENCE, wait_for

pytest.importorskip("playwright", reason="playwright is not installed, and drives the browser")

from engines.browsing import CHROMIUM, Looker, a_browser, overflow
from playwright.sync_api import Browser, Page, Route, expect

from tapfinger.core.contract import Phase
from tapfinger.live.http.client import Client

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium was found to look at the dashboard with")

SLEEPS = "import time; print('awake', flush=True); time.sleep(60)"
BIG = {"minimum": {"cpu": 4}, "maximum": {"cpu": 4}, "clusters": ["left"]}
#: Would run in a page that takes it for anything but text.
NASTY = "<img src=x onerror=\"document.title='bad'\"><b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as made:
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    made = RealSite(tmp_path_factory.mktemp("dashboard"))
    made.up()
    yield made
    made.close()


@pytest.fixture
def client(site: RealSite) -> Iterator[Client]:
    """Leaves an empty site behind."""
    assert site.client is not None
    yield site.client
    for info in site.client.list([Phase.QUEUED, Phase.PLACED, Phase.RUNNING]):
        site.client.cancel(info.id)
        site.client.wait(info.id, PATIENCE)


@pytest.fixture
def look(browser: Browser, site: RealSite) -> Iterator[Looker]:
    made = Looker(browser, site)
    yield made
    made.close()
    assert made.complaints == []


def amount(page: Page, cluster: str) -> str:
    return f'[data-cluster="{cluster}"] [data-resource=cpu] .amount'


def test_a_link_signs_in_and_leaves_no_trace(look: Looker) -> None:
    page = look.page()
    answer = page.goto(f"{look.url}/#token={look.token}")
    assert answer is not None
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    expect(page.locator("#who")).to_have_text("first, operator")
    expect(page.locator("#link")).to_have_text("● live")
    assert page.url == f"{look.url}/"
    page.reload()
    expect(page.locator("#who")).to_have_text("first, operator")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("#board")).to_be_hidden()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_wrong_token_is_told_and_a_right_one_can_be_pasted(look: Looker, client: Client) -> None:
    page = look.page()
    page.goto(look.url)
    agent = client.new_token("looker", "agent", "left")
    metrics = client.new_token("prometheus", "metrics")
    for token, told in (
        ("tf_wrong", "not valid here"),
        (agent, "for the agent of left"),
        (metrics, "This token is for metrics. It cannot look."),
    ):
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("#sign-in-fault")).to_contain_text(told)
    page.get_by_label("Token").fill(look.token)
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_have_text("first, operator")
    client.new_token("passing", "viewer")


def test_a_token_that_is_replaced_meanwhile_ends_the_visit(look: Looker, client: Client) -> None:
    page = look.sign_in(client.new_token("visitor", "viewer"))
    client.new_token("visitor", "viewer")
    client.drain("left", undo=True)  # something happens, so that the page asks
    expect(page.locator("#sign-in-fault")).to_contain_text("valid token")
    expect(page.locator("#board")).to_be_hidden()


def test_a_task_from_the_form_to_its_end(look: Looker, tmp_path: Path, client: Client) -> None:
    page = look.sign_in()
    expect(page.locator(amount(page, "left"))).to_have_text("0 of 4, 0 %")
    page.get_by_role("button", name="Submit a task").click()
    code = (
        "import os, time; print(os.environ['TAPFINGER_CPUS'], 'cpus', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(.02)\nprint('bye')"
    )
    line = page.get_by_label("Program and arguments")
    line.fill("python3 -c 'unclosed")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("#submit-fault")).to_have_text("A quotation mark ' is not closed.")
    line.fill(f'python3 -c "{code}" "two words" $HOME')
    expect(page.locator("#submit-preview li")).to_have_text(["python3", "-c", code, "two words", "$HOME"])
    expect(page.locator("#submit-preview .hint")).to_contain_text("No shell reads this: $")
    expect(page.locator("#submit-range")).to_have_text("demo gets from 1 cpu to 4 cpu.")
    page.get_by_label("Name").fill("from the page")
    page.get_by_label("At most, cpu").fill("9")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("#submit-fault")).to_contain_text("is from 1 cpu, 0 gpu to 4 cpu, 0 gpu")
    page.get_by_label("At most, cpu").fill("3")
    page.get_by_label("At least, cpu").fill("3")
    page.get_by_label("left", exact=True).check()
    page.get_by_label("Retries").fill("2")
    page.get_by_label("Time limit, s").fill("50")
    page.get_by_text("Directory and environment").click()
    page.get_by_label("Directory on the cluster").fill(str(tmp_path))
    page.get_by_role("textbox", name="Environment").fill("A=1=2\nB=")
    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page.locator("#detail .phase")).to_have_text("running")
    expect(page.locator("#detail-output pre")).to_have_text("3 cpus\n")
    task = int((page.locator("#detail-head").text_content() or "").split()[1])
    spec = client.show(task).spec
    assert spec.argv == ("python3", "-c", code, "two words", "$HOME")
    assert (spec.minimum, spec.maximum, spec.clusters) == ({"cpu": 3.0}, {"cpu": 3.0}, ("left",))
    assert (spec.retries, spec.time_limit, spec.env, spec.cwd) == (2, 50.0, {"A": "1=2", "B": ""}, str(tmp_path))
    expect(page.locator(amount(page, "left"))).to_have_text("3 of 4, 75 %")
    expect(page.locator("#tasks .title")).to_have_text([f"{task} from the page"])
    (tmp_path / "go").touch()
    expect(page.locator("#detail .phase")).to_have_text("finished")
    expect(page.locator("#detail-output pre")).to_have_text("3 cpus\nbye\n")
    expect(page.locator("#detail-history .kind")).to_have_text(["submitted", "granted", "started", "ended", "finished"])
    expect(page.locator("#detail-facts")).to_contain_text("Exit code0")
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    expect(page.locator(amount(page, "left"))).to_have_text("0 of 4, 0 %")
    expect(page.locator("#tasks")).to_have_attribute("data-empty", "Nothing runs now.")
    page.get_by_role("button", name="Ended").click()
    expect(page.locator(f'#tasks [data-task="{task}"]')).to_contain_text("finished, ran")
    expect(page.locator("#completion")).to_have_attribute(
        "aria-label", re.compile("finished in the last 15 minutes, on")
    )


def test_why_a_task_waits_and_cancelling(look: Looker, client: Client) -> None:
    running, waiting = client.submit(python(SLEEPS, name="first", **BIG), python(SLEEPS, name="second", **BIG))
    page = look.sign_in()
    row = page.locator(f'#queue [data-task="{waiting}"]')
    expect(row.locator(".title")).to_have_text(f"{waiting} second")
    expect(row).to_contain_text("Every cluster is full.")
    expect(row).to_contain_text("starts in about 1 min")
    expect(page.locator("#queue-note")).to_have_text("1 task waits")
    expect(page.locator('[data-tile="waiting"] dd')).to_have_text("1")
    row.get_by_role("button").click()
    why = page.locator("#detail-why")
    expect(why).to_contain_text("It should start in about 1 min 15 s (from the speeds of what runs)")
    expect(why.locator("li")).to_have_text(
        [
            "left needs 4 cpu, 0 are free (probability 25 %)",
            "right is not eligible",
            "Overtaken by #7.",
        ]
    )
    page.locator("#detail").get_by_role("button", name="Cancel").click()
    page.locator("#detail").get_by_role("button", name="Really cancel?").click()
    expect(page.locator("#detail .phase")).to_have_text("cancelled")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#queue")).to_have_attribute("data-empty", "Nothing waits.")

    expect(page.locator(f'#tasks [data-task="{running}"]')).to_be_visible()
    cancel = page.get_by_role("button", name=f"Cancel task {running}")
    cancel.click()
    expect(cancel).to_have_text("Sure?")
    assert client.show(running).phase in (Phase.PLACED, Phase.RUNNING), "once is not enough"
    cancel.click()
    wait_for(lambda: client.show(running).phase is Phase.CANCELLED)
    expect(page.locator("#tasks")).to_have_attribute("data-empty", "Nothing runs now.")


def test_rows_stay_where_they_are_when_others_end(look: Looker, client: Client, tmp_path: Path) -> None:
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(.02)"
    brief, long = client.submit(python(waits, cwd=str(tmp_path)), python(SLEEPS))
    page = look.sign_in()
    button = page.get_by_role("button", name=f"Cancel task {long}")
    button.focus()
    (tmp_path / "go").touch()
    expect(page.locator(f'#tasks [data-task="{brief}"]')).to_have_count(0)
    expect(button).to_be_focused()


def test_a_coordinator_that_does_not_explain_still_shows_its_queue(look: Looker, client: Client) -> None:
    _, waiting = client.submit(python(SLEEPS, **BIG), python(SLEEPS, name="patient", **BIG))
    page = look.sign_in(explains=False)
    expect(page.locator(f'#queue [data-task="{waiting}"]')).to_contain_text("patient")
    page.locator(f'#queue [data-task="{waiting}"] button').click()
    expect(page.locator("#detail-facts")).to_contain_text("at least 4 cpu, at most 4 cpu")
    expect(page.locator("#detail-why")).to_be_hidden()


def test_drain_and_reopen(look: Looker, client: Client) -> None:
    page = look.sign_in()
    state = page.locator('[data-cluster="right"] .state')
    expect(state).to_have_text("● joined")
    page.get_by_role("button", name="Drain right").click()
    expect(state).to_have_text("❚❚ drained")
    assert [c["drained"] for c in client.clusters()] == [False, True]
    page.get_by_role("button", name="Reopen right").click()
    expect(state).to_have_text("● joined")
    expect(page.locator("#said")).to_have_text("right takes tasks again")
    assert [c["drained"] for c in client.clusters()] == [False, False]


def test_everyone_gets_only_the_buttons_they_may_press(look: Looker, site: RealSite, client: Client) -> None:
    (others,) = client.submit(python(SLEEPS))
    token = client.new_token("ann", "submitter")
    with Client(look.url, token) as ann:
        (hers,) = ann.submit(python(SLEEPS))
    page = look.sign_in(token)
    expect(page.get_by_role("button", name=f"Cancel task {hers}")).to_be_visible()
    expect(page.get_by_role("button", name=f"Cancel task {others}")).to_have_count(0)
    expect(page.get_by_role("button", name="Submit a task")).to_be_visible()
    expect(page.locator(".drain")).to_have_count(0)

    page = look.sign_in(client.new_token("bob", "viewer"))
    expect(page.locator("#tasks .task")).to_have_count(2)
    expect(page.locator(".drain")).to_have_count(0)
    expect(page.get_by_role("button", name="Submit a task")).to_be_hidden()
    page.locator(f'#tasks [data-task="{hers}"] button').first.click()
    expect(page.locator("#detail-words li").last).to_have_text("the rest is for ann and operators")
    expect(page.locator("#detail-output .note")).to_have_text("It is for ann, who owns the task, and for operators.")
    expect(page.locator("#detail-output pre")).to_be_hidden()
    expect(page.locator("#detail-fault")).to_have_text("")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_long_lines_are_made_readable_in_time_that_grows_with_them_alone(look: Looker) -> None:
    page = look.sign_in()
    cases = {
        "50 %\r60 %\r\nbye": "60 %\nbye",
        "\x1b[31mred\x1b[0m\r": "red",
        "a\rb\r\r\n\r\n\rc": "b\n\nc",
        "": "",
    }
    read = "async (texts) => { const { readable } = await import('/dashboard/output.js'); return texts.map(readable); }"
    assert page.evaluate(read, list(cases)) == list(cases.values())
    lasting = """async (signs) => {
      const { readable } = await import('/dashboard/output.js');
      const begun = performance.now();
      for (const sign of signs) readable(sign.repeat(200_000 / sign.length));
      return performance.now() - begun;
    }"""
    # With a pattern for all of it, one such line took half a minute.
    assert page.evaluate(lasting, ["x", "\r", "\n", "x\r", "\x1b[", "\x1b[1;", "\x1b[1"]) < 5_000


def test_a_phone_shows_everything_without_sideways_scrolling(look: Looker, client: Client) -> None:
    long = "a-very-long-name-without-any-place-to-break-it-" * 3
    (task,) = client.submit(python(SLEEPS, name=long))
    page = look.sign_in(width=360)
    row = page.locator(f'#tasks [data-task="{task}"]')
    expect(row).to_be_visible()
    assert overflow(page) <= 0
    row.get_by_role("button").first.click()
    expect(page.locator("#detail-output pre")).to_have_text("awake\n")
    assert overflow(page) <= 0
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Submit a task").click()
    page.get_by_label("Program and arguments").fill(long)
    assert overflow(page) <= 0


def test_light_and_dark(look: Looker) -> None:
    def background(page: Page) -> tuple[int, ...]:
        text = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return tuple(map(int, re.findall(r"\d+", text)))

    assert min(background(look.sign_in(color_scheme="light"))) > 200
    page = look.sign_in(color_scheme="dark")
    assert max(background(page)) < 60
    switch = page.get_by_role("button", name="Colours:")
    switch.click()
    assert min(background(page)) > 200, "light was chosen, whatever the system is"
    page.reload()
    assert min(background(page)) > 200
    switch.click()
    assert max(background(page)) < 60


def test_what_looks_like_html_is_text(look: Looker, client: Client) -> None:
    # Without quotation marks: the output is of a program that must not be confused by them either.
    (task,) = client.submit(python(f"print({NASTY!r})\nimport time; time.sleep(60)", name=NASTY, env={"X": NASTY}))
    page = look.sign_in()
    expect(page.locator(f'#tasks [data-task="{task}"] .title')).to_have_text(f"{task} {NASTY}")
    page.locator("#filter").fill(NASTY)
    expect(page.locator("#events li")).to_have_count(0)
    page.locator(f'#tasks [data-task="{task}"] .open').click()
    expect(page.locator("#detail-output pre")).to_have_text(f"{NASTY}\n")
    expect(page.locator("#detail-label")).to_have_text(NASTY)
    expect(page.locator("#detail-facts")).to_contain_text(f"X={NASTY}")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Submit a task").click()
    page.get_by_label("Program and arguments").fill(f"'{NASTY}' '''")
    assert page.locator("main img, dialog img, b").count() == 0
    assert page.title() == "TapFinger"


def test_placements_by_keyboard_and_pointer(look: Looker, client: Client) -> None:
    (task,) = client.submit(python(SLEEPS, name="seen", clusters=["left"]))
    page = look.sign_in()
    page.get_by_role("button", name="5 min", exact=True).click()
    chart = page.locator("#gantt")
    expect(chart).to_have_attribute("aria-label", re.compile(r"in the last 5 minutes, 1 of them running"))
    box = chart.bounding_box()
    assert box is not None
    page.wait_for_timeout(1100)  # so that the bar has a width
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 10)
    expect(page.locator("#tip")).to_contain_text(f"Task {task}: seen")
    expect(page.locator("#tip")).to_contain_text("demo on left, 1 cpu")
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 1)
    expect(page.locator("#tip")).to_be_hidden()
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#gantt-said")).to_contain_text("Task ")
    told = page.locator("#gantt-said").text_content() or ""
    page.keyboard.press("Enter")
    expect(page.locator("#detail-head")).to_have_text(told.split(":")[0])


def test_events_can_be_filtered_and_open_their_task(look: Looker, client: Client) -> None:
    (task,) = client.submit(python("import sys; sys.exit(3)", name="fails"))
    client.wait(task, PATIENCE)
    page = look.sign_in()
    page.get_by_label("Filter").fill(f"#{task}")
    expect(page.locator("#events .kind").first).to_have_text("failed")
    page.get_by_label("Filter").fill("code 3")
    expect(page.locator("#events li").first).to_contain_text("on ")
    page.locator("#events .open").first.click()
    expect(page.locator("#detail-facts")).to_contain_text("Exit code3")
    page.get_by_role("button", name="Close").click()
    page.get_by_label("Number of a task").fill("99999")
    page.keyboard.press("Enter")
    expect(page.locator("#detail-fault")).to_have_text("there is no task 99999")


def test_the_page_outlives_the_coordinator(look: Looker, site: RealSite, client: Client) -> None:
    (task,) = client.submit(python(SLEEPS, name="goes on", on_disconnect="keep"))
    page = look.sign_in()
    expect(page.locator(f'#tasks [data-task="{task}"]')).to_be_visible()
    site.kill("coordinator")
    lost = page.get_by_role("alert").filter(has_text="Connection lost, retrying")
    expect(lost).to_be_visible()
    expect(page.locator(f'#tasks [data-task="{task}"]')).to_be_visible()
    again = site.serve()
    expect(lost).to_be_hidden()
    expect(page.locator("#link")).to_have_text("● live")
    expect(page.locator('[data-cluster="left"] .state')).to_have_text("● joined")
    (more,) = again.submit(python(SLEEPS, name="after that"))
    expect(page.locator("#tasks .title")).to_have_text([f"{task} goes on", f"{more} after that"])


def test_hundreds_of_tasks_are_shown_in_pieces(look: Looker) -> None:
    page = look.page()
    page.route("**/api/v1/overview?*", lambda route: route.fulfill(json=crowded()))
    page.goto(f"{look.url}/#token={look.token}")
    page.wait_for_selector("#board.ready")
    expect(page.locator("#tasks .task")).to_have_count(100)
    page.get_by_role("button", name="Show 400 more").click()
    expect(page.locator("#tasks .task")).to_have_count(500)
    page.get_by_role("button", name="60 min").click()
    label = re.compile("2,000 placements .* 500 of them running")
    expect(page.locator("#gantt")).to_have_attribute("aria-label", label)
    expect(page.locator('[data-tile="finished"] dd')).to_have_text("10,000")


def crowded() -> dict[str, object]:
    """An overview as full as it gets."""
    import time

    now = time.time()

    def run(n: int) -> dict[str, object]:
        granted = now - 1500 + n / 2
        ended = granted + 100 if n <= 1500 else None
        return {
            "task": n, "attempt": 1, "label": f"task {n}", "type": "demo", "owner": "first", "cluster": "left",
            "size": {"cpu": 1}, "submitted": granted - 10, "granted": granted, "started": granted, "ended": ended,
            "result": ended and "finished", "final": ended is not None, "progress": 0.5,
        }  # fmt: skip

    cluster = {
        "name": "left", "capacity": {"cpu": 1000, "gpu": 0}, "free": {"cpu": 500, "gpu": 0}, "connected": True,
        "drained": False, "tasks": list(range(1501, 2001)),
    }  # fmt: skip
    return {
        "now": now, "seq": 9, "whole": True, "clusters": [cluster], "runs": [run(n) for n in range(1, 2001)],
        "counts": {"waiting": 0, "running": 500, "finished": 10_000, "failed": 0, "cancelled": 0, "lost": 0},
        "points": [[now - 3600 + 2 * n, n % 90, 500] for n in range(1800)],
        "events": [{"seq": n, "at": now, "kind": "started", "task": n, "attempt": 1, "cluster": "left", "detail": ""}
                   for n in range(300)],
    }  # fmt: skip


WORDS = [
    ("", []),
    ("  a  b\n c ", ["a", "b", "c"]),
    ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
    ("'' \"\"", ["", ""]),
    (r"a\ b \\ \'", ["a b", "\\", "'"]),
    (r'"a\"b\n"', [r'a"b\n']),
    (r"'a\b'", [r"a\b"]),
    ("x'y'\"z\"", ["xyz"]),
    ("a | b", ["a", "|", "b"]),
]


def test_words_are_split_as_a_shell_splits_them(look: Looker) -> None:
    page = look.page()
    page.goto(look.url)
    for text, words in WORDS:
        split = page.evaluate("async (text) => (await import('/dashboard/words.js')).split(text)", text)
        assert (split["words"], split["fault"]) == (words, "")
        assert shlex.split(text) == words
    for text in ("'", 'a "b', "a\\"):
        assert page.evaluate("async (text) => (await import('/dashboard/words.js')).split(text)", text)["fault"]


def test_progress_is_seen_as_it_comes(look: Looker, client: Client, tmp_path: Path) -> None:
    code = """
import os, time, tapfinger
tapfinger.report(0.25, **{"<b>loss": 2.0})
while not os.path.exists("go"): time.sleep(0.02)
tapfinger.report(-1)
time.sleep(0.3)
tapfinger.report(0.75, **{"<b>loss": 0.5})
time.sleep(60)
"""
    page = look.sign_in()
    (task,) = client.submit(python(code, cwd=str(tmp_path)))
    row = page.locator(f'#tasks .task[data-task="{task}"]')
    expect(row.locator("progress")).to_have_attribute("value", "0.25")
    expect(row.locator(".sub")).to_contain_text("<b>loss 2")
    row.locator("button.open").click()
    expect(page.locator("#detail-facts")).to_contain_text("25 %")
    (tmp_path / "go").touch()
    expect(page.locator("#detail-facts")).to_contain_text("75 %")
    expect(page.locator("#detail-facts")).to_contain_text("<b>loss 0.5")
    expect(page.locator("#detail-facts")).to_contain_text("below 0")


def test_output_that_was_not_kept_is_told(look: Looker, client: Client) -> None:
    (task,) = client.submit(python("pass"))
    client.wait(task, PATIENCE)
    pieces = {"0": (0, "begin"), "5": (1005, "end"), "1008": (1008, "")}

    def answer(route: Route) -> None:
        (offset,) = parse_qs(urlsplit(route.request.url).query)["offset"]
        start, text = pieces[offset]
        over = str(int(not text))
        headers = {"X-Start": str(start), "X-Offset": str(start + len(text)), "X-Complete": over, "X-Over": "1"}
        route.fulfill(body=text, headers=headers)

    page = look.sign_in()
    page.route("**/logs?*", answer)
    page.get_by_label("Number of a task").fill(str(task))
    page.keyboard.press("Enter")
    expect(page.locator("#detail-output pre")).to_have_text("begin\n… 1,000 bytes were not kept …\nend")


def test_output_is_shown_as_a_terminal_would_leave_it(look: Looker) -> None:
    page = look.page()
    page.goto(look.url)
    shown = page.evaluate(
        "async (text) => (await import('/dashboard/output.js')).readable(text)",
        "\x1b[31mred\x1b[0m\r\n10 %\r50 %\r100 %\nend\r",
    )
    assert shown == "red\n100 %\nend"


def test_what_is_believed_of_task_types_is_shown(look: Looker, client: Client) -> None:
    (task,) = client.submit(python("pass"))
    client.wait(task, PATIENCE)
    page = look.sign_in()
    row = page.locator('#profiles [data-type="demo"]')
    expect(row.locator("th")).to_have_text("demo")
    expect(row.locator("td").nth(0)).to_have_text(re.compile(r"^[1-9]"), timeout=15_000)
    expect(row.locator("td").nth(1)).to_have_text("1 cpu")
    expect(row.locator("td").nth(3)).to_have_text("10 s")
    expect(row.locator("td").nth(5)).to_have_text("none")
