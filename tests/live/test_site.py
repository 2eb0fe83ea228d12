"""Whole sites of real processes, with parts of them killed in the middle of things."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live.sites import RealSite, python
from waiting import PATIENCE, wait_for

from tapfinger.cli import main
from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, NotFound
from tapfinger.live.http.client import Client

#: Says when it begins, waits until it is let go, and says which attempt it was.
WAITS = """
import os, time
attempt = os.environ["TAPFINGER_ATTEMPT"]
open(f"begun.{attempt}", "w").close()
print("begun", attempt, flush=True)
while not os.path.exists("go"): time.sleep(0.02)
print("done", attempt)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    made = RealSite(tmp_path)
    yield made
    made.close()


@pytest.fixture
def away(tmp_path: Path) -> Iterator[RealSite]:
    """A site that gives up agents after seconds; still long enough for one that has to wait for a core."""
    made = RealSite(tmp_path, lease=5.0)
    yield made
    made.close()


#: For tests of one site, which is started once.
ONE_WORKER = pytest.mark.xdist_group("calm site")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A site that all tests share which do no harm to it."""
    made = RealSite(tmp_path_factory.mktemp("calm"))
    yield made.up()
    made.close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Where tasks run."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@ONE_WORKER
def test_tasks_run_and_everything_can_be_asked(calm: Client, work: Path) -> None:
    client, before = calm, calm.counts()
    spec = python("import os; print(os.environ['TAPFINGER_CPUS'], os.getcwd())", cwd=str(work), key="once")
    (task,) = client.submit(spec)
    assert client.submit(spec) == [task], "the same key gives the same task"
    info = client.wait(task, PATIENCE)
    assert (info.phase, info.code, info.allocation) == (Phase.FINISHED, 0, {"cpu": 1.0, "gpu": 0.0})
    assert b"".join(client.logs(task, follow=True)) == f"1 {work}\n".encode()
    told = [line["kind"] for line in client.show(task).history]
    assert told == ["submitted", "granted", "started", "ended", "finished"]
    failing = client.submit(python("import sys; sys.exit(7)", retries=1), python("import os; os.kill(os.getpid(), 11)"))
    ends = [client.wait(t, PATIENCE) for t in failing]
    assert [(e.phase, e.code, e.attempt) for e in ends] == [(Phase.FAILED, 7, 2), (Phase.FAILED, -11, 1)]
    missing = client.submit(python("pass", cwd="/no/such/place"), python("pass"))
    assert "/no/such/place does not exist" in client.wait(missing[0], PATIENCE).reason
    assert client.wait(missing[1], PATIENCE).phase is Phase.FINISHED
    assert client.counts() == before | {k: before.get(k, 0) + n for k, n in (("finished", 2), ("failed", 3))}
    assert all(c["free"] == c["capacity"] for c in client.clusters())
    with pytest.raises(ConfigError, match="no task type 'dmo'"):
        client.submit(python("pass"), python("pass", type="dmo"))
    with pytest.raises(NotFound, match="there is no task 999"):
        client.cancel(999)
    assert client.list()[0].id == missing[1], "of a batch with a fault nothing was taken"


@ONE_WORKER
def test_cancel_ends_a_task_wherever_it_is(calm: Client, work: Path) -> None:
    client = calm
    big = {"minimum": {"cpu": 4}, "maximum": {"cpu": 4}, "clusters": ["left"], "cwd": str(work)}
    running, waiting = client.submit(python(WAITS, **big), python(WAITS, **big))
    wait_for((work / "begun.1").exists)
    assert client.show(waiting).phase is Phase.QUEUED
    assert client.cancel(waiting).phase is Phase.CANCELLED
    client.cancel(running)
    info = client.wait(running, PATIENCE)
    assert info.phase is Phase.CANCELLED
    assert client.clusters()[0]["free"] == {"cpu": 4.0, "gpu": 0.0}
    assert b"begun" in b"".join(client.logs(running))


def test_a_killed_agent_finds_its_tasks_again(site: RealSite, work: Path) -> None:
    client = site.up()
    (task,) = client.submit(python(WAITS, clusters=["left"], cwd=str(work)))
    wait_for((work / "begun.1").exists)
    wait_for(lambda: client.show(task).phase is Phase.RUNNING)
    site.kill("left")
    site.agent("left")
    (work / "go").touch()
    info = client.wait(task, PATIENCE)
    assert (info.phase, info.attempt, info.losses) == (Phase.FINISHED, 1, 0)
    assert b"".join(client.logs(task, follow=True)) == b"begun 1\ndone 1\n"


def test_a_task_whose_agent_stays_away_is_stopped_by_itself_and_runs_elsewhere(away: RealSite, work: Path) -> None:
    site, client = away, away.up()
    client.drain("right")
    stopped, kept = client.submit(
        python(WAITS, cwd=str(work)), python(WAITS.replace("begun.", "kept."), cwd=str(work), on_disconnect="keep")
    )
    wait_for((work / "begun.1").exists)
    wait_for((work / "kept.1").exists)
    wait_for(lambda: client.show(stopped).phase is client.show(kept).phase is Phase.RUNNING)
    site.kill("left")
    client.drain("right", undo=True)
    wait_for((work / "begun.2").exists)
    assert "silent" in [line["kind"] for line in client.events()]
    assert client.show(kept).attempt == 1, "to be kept: nobody else may run it"
    (work / "go").touch()
    info = client.wait(stopped, PATIENCE)
    assert (info.phase, info.attempt, info.cluster, info.losses) == (Phase.FINISHED, 2, "right", 1)
    site.agent("left")
    info = client.wait(kept, PATIENCE)
    assert (info.phase, info.attempt, info.cluster) == (Phase.FINISHED, 1, "left")
    assert not (work / "kept.2").exists()


def test_a_killed_coordinator_comes_back_to_tasks_that_never_noticed(site: RealSite, work: Path) -> None:
    client = site.up()
    big = {"minimum": {"cpu": 4}, "maximum": {"cpu": 4}, "clusters": ["left"], "cwd": str(work)}
    running, waiting = client.submit(python(WAITS, **big), python("print('later')", **big))
    (ends,) = client.submit(python(WAITS.replace("begun.", "brief."), cwd=str(work), clusters=["right"]))
    wait_for((work / "begun.1").exists)
    wait_for((work / "brief.1").exists)
    wait_for(lambda: client.show(running).phase is client.show(ends).phase is Phase.RUNNING)
    site.kill("coordinator")
    (work / "go").touch()  # both end while nobody is there to hear of it
    client = site.serve()
    infos = [client.wait(task, PATIENCE) for task in (running, waiting, ends)]
    assert [(i.phase, i.attempt, i.losses) for i in infos] == [(Phase.FINISHED, 1, 0)] * 3
    assert b"".join(client.logs(running, follow=True)) == b"begun 1\ndone 1\n"


def test_an_agent_that_is_told_to_leave_lets_its_tasks_run_or_stops_them(site: RealSite, work: Path) -> None:
    client = site.up()
    (task,) = client.submit(python(WAITS, clusters=["left"], cwd=str(work)))
    wait_for((work / "begun.1").exists)
    wait_for(lambda: client.show(task).phase is Phase.RUNNING)
    site.kill("left", signal.SIGTERM)
    site.agent("left")
    site.kill("left", signal.SIGINT)
    assert client.show(task).attempt == 1
    site.agent("left")
    wait_for((work / "begun.2").exists)
    (work / "go").touch()
    assert client.wait(task, PATIENCE).attempt == 2


@pytest.fixture
def tapfinger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, str, str]]:
    """The command line; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tapfinger", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capfdbinary.readouterr()
        return code, said.out.decode(), said.err.decode()

    return call


WRONG = [
    (("run", "--type", "nothing", "--", "x"), "there is no task type 'nothing'"),
    (("run", "--min", "cpu", "--", "x"), "--minimum 'cpu' must look like NAME=VALUE"),
    (("submit", "--max", "cpu=many", "--", "x"), "an amount is a number"),
    (("submit", "--env", "A-B=c", "--", "x"), "env.A-B"),
    (("submit",), "give a program after --, or a file of tasks with --file"),
    (("submit", "--file", "no-such-file"), "--file no-such-file cannot be read"),
    (("submit", "--file", "x", "--time-limit", "3"), "leave out --time-limit"),
    (("show", "77"), "there is no task 77"),
    (("list", "--phase", "dead"), "there is no phase 'dead'"),
    (("token", "me", "--role", "king"), "there is no role 'king'"),
    (("drain", "nowhere"), "there is no cluster 'nowhere'"),
    (("serve", "--host", "0.0.0.0"), "say --allow-remote"),
    (("up", "--state", "/dev/null/x"), "--state /dev/null/x cannot be used: Not a directory"),
    (("serve", "--state", "/dev/null", "--port", "0"), "--state /dev/null cannot be used: File exists"),
    (("list", "--url", "http://127.0.0.1:1"), "no answer from the coordinator"),
    (("agent", "--cluster", "x", "--coordinator", "http://x", "--state", "s"), "an agent needs a token"),
]


def test_the_minute_a_newcomer_has(
    tmp_path: Path, tapfinger: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPFINGER_STATE", str(tmp_path / "state"))
    assert "no coordinator runs in" in tapfinger("list")[2]
    (tmp_path / "bad.toml").write_text('[[clusters]]\nname = "lab"\ncapacity = {cpu = 2}\n')
    code, _, err = tapfinger("up", "--config", str(tmp_path / "bad.toml"))
    assert (code, err.startswith(f"error: {tmp_path / 'bad.toml'}: ")) == (2, True), err
    assert not (tmp_path / "state").exists(), "nothing was started"
    code, out, err = tapfinger("up", "--detach")
    try:
        assert code == 0, err
        (link,) = [word for word in out.split() if "/#token=tf_" in word]
        assert tapfinger("dashboard") == (0, f"{link}\n", "")
        code, _, err = tapfinger("up", "--detach")
        assert (code, err.count("\n")) == (2, 1)
        assert "already" in err
        (tmp_path / "train.py").write_text("import sys; print('trained', sys.argv[1]); sys.exit(5)")
        assert tapfinger("run", "--", sys.executable, "train.py", "--fast") == (
            5,
            "trained --fast\n",
            "task 1 failed\n",
        )
        assert tapfinger("submit", "--", "sleep", "600") == (0, "2\n", "")
        assert "edge-1" in tapfinger("clusters")[1]
        assert "sleep 600" in tapfinger("list")[1]
        assert tapfinger("cancel", "2") == (0, "task 2: cancelled\n", "")
        assert "cancelling" in tapfinger("show", "2")[1]
        assert "task 2 cancelled" in tapfinger("events", "--last", "1")[1]
        assert tapfinger("logs", "1") == (0, "trained --fast\n", "")
        assert tapfinger("logs", "1", "--offset", "8") == (0, "--fast\n", "")
        for words, message in WRONG:
            code, _, err = tapfinger(*words)
            assert (code, err.count("\n")) == (2, 1), (words, err)
            assert message in err
        assert tapfinger("submit", "--", "sleep", "600") == (0, "3\n", "")
        lines = [json.dumps({"argv": ["sleep", str(n)], "type": "demo", "name": f"nap {n}"}) for n in (600, 601)]
        (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
        assert tapfinger("submit", "--file", str(tmp_path / "tasks.jsonl")) == (0, "4\n5\n", "")
        assert "sleep 601" in tapfinger("show", "5")[1]
    finally:
        code, out, err = tapfinger("down")
    assert out == "Stopped agent edge-1, agent edge-2, coordinator.\n"
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    (tmp_path / "state" / "mine.txt").touch()
    told = f"Nothing was running.\nRemoved what it kept in {tmp_path / 'state'}; left alone: mine.txt.\n"
    assert tapfinger("down", "--forget") == (0, told, "")
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["mine.txt"]
    (tmp_path / "state" / "mine.txt").unlink()
    assert tapfinger("down", "--forget")[0] == 0
    assert list((tmp_path / "state").iterdir()) == []


def test_a_site_that_is_interrupted_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tapfinger", "up", "--state", str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        wait_for((tmp_path / "state" / "serve.log").exists)
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE) != 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_a_site_in_the_foreground_ends_with_its_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tapfinger", "up", "--state", str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert "http://127.0.0.1:" in up.stdout.readline()
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE) == 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
