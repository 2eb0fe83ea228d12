"""``tapfinger up`` with real processes: what it watches over, takes over, starts again, ends, and leaves alone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from live.sites import CONFIG, python
from live.test_disk import Room
from live.up_sites import WAITS, UpSite
from waiting import PATIENCE, wait_for

from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live.agent.disk import DiskWatch
from tapfinger.live.agent.leases import replace_file
from tapfinger.live.agent.runtime import Host
from tapfinger.live.local_site import LocalSite, clear
from tapfinger.live.site_parts import MAX_LOG, Part, put_aside
from tapfinger.live.state_dir import noted
from tapfinger.live.supervisor import FIRST_PAUSE, LAST_PAUSE, STEADY, Supervisor


@pytest.fixture
def site(tmp_path: Path) -> Iterator[UpSite]:
    made = UpSite(tmp_path)
    yield made
    made.close()


# -------------------------------------------------------------------------- watching


@pytest.mark.slow
def test_what_dies_is_started_again_and_tasks_do_not_notice(site: UpSite) -> None:
    up, before = site.up(), site.note("coordinator")
    task = site.task()
    (site.state / "coordinator.json").write_text("scribbled")
    wait_for(lambda: f"{site.state / 'coordinator.json'} cannot be read" in site.said())
    replace_file(site.state / "coordinator.json", before)
    killed = {part: site.kill(part) for part in ("coordinator", "left", "right")}
    wait_for(lambda: all(site.note(part) for part in killed))
    again = site.note("coordinator")
    assert before is not None
    assert again is not None
    assert (again["url"], again["pid"] == before["pid"]) == (before["url"], False)
    wait_for(lambda: all(c["connected"] for c in site.client().clusters()))
    site.let_go(task)
    for part, pid in killed.items():
        name = part if part == "coordinator" else f"agent {part}"
        line = f"{name} (pid {pid}) was ended by signal 9; it is started again in 0.5 s\n"
        assert site.said().count(line) == (site.state / "up.log").read_text().count(line) == 1
    up.send_signal(signal.SIGTERM)
    assert up.wait(PATIENCE) == 0
    assert site.left() == []
    assert "Left running" not in site.said()


def watched(tmp_path: Path, lines: list[str]) -> Supervisor:
    (tmp_path / "site.toml").write_text(CONFIG)
    (tmp_path / "state").mkdir()
    return Supervisor(tmp_path / "state", tmp_path / "site.toml", tell=lines.append)


def test_pauses_grow_and_begin_anew_after_a_minute_of_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    site = watched(tmp_path, lines)
    tries: list[float] = []
    one, now = site._coordinator, 0.0
    monkeypatch.setattr(site, "_start_again", lambda *_: tries.append(now))
    for _ in range(20 * 200):
        site._look(one, None, now)
        now += 0.05
    pauses = [float(line.rpartition("again in ")[2].removesuffix(" s")) for line in lines]
    assert pauses[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert set(pauses[7:]) == {LAST_PAUSE}
    assert [round(b - a) for a, b in pairwise(tries)] == [round(pause) for pause in pauses[1 : len(tries)]]
    monkeypatch.setattr(one.part, "running", lambda: True)
    one.since = now
    site._look(one, None, now + STEADY - 1)
    assert one.pause == LAST_PAUSE
    site._look(one, None, now + STEADY + 1)
    assert one.pause == FIRST_PAUSE


def test_what_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    site = watched(tmp_path, lines)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site, "_start_again", no_room)
    for now in (0.0, 1.0, 2.5):
        site._look(site._coordinator, None, now)
    assert [line.partition(";")[0] for line in lines[1:]] == [
        "coordinator could not be started: [Errno 28] No space left on device"
    ] * 2


def test_a_missing_directory_is_named_where_nothing_can_be_started(tmp_path: Path) -> None:
    part = Part("coordinator", tmp_path / "gone" / "coordinator.json", tmp_path / "gone" / "serve.log")
    with pytest.raises(CoordinatorError, match=f"directory of its log, {tmp_path / 'gone'}, is not there"):
        part.start(["serve"])


def test_tasks_that_do_not_end_do_not_hold_up_the_end_of_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    site = watched(tmp_path, lines)
    agent = site._agents[0].part
    agent.folder.mkdir(parents=True)
    (agent.folder / "agent.json").write_text('{"name": "a", "cluster": "left", "incarnation": 1}')
    monkeypatch.setattr(Host, "stop_all", lambda _: True)
    assert not clear(agent.folder, patience=0.0)
    monkeypatch.setattr("tapfinger.live.local_site.clear", lambda folder: clear(folder, 0.0))
    whole = LocalSite(site.state)
    whole.down()
    assert whole.doubts[0].startswith("tasks of agent left could not be ended within 60 s")
    monkeypatch.setattr("tapfinger.live.supervisor.clear", lambda folder: clear(folder, 0.0))
    agent.started = True
    site.end()
    assert lines == ["tasks of agent left could not be ended within 60 s, and are left behind"]
    monkeypatch.setattr(Host, "stop_all", lambda _: False)
    assert clear(agent.folder, patience=0.0)


def test_who_ends_what_an_agent_has_left_says_nothing_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "agent.json").write_text('{"name": "a", "cluster": "left", "incarnation": 1}')
    monkeypatch.setattr(os, "statvfs", lambda _: Room(f_bavail=10))
    looked: list[str] = []
    look = DiskWatch.look

    def keep(watch: DiskWatch) -> str:
        looked.append(look(watch))
        return looked[-1]

    monkeypatch.setattr(DiskWatch, "look", keep)
    monkeypatch.setattr(Host, "stop_all", lambda host: bool(host.step() or not looked))
    assert clear(tmp_path)
    assert set(looked) == {""}
    assert "nearly full" not in caplog.text


def test_logs_are_kept_short(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    part = Part("coordinator", tmp_path / "coordinator.json", log)
    log.touch(mode=0o600)
    with log.open("a") as held_open:
        held_open.write("x" * 1000)
        held_open.flush()
        part.put_log_aside()
        assert log.stat().st_size == 1000, "nothing to do yet"
        os.truncate(log, MAX_LOG + 1)
        part.put_log_aside()
        held_open.write("after")
        held_open.flush()
    assert log.read_text() == "after"
    aside = (tmp_path / "serve.log.1").stat()
    assert (aside.st_size, aside.st_mode & 0o077) == (MAX_LOG + 1, 0)


def test_a_log_is_kept_short_where_there_is_no_room_for_its_older_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", no_room)
    log = tmp_path / "serve.log"
    log.touch()
    os.truncate(log, MAX_LOG + 1)
    assert put_aside(log)
    assert (log.stat().st_size, [path.name for path in tmp_path.iterdir()]) == (0, ["serve.log"])


def test_the_log_of_up_is_kept_short_and_that_of_what_cannot_stay_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = watched(tmp_path, [])
    logs = [site.state / "up.log", *(one.part.log for one in (site._coordinator, *site._agents))]
    for log in logs:
        log.touch()
        os.truncate(log, MAX_LOG + 1)
    looks = iter(range(2))
    around = site._look_around

    def look(now: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt
        around(now)

    monkeypatch.setattr(site, "_look_around", look)
    monkeypatch.setattr(site, "_start_again", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        site.watch()
    assert {path.name for path in site.state.glob("*.log.1")} == {f"{log.name}.1" for log in logs}
    assert max(log.stat().st_size for log in logs) < 10_000


# ----------------------------------------------------------------------- taking over


@pytest.mark.slow
def test_the_next_up_takes_over_what_a_killed_one_left(site: UpSite) -> None:
    told = site.call("up", "--detach")
    assert told.returncode == 0, told.stderr
    task, first = site.task(), site.kill("up")
    cluster = site.client().show(task).cluster
    assert site.left() != []
    kept = {part: site.pid(part) for part in ("left", "right")}
    url = (site.note("coordinator") or {})["url"]
    site.kill("coordinator")
    site.kill("left")
    up = site.up()
    assert "taken over: agent right" in site.said()
    assert (site.note("coordinator") or {})["url"] == url, "agents know this port"
    assert site.pid("right") == kept["right"]
    assert site.pid("left") != kept["left"]
    beside = site.call("up", "--detach")
    assert beside.returncode == 2
    assert f"tapfinger up (pid {up.pid}) watches over {site.state} already" in beside.stderr
    assert first != up.pid
    up.send_signal(signal.SIGINT)
    assert up.wait(PATIENCE) == 0
    assert site.pid("right") == kept["right"], "it was started by another"
    assert site.note("coordinator") is None
    assert (
        f"not started by this command: agent right. End them with: tapfinger down --state {site.state}" in site.said()
    )
    site.up()
    if cluster == "right":  # the agent that was not ended
        site.let_go(task)
    down = site.call("down")
    assert down.stdout == "Stopped agent left, agent right, coordinator.\n"
    assert site.left() == []


@pytest.mark.slow
def test_agents_that_know_another_address_are_started_again_without_harm_to_their_tasks(site: UpSite) -> None:
    assert site.call("up", "--detach").returncode == 0
    task = site.task()
    site.kill("up")
    before = {part: site.pid(part) for part in ("left", "right")}
    url = (site.note("coordinator") or {})["url"]
    site.kill("coordinator")
    with taken(url):
        # Whoever insists on that port is told so, and nothing that runs is harmed.
        for how in ((), ("--detach",)):
            failed = site.call("up", *how, "--port", url.rpartition(":")[2])
            assert failed.returncode == 2
            assert "the coordinator did not start: it ended with exit code 2: cannot listen on" in failed.stderr
            assert "not started by this command: agent left, agent right." in failed.stderr
            assert {part: site.pid(part) for part in before} == before
        site.up()
        assert "agent left knows another address of the coordinator; it is started again" in site.said()
    moved = (site.note("coordinator") or {})["url"]
    assert moved != url
    # The same while it is watched over.
    agents = {part: site.pid(part) for part in before}
    os.kill(site.pid("up"), signal.SIGSTOP)
    site.kill("coordinator")
    with taken(moved):
        os.kill(site.pid("up"), signal.SIGCONT)
        wait_for(lambda: site.note("coordinator"))
        wait_for(lambda: all(site.note(part) and site.pid(part) != agents[part] for part in agents))
        wait_for(lambda: all(c["connected"] for c in site.client().clusters()))
        assert (site.note("coordinator") or {})["url"] != moved
        assert (site.note("up") or {})["url"] == (site.note("coordinator") or {})["url"]
    site.let_go(task)


@contextmanager
def taken(url: str) -> Iterator[None]:
    """Somebody else listens at this address."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The threads of a killed process may hold its port a little longer than it lives.
        wait_for(lambda: _binds(other, int(url.rpartition(":")[2])))
        other.listen()
        yield


def _binds(other: socket.socket, port: int) -> bool:
    try:
        other.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_agents_whose_token_is_void_get_a_new_one(site: UpSite) -> None:
    assert site.call("up", "--detach").returncode == 0
    site.kill("up")
    site.kill("coordinator")
    for path in site.state.glob("store.db*"):
        path.unlink()
    (site.state / "token").unlink()
    site.up()
    assert "does not reach the coordinator; it is started again" in site.said()


@pytest.mark.slow
def test_another_configuration_than_that_of_what_runs_is_refused(site: UpSite, tmp_path: Path) -> None:
    assert site.call("up", "--detach").returncode == 0
    site.kill("up")
    other = tmp_path / "other.toml"
    other.write_text(CONFIG.replace("cpu = 4, gpu = 0}\n[[clusters]]", "cpu = 3, gpu = 0}\n[[clusters]]"))
    said = site.call("up", "--config", str(other)).stderr
    assert "has other clusters (left, right) than the configuration (left, right), or other capacities" in said
    site.kill("coordinator")
    other.write_text(CONFIG.replace('"left"', '"middle"'))
    said = site.call("up", "--config", str(other)).stderr
    assert "agent left runs in" in said
    assert "the configuration has only middle, right" in said
    assert [site.note(part) is None for part in ("coordinator", "left", "right")] == [True, False, False]


# ---------------------------------------------------------------------------- ending


@pytest.mark.slow
def test_a_closed_terminal_ends_the_site(site: UpSite) -> None:
    mine, theirs = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(site.words("up"), stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal) as up:
        os.close(theirs)
        seen = b""
        while b"End it with" not in seen:
            seen += os.read(mine, 1000)
        os.close(mine)  # the kernel sends SIGHUP
        up.wait(PATIENCE)
    assert site.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("detach", [True, False])
def test_an_interrupt_while_it_starts_ends_what_it_started_and_no_more(site: UpSite, detach: bool) -> None:
    assert site.call("up", "--detach").returncode == 0
    task = site.task()
    (busy,) = [part for part in ("left", "right") if list((site.state / "agents" / part / "runs").iterdir())]
    for part in ("up", "coordinator"):
        site.kill(part)
    (site.state / "serve.log").unlink()
    up = site.start(*(["--detach"] if detach else []))
    wait_for((site.state / "serve.log").exists)
    up.send_signal(signal.SIGHUP)
    assert up.wait(PATIENCE) != 0
    assert "not started by this command: agent left, agent right." in site.said()
    assert (site.note("coordinator"), site.note("up")) == (None, None)
    assert site.note(busy) is not None
    site.up()
    site.let_go(task)


@pytest.mark.slow
def test_an_up_that_fails_leaves_alone_the_tasks_of_an_agent_that_it_has_started_again(site: UpSite) -> None:
    assert site.call("up", "--detach").returncode == 0
    task = site.task()
    (busy,) = [part for part in ("left", "right") if list((site.state / "agents" / part / "runs").iterdir())]
    other = {"left": "right", "right": "left"}[busy]
    for part in ("up", busy, other):
        site.kill(part)
    name = site.state / "agents" / other / "agent.json"
    whole = name.read_text()
    name.write_text('{"cluster": "elsewhere", "incarnation": 1, "name": "x"}')
    failed = site.call("up")
    assert failed.returncode == 2
    assert f"the agent {other} did not start" in failed.stderr
    assert f"tasks of agent {busy} run on" in failed.stderr
    assert (site.note(busy), site.note("coordinator") is None) == (None, False)
    name.write_text(whole)
    site.up()
    site.let_go(task)


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_an_agent_that_dies_at_the_first_start_is_an_error_with_its_reason(site: UpSite, how: Sequence[str]) -> None:
    failed = site.call("up", *how, "--backend-option", "cgroup=/nowhere")
    assert failed.returncode == 2
    assert re.match(
        r"error: the agent (left|right) did not start: it ended with exit code 2: .*/nowhere", failed.stderr
    )
    assert failed.stderr.count("\n") == 1
    assert site.left() == []


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"pid": "x", "start": "1", "boot": "2", "url": "y"}', "\xff"])
def test_a_file_that_is_no_note_is_named(tmp_path: Path, text: str) -> None:
    note = tmp_path / "coordinator.json"
    note.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=f"^{note} .*; choose another --state, or remove the file"):
        noted(note)


def test_a_pipe_in_place_of_a_note_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "coordinator.json")
    with pytest.raises(ConfigError, match="no regular file"):
        noted(tmp_path / "coordinator.json")


def test_commands_refuse_a_directory_with_such_a_file_and_do_nothing(site: UpSite) -> None:
    site.state.mkdir()
    for name, commands in (("coordinator", ("up", "down", "list")), ("up", ("up", "down"))):
        note = site.state / f"{name}.json"
        note.write_text("[1]")
        for command in commands:
            refused = site.call(command)
            assert refused.returncode == 2, refused.stderr
            assert refused.stderr.startswith(f"error: {note} is no note of a process"), refused.stderr
            assert refused.stderr.count("\n") == 1
        note.unlink()


# ------------------------------------------------------------------ tokens and devices


@pytest.mark.slow
def test_tokens_of_agents_are_neither_in_environments_nor_on_command_lines(site: UpSite) -> None:
    assert site.call("up", "--detach", TAPFINGER_TOKEN="tf_of_the_caller").returncode == 0
    for part in ("up", "coordinator", "left", "right"):
        for file in ("environ", "cmdline"):
            with suppress(PermissionError):  # better still
                assert b"tf_" not in Path(f"/proc/{site.pid(part)}/{file}").read_bytes(), (part, file)
    assert os.readlink(f"/proc/{site.pid('left')}/fd/0") == os.devnull, "tasks inherit it"


GPUS = CONFIG.replace("gpu = 0}\n[[", "gpu = 1}\n[[").replace("maximum = {cpu = 4}", "maximum = {cpu = 4, gpu = 1}")


@pytest.mark.slow
def test_clusters_of_one_machine_share_no_device(site: UpSite) -> None:
    site.config.write_text(GPUS)
    assert site.call("up", "--detach").returncode == 0
    client = site.client()
    code = WAITS + "print(os.environ['CUDA_VISIBLE_DEVICES'])"
    one = {"minimum": {"cpu": 1, "gpu": 1}, "maximum": {"cpu": 1, "gpu": 1}, "cwd": str(site.directory)}
    tasks = client.submit(python(code, **one), python(code, **one))
    wait_for(lambda: all(client.show(task).phase.value == "running" for task in tasks))
    (site.directory / "go").touch()
    assert all(client.wait(task, PATIENCE).code == 0 for task in tasks)
    assert sorted(b"".join(client.logs(task, follow=True)) for task in tasks) == [b"0\n", b"1\n"]


# ---------------------------------------------------------------------------- to try


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multi-3", "docs"])  # all shipped scenarios: tests/soak
def test_the_line_to_try_works(site: UpSite, name: str) -> None:
    if name == "docs":
        page = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
        site.config.write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    site.try_line("--config", str(site.config) if name == "docs" else name)
