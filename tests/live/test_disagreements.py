"""Real sites whose parts do not agree: what can never start, agents that have less, are gone, or know more."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from live.sites import RealSite, python
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Phase
from tapfinger.live.http.client import Client, make_spec


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    made = RealSite(tmp_path)
    yield made
    made.close()


def connected(client: Client) -> bool:
    return all(cluster["connected"] for cluster in client.clusters())


def test_a_task_that_is_lost_each_time_rests_and_ends(site: RealSite) -> None:
    # Unisolated: in a sandbox, a task cannot reach its supervisor.
    site.config.write_text(site.config.read_text() + "max_losses = 3\nisolation = 'none'\n")
    client = site.up()
    # It kills its own supervisor, so that nobody can say how it ended.
    suicidal = make_spec(argv=["sh", "-c", "kill -9 $PPID; sleep 5"], type="demo", maximum={"cpu": 1})
    (bad,) = client.submit(suicidal)
    info = wait_for(lambda: (found := client.show(bad)).rests and found)
    assert (info.phase, info.setbacks >= 1) == (Phase.QUEUED, True)
    assert "rests until" in client.explain(bad)["summary"]
    assert bad in [row["task"] for row in client.queue()["tasks"]]
    (good,) = client.submit(python("print('well')"))
    assert client.wait(good).phase is Phase.FINISHED
    ended = client.wait(bad, PATIENCE)
    assert (ended.phase, ended.attempt) == (Phase.LOST, 3)
    assert ended.reason.startswith("it was lost 3 times in a row; the last time: ")
    rests = [line for line in ended.history if line["kind"] == "requeued"]
    granted = [line["at"] for line in ended.history if line["kind"] == "granted"]
    assert [line["data"]["setbacks"] for line in rests] == [1, 2]
    assert all(at >= line["data"]["until"] for at, line in zip(granted[1:], rests, strict=True))


def test_an_agent_that_has_less_than_configured_gets_no_more_than_that(site: RealSite, tmp_path: Path) -> None:
    client = site.serve()
    whole, site.config = site.config, tmp_path / "less.toml"
    site.config.write_text(whole.read_text().replace("cpu = 4, gpu = 0", "cpu = 1, gpu = 0"))
    site.agent("left")
    left = wait_for(lambda: (found := client.clusters()[0])["connected"] and found)
    assert left["disagreement"] == {"configured": {"cpu": 4.0, "gpu": 0.0}, "agent": {"cpu": 1.0, "gpu": 0.0}}
    assert left["capacity"] == {"cpu": 1.0, "gpu": 0.0}
    (big,) = client.submit(python("pass", minimum={"cpu": 2}, maximum={"cpu": 2}))
    small = client.submit(*[python("pass")] * 3)
    for task in small:
        found = client.wait(task, PATIENCE)
        assert (found.phase, found.attempt) == (Phase.FINISHED, 1)
    told = client.explain(big)["clusters"][0]["text"]
    assert told.endswith("4 cpu are configured, but its agent has 1 cpu: correct one of them")
    site.kill("left", signal.SIGTERM)
    site.config = whole
    site.agent("left")
    assert client.wait(big, PATIENCE).phase is Phase.FINISHED
    assert client.clusters()[0]["disagreement"] is None
    assert [line["kind"] for line in client.events() if line["kind"] == "capacity"]


def test_an_agent_that_was_killed_is_not_shown_as_connected(site: RealSite) -> None:
    client = site.up()
    site.kill("left")
    left = wait_for(lambda: not (found := client.clusters()[0])["connected"] and found)
    assert left["last_heard"] < left["lease_ends_in"], "long before its lease ends"
    assert client.clusters()[1]["connected"]
    (task,) = client.submit(python("pass"))
    assert client.wait(task).cluster == "right"


def test_agents_obey_a_coordinator_whose_store_was_put_back(site: RealSite, tmp_path: Path) -> None:
    """The coordinator is started twice more after the copy was made, so that its agents are ahead of it."""
    client = site.up()
    (first,) = client.submit(python("print('first')"))
    assert client.wait(first).phase is Phase.FINISHED
    site.kill("coordinator", signal.SIGTERM)
    copy = tmp_path / "copy.db"
    shutil.copy(site.state / "store.db", copy)
    for _ in range(2):
        client = site.serve()
        wait_for(partial(connected, client))
        (later,) = client.submit(python("print('later')"))
        assert client.wait(later).phase is Phase.FINISHED
        site.kill("coordinator", signal.SIGTERM)
    for leftover in site.state.glob("store.db*"):
        leftover.unlink()
    shutil.copy(copy, site.state / "store.db")
    (site.state / "epoch").unlink()  # as on another machine
    client = site.serve()
    wait_for(partial(connected, client))
    assert "older store" in [line["kind"] for line in client.events()]
    assert b"an older copy of the store" in (site.state / "coordinator.log").read_bytes()
    (task,) = client.submit(python("print('after')"))
    assert task == first + 1, "its number is given out again, since no agent knows it any more"
    assert client.wait(task).phase is Phase.FINISHED
    assert b"".join(client.logs(task)) == b"after\n", "not what lay there"
