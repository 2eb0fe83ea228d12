"""Whose processes ``tapfinger down`` ends: those of the site, whatever somebody has written into its directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tapfinger.cli import app
from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live import local_site, ownership
from tapfinger.live.agent.kept import register
from tapfinger.live.agent.leases import boot_id
from tapfinger.live.backends.supervise import start_time
from tapfinger.live.local_site import LocalSite
from tapfinger.live.state_dir import held, hold

#: A user who is not root; nothing of theirs is needed.
OTHER = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as others")
Start = Callable[[int | None], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that do nothing, as this user or another."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(user: int | None) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(["sleep", "3600"], user=user, cwd="/"))
        return begun[-1]

    yield begin
    for one in begun:
        one.kill()
        one.wait()


def note(path: Path, process: subprocess.Popen[bytes], user: int | None = None) -> None:
    """The note of a process, as if it had announced itself. ``user``: who has written it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"pid": process.pid, "start": start_time(process.pid), "boot": boot_id(), "url": "http://127.0.0.1:1"}
    path.write_text(json.dumps(about))
    (path.parent / "agent.json").write_text("{}")
    if user is not None:
        for one in (path, path.parent):
            os.chown(one, user, user)


def test_a_process_of_another_user_than_the_note_is_left_alone(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(None)
    note(tmp_path / "coordinator.json", process)
    whose = ownership.owners
    monkeypatch.setattr(ownership, "owners", lambda pid: {OTHER} if pid == process.pid else whose(pid))
    site = LocalSite(tmp_path)
    assert site.down() == []
    (why,) = site.doubts
    assert why.startswith(f"coordinator (pid {process.pid}) is left alone: it is a process of user ")
    told = CliRunner().invoke(app, ["down", "--state", str(tmp_path)])
    assert isinstance(told.exception, CoordinatorError)
    assert "Nothing was running" not in told.output
    with pytest.raises(CoordinatorError, match="is left alone"):
        site.coordinator.tell(signal.SIGTERM)
    assert process.poll() is None
    monkeypatch.undo()
    assert site.down() == ["coordinator"]
    assert process.wait() == -signal.SIGTERM


def test_links_in_another_users_directory_lead_to_no_process(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, coordinator, up = start(None), start(None), start(None)
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    (theirs / "agents").mkdir(parents=True)
    note(mine / "agents" / "left" / "process.json", agent)
    (theirs / "agents" / "left").symlink_to(mine / "agents" / "left")
    note(mine / "coordinator.json", coordinator)
    (theirs / "coordinator.json").symlink_to(mine / "coordinator.json")
    note(mine / "up.json", up)
    (theirs / "up.json").hardlink_to(mine / "up.json")
    cleared: list[Path] = []
    monkeypatch.setattr(local_site, "clear", cleared.append)
    monkeypatch.setattr(ownership, "is_trusted", lambda directory: directory != theirs)
    monkeypatch.setattr(local_site, "is_trusted", lambda directory: directory != theirs)
    site = LocalSite(theirs)
    with pytest.raises(ConfigError, match=r"coordinator\.json cannot be read: .* symbolic links"):
        site.down()
    (theirs / "coordinator.json").unlink()
    assert site.down() == []
    assert [why.partition(" (pid")[0] for why in site.doubts] == ["tapfinger up", "agent left"]
    assert cleared == []
    with pytest.raises(ConfigError, match="who must remove what is in it"):
        site.forget()
    assert [one.poll() for one in (agent, coordinator, up)] == [None] * 3
    assert sorted(LocalSite(mine).down()) == ["agent left", "coordinator"], "in one's own, links are one's own affair"
    assert cleared == [mine / "agents" / "left"]


def test_a_pid_that_is_in_use_again_is_not_signalled(tmp_path: Path, start: Start) -> None:
    process = start(None)
    for wrong in ({"start": "1"}, {"boot": "of before"}, {"pid": os.getppid()}):
        about = {"pid": process.pid, "start": start_time(process.pid), "boot": boot_id(), **wrong}
        ownership.send_noted(about, os.geteuid(), signal.SIGKILL, "agent left")
    assert process.poll() is None


@as_root
def test_root_ends_what_is_another_users_and_nothing_that_they_only_name(tmp_path: Path, start: Start) -> None:
    state = tmp_path / "state"
    theirs, mine = start(OTHER), start(None)
    note(state / "coordinator.json", theirs, OTHER)
    note(state / "agents" / "left" / "process.json", mine, OTHER)
    (state / "agents" / "left" / "runs" / "1.1").mkdir(parents=True)
    site = LocalSite(state)
    assert site.down() == ["coordinator"]
    assert theirs.wait() == -signal.SIGTERM
    assert mine.poll() is None
    assert len(site.doubts) == 2
    assert "is left alone: it is a process of user root, and the note about it is of user" in site.doubts[0]
    assert "tasks that agent left may have left were not looked for" in site.doubts[1]
    with pytest.raises(ConfigError, match="who must remove what is in it"):
        site.forget()


# ---------------------------------------------------------- what tasks leave for down


def test_what_a_task_has_made_deep_or_closed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    work = state / "agents" / "left" / "results" / "1.1"
    (work / "closed").mkdir(parents=True)
    (work / "closed" / "file").touch()
    (work / "closed").chmod(0)
    monkeypatch.chdir(work)
    for _ in range(1100):  # more than Python's limit on recursion
        os.mkdir("d")
        os.chdir("d")
    os.chdir(tmp_path)
    (state / "mine").touch()
    assert LocalSite(state).forget() == ["mine"]
    assert os.listdir(state) == ["mine"]


def test_secrets_go_first_and_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "store.db", "up.log"):
        (tmp_path / name).touch()
    (tmp_path / "agents").mkdir()
    monkeypatch.setattr(local_site, "remove_tree", lambda _: None)  # as with files of root
    with pytest.raises(
        CoordinatorError, match=rf"^{tmp_path / 'agents'} could not be removed, all else of the site was"
    ):
        LocalSite(tmp_path).forget()
    assert os.listdir(tmp_path) == ["agents"]
    assert local_site.OURS.index("token") < local_site.OURS.index("store.db*") < local_site.OURS.index("agents")


@pytest.fixture
def unblocked() -> Iterator[None]:
    """Ends whatever waits for a pipe."""

    def end(*_: object) -> None:
        pytest.fail("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "name", ["up.lock", "lock", "agents/left/lock", "agents/left/agent.json", "agents/left/backend.json"]
)
@pytest.mark.usefixtures("unblocked")
def test_pipes_do_not_block_down(tmp_path: Path, name: str) -> None:
    agent = tmp_path / "agents" / "left"
    agent.mkdir(parents=True)
    (agent / "agent.json").write_text('{"cluster": "left", "name": "x", "incarnation": 1}')
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert LocalSite(tmp_path).down() == []


@pytest.mark.usefixtures("unblocked")
def test_a_lock_is_a_regular_file(tmp_path: Path) -> None:
    with hold(tmp_path, "one"):
        assert held(tmp_path)
        with pytest.raises(ConfigError, match="in use by another one"):
            hold(tmp_path, "one")
    assert not held(tmp_path)
    (tmp_path / "lock").unlink()
    os.mkfifo(tmp_path / "lock")
    assert not held(tmp_path)
    with pytest.raises(ConfigError, match="lock is no regular file; remove it"):
        hold(tmp_path, "one")
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic links"):
        hold(tmp_path, "one")
    assert not (tmp_path / "elsewhere").exists()
    os.mkfifo(tmp_path / "agent.json")
    with pytest.raises(OSError, match="no regular file"):
        register(tmp_path, "left")
