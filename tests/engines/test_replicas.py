"""Several coordinators on one store: one leads; when it is killed or stopped another does, and nothing is lost."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines.postgres import PostgresServer, binaries
from engines.replicas import ReplicatedSite
from live.sites import python
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Phase
from tapfinger.live.http import client as client_module
from tapfinger.live.http.client import Client

#: Says who it is, and waits until it is let go.
WAITS = """
import os, time
name = f"pid.{os.environ['TAPFINGER_ATTEMPT']}"
open(name + ".part", "w").write(str(os.getpid()))
os.rename(name + ".part", name)
print("begun", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
print("done")
"""


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer) -> Iterator[ReplicatedSite]:
    made = ReplicatedSite(tmp_path, postgres.database())
    yield made
    made.close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


class Submitter(threading.Thread):
    """Submits one task after the other that nobody can run yet, and remembers what was acknowledged."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._over = threading.Event()
        self.acknowledged: dict[str, int] = {}
        #: Longest time between two answers.
        self.gap = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            key = f"task {len(self.acknowledged)}"
            (self.acknowledged[key],) = self._client.submit(python("pass", clusters=["right"], key=key))
            self.gap = max(self.gap, time.monotonic() - last)
            last = time.monotonic()

    def more(self) -> Callable[[], bool]:
        """Whether something was acknowledged since this was asked for."""
        before = len(self.acknowledged)
        return lambda: len(self.acknowledged) > before + 1

    def end(self) -> dict[str, int]:
        self._over.set()
        self.join()
        return self.acknowledged


def begin(site: ReplicatedSite, work: Path) -> tuple[Client, int, str]:
    """A site with a task that runs, its number and its process."""
    client = site.up()
    (task,) = client.submit(python(WAITS, cwd=str(work), clusters=["left"]))
    pid = wait_for(lambda: (work / "pid.1").exists() and (work / "pid.1").read_text())
    wait_for(lambda: client.show(task).phase is Phase.RUNNING)
    client.drain("right")
    return client, task, pid


def check_untouched(client: Client, task: int, pid: str, work: Path) -> None:
    """The task runs on as the process it was, and comes to its end."""
    assert Path(f"/proc/{pid}").exists()
    (work / "go").touch()
    info = client.wait(task, PATIENCE)
    assert (info.phase, info.attempt, info.losses) == (Phase.FINISHED, 1, 0)
    assert b"".join(client.logs(task, follow=True)) == b"begun\ndone\n"
    assert [path.name for path in work.glob("pid.*")] == ["pid.1"]


def test_who_stands_by_answers_reads_and_names_the_leader(site: ReplicatedSite, work: Path) -> None:
    client, task, _ = begin(site, work)
    wait_for(lambda: b"".join(client.logs(task)) == b"begun\n")
    for path in (f"tasks/{task}", "tasks", "events", f"tasks/{task}/logs"):
        assert site.ask("b", "GET", path).content == site.ask("a", "GET", path).content
    shown = site.ask("a", "GET", "clusters").json()["clusters"]
    assert all(c["lease_ends_in"] > 0 for c in shown)
    seen = site.ask("b", "GET", "clusters").json()["clusters"]
    assert [c | {"lease_ends_in": None, "last_heard": None} for c in shown] == seen
    for path in ("tasks", f"tasks/{task}/cancel", "clusters/left/drain", "tokens"):
        body = {"tasks": [{"argv": ["x"], "type": "demo"}]} if path == "tasks" else {"name": "n", "role": "viewer"}
        answer = site.ask("b", "POST", path, json=body)
        assert (answer.status_code, answer.headers["X-Leader"]) == (503, site.urls["a"])
        assert f"the leader is at {site.urls['a']}" in answer.json()["detail"]
    assert not (site.state("b") / "token").exists(), "only who has made a token knows it"
    follows = site.client("b")
    (other,) = follows.submit(python("pass", clusters=["right"]))
    # A wait at the one that stands by ends when the other has changed something.
    waiting = threading.Timer(0.5, lambda: client.cancel(other))
    waiting.start()
    assert site.ask("b", "GET", f"tasks/{other}?wait=20", timeout=25.0).json()["phase"] == "cancelled"
    waiting.join()


def test_a_killed_leader_loses_nothing_that_was_acknowledged(site: ReplicatedSite, work: Path) -> None:
    client, task, pid = begin(site, work)
    submitter = Submitter(site.client("a", "b"))
    submitter.start()
    wait_for(submitter.more())
    site.kill("a")
    wait_for(submitter.more())
    acknowledged = submitter.end()
    assert submitter.gap < 20.0, "seconds on a machine with other things to do; the benchmark measures it"
    assert site.role("b") == "leader"
    assert len(set(acknowledged.values())) == len(acknowledged)
    found = {info.spec.key: info.id for info in client.list([Phase.QUEUED], limit=10_000)}
    assert acknowledged.items() <= found.items()
    assert len(found) <= len(acknowledged) + 1
    wait_for(lambda: site.connected(client))
    assert client.clusters()[1]["drained"], "what an operator has said holds for every leader"
    check_untouched(client, task, pid, work)
    client.drain("right", undo=True)
    assert client.wait(max(acknowledged.values()), PATIENCE).phase is Phase.FINISHED


def test_a_leader_that_was_stopped_wakes_up_deposed_and_can_do_no_harm(
    site: ReplicatedSite, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER", 2.0)
    client, task, pid = begin(site, work)
    site.kill("a", signal.SIGSTOP)
    late: list[int] = []
    body = {"tasks": [{"argv": ["late"], "type": "demo"}]}
    asking = threading.Thread(
        target=lambda: late.append(site.ask("a", "POST", "tasks", json=body, timeout=60.0).status_code)
    )
    asking.start()  # lies in the stopped one's socket until it wakes
    wait_for(lambda: site.role("b") == "leader")
    (other,) = client.submit(python("pass", clusters=["right"], key="meanwhile"))
    wait_for(lambda: site.connected(client))
    site.kill("a", signal.SIGCONT)
    asking.join()
    assert late == [503]
    wait_for(lambda: site.role("a") == "standby")
    answer = site.ask("a", "POST", "tasks", json=body)
    assert (answer.status_code, answer.headers["X-Leader"]) == (503, site.urls["b"])
    assert site.role("b") == "leader"
    assert "late" not in {info.spec.argv[0] for info in client.list()}
    assert site.ask("a", "GET", f"tasks/{other}").json()["phase"] == "queued"
    check_untouched(client, task, pid, work)
    # And it is as good a successor as any.
    site.kill("b")
    wait_for(lambda: site.role("a") == "leader")
    assert client.submit(python("pass", clusters=["right"], key="meanwhile")) == [other]


def test_a_database_that_goes_away_and_returns(tmp_path: Path) -> None:
    """Nobody dies of it, nothing that was acknowledged is lost, and what was refused can be repeated."""
    if binaries() is None:
        pytest.skip("there is no PostgreSQL on this machine")
    with tempfile.TemporaryDirectory(prefix="tapfinger-pg-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server")
        site = ReplicatedSite(tmp_path, server.database())
        try:
            client = site.up()
            kept = [client.submit(python("pass", key=f"k{n}"))[0] for n in range(5)]
            for _ in range(2):
                server.close()
                wait_for(lambda: site.role("a") == site.role("b") == "standby")
                for name in ("a", "b"):
                    assert site.ask(name, "GET", "tasks", timeout=30.0).status_code == 503
                    body = {"tasks": [{"argv": ["x"], "type": "demo"}]}
                    assert site.ask(name, "POST", "tasks", json=body, timeout=30.0).status_code == 503
                server.start()
                wait_for(lambda: "leader" in (site.role("a"), site.role("b")))
                kept += client.submit(python("pass", key=f"k{len(kept)}"))
            assert [client.submit(python("pass", key=f"k{n}"))[0] for n in range(len(kept))] == kept
            wait_for(lambda: site.connected(client))
            for name in ("a", "b"):
                assert site.processes[name].poll() is None
                assert "Traceback" not in (site.state(name) / "log").read_text()
        finally:
            site.close()
            server.close()
