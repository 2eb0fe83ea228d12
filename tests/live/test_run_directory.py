"""What lies in a run's directory, who may see it, and what stays of it."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from live.sites import CONFIG, RealSite, opened
from live.test_backends import end_of, said
from waiting import wait_for

import tapfinger
from tapfinger.commands.live import serve
from tapfinger.errors import ConfigError, LaunchFailed
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.leases import boot_clock, write_lease
from tapfinger.live.agent.machine import Said
from tapfinger.live.agent.main import AgentSettings, make_host, run_agent
from tapfinger.live.agent.reports import Following
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.sandbox import Sandbox, find_sandbox
from tapfinger.live.backends.starting import hide_from_others, prctl
from tapfinger.live.backends.supervision import supervisor_of, tell_allotment
from tapfinger.live.http.client import make_spec
from tapfinger.live.protocol.messages import Launch, Orders

SECRET = "correct horse"


def run_in(directory: Path, *argv: str) -> Run:
    write_lease(directory / "lease", boot_clock() + 600.0)
    launch = Launch((1, 1), argv, {"cpu": 1.0}, {"SECRET": SECRET})
    return Run(launch, directory / "1.1", {}, directory / "lease")


def holding(directory: Path) -> list[str]:
    """Files that hold the secret."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if SECRET.encode() in path.read_bytes()]


def test_the_environment_of_a_task_is_not_on_disk_once_it_runs(tmp_path: Path) -> None:
    backend, run = opened(Process(), pin=False), run_in(tmp_path, "sh", "-c", 'echo "$SECRET" | tr a-z A-Z; sleep 600')
    backend.start(run)
    try:
        wait_for(lambda: SECRET.upper() in said(run))
        assert holding(tmp_path) == []
    finally:
        backend.stop(run, at_once=True)
        end_of(run)
    assert holding(tmp_path) == []


class CannotLaunch(Process):
    """Fails where the supervisor would be started."""

    def launch(self, run: Run, command: list[str]) -> int:
        assert holding(run.directory) == [supervise.ENVIRONMENT]
        raise OSError("no more processes")


def test_the_environment_of_a_task_that_never_began_is_not_on_disk(tmp_path: Path) -> None:
    run = run_in(tmp_path, "true")
    with pytest.raises(LaunchFailed, match="no more processes"):
        opened(CannotLaunch(), pin=False).start(run)
    assert holding(tmp_path) == []
    (run.directory / supervise.ENVIRONMENT).write_text(SECRET)
    assert end_of(run).result == "lost", "its supervisor was killed before it began"
    assert holding(tmp_path) == []


def test_an_agent_remembers_a_run_without_its_environment(tmp_path: Path) -> None:
    host = Host(BackendContext(tmp_path, "c", pin=False), Process(), Devices({}), 60.0)
    try:
        launch = Launch((1, 1), ("sleep", "600"), {}, {"SECRET": SECRET})
        report = host.report()
        orders = Orders("c", report.agent, report.incarnation, 1, 1, report.seq, 600.0, starts=(launch,))
        host.step(orders)
        run = Run(launch, tmp_path / "runs" / "1.1", {}, tmp_path / "lease")
        wait_for(lambda: supervisor_of(run))
        wait_for(lambda: holding(tmp_path) == [])
        assert json.loads((run.directory / "launch.json").read_text())["launch"]["env"] == {}
    finally:
        while host.stop_all():
            pass
        host.close()


def test_a_run_of_an_earlier_agent_has_everything_in_one_directory(tmp_path: Path) -> None:
    run = run_in(tmp_path, "true")
    run.directory.mkdir()
    assert (run.visible, run.work) == (run.directory / "task", run.directory / "task" / "work")
    (run.directory / "launch.json").write_text(json.dumps({"launch": asdict(run.launch), "devices": {}}))
    assert (run.visible, run.work) == (run.directory, run.directory / "work")
    run.reports.write_text('{"t": 1.0, "progress": 0.5}\n')
    tell_allotment(run, {"cpu": 3.0})
    assert json.loads((run.directory / "allotment.json").read_text()) == {"cpu": 3.0}
    heard = Following(run.reports, None).look(0.0, at_once=True)
    assert isinstance(heard, Said)
    assert heard.progress == 0.5


def test_links_that_a_task_leaves_lead_the_agent_nowhere(tmp_path: Path) -> None:
    run, private = run_in(tmp_path, "true"), tmp_path / "private"
    run.make_directories()
    private.write_text('{"t": 1.0, "progress": 0.5}\n')
    run.reports.symlink_to(private)
    assert Following(run.reports, None).look(0.0, at_once=True) is None
    run.allotment.symlink_to(private)
    run.allotment.with_name(f".{run.allotment.name}.{os.getpid()}").symlink_to(private)
    tell_allotment(run, {"cpu": 3.0})
    assert json.loads(run.allotment.read_text()) == {"cpu": 3.0}
    assert private.read_text().startswith('{"t"')


def test_a_task_inherits_no_open_file_of_its_agent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    handle = os.open(tmp_path / "secret", os.O_RDONLY)
    try:
        os.set_inheritable(handle, True)  # as an agent's own parent may have left it
        run = run_in(tmp_path, sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))")
        opened(Process(), pin=False).start(run)
        assert end_of(run).result == "finished"
        assert str(handle) not in said(run)
    finally:
        os.close(handle)


# ------------------------------------------------------------------------ processes


@contextmanager
def somebody(act: Callable[[], object]) -> Iterator[int]:
    """A process without privileges that does something and then waits. Gives its pid."""
    done, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            prctl(4, 1)  # a process that has changed its user cannot be read by others either
            act()
            os.write(tell, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(done, 1) == b"x"
    os.close(done)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def readable(pid: int) -> list[str]:
    """Which private parts of a process another one of the same user can read."""
    found, tell = os.pipe()

    def look() -> None:
        for name in ("environ", "mem", "maps", "fd"):
            with suppress(PermissionError):
                path = f"/proc/{pid}/{name}"
                os.listdir(path) if name == "fd" else os.close(os.open(path, os.O_RDONLY))
                os.write(tell, f"{name} ".encode())

    with somebody(look):
        os.close(tell)
    with os.fdopen(found) as file:
        return file.read().split()


def test_a_process_that_hides_cannot_be_read_by_others_of_its_user() -> None:
    with somebody(lambda: None) as pid:
        assert readable(pid) == ["environ", "mem", "maps", "fd"]
    with somebody(hide_from_others) as pid:
        assert readable(pid) == []
        assert supervise.start_time(pid), "what tells whether it lives can be read"


def test_agents_and_coordinators_hide_before_they_read_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def hide() -> None:
        raise InterruptedError("hidden")

    monkeypatch.setattr("tapfinger.live.backends.starting.hide_from_others", hide)
    monkeypatch.setattr("tapfinger.live.agent.main.hide_from_others", hide)
    with pytest.raises(InterruptedError, match="hidden"):
        run_agent(AgentSettings("a", Path("nowhere"), pin=False), ["http://x"], Path("no-token"), False)
    with pytest.raises(InterruptedError, match="hidden"):
        serve(state=Path("nowhere"), config=Path("no-site"))


def test_a_supervisor_hides_and_its_task_does_not(tmp_path: Path) -> None:
    run = run_in(tmp_path, sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).prctl(3)); input()")
    opened(Process(), pin=False).start(run)
    assert end_of(run).code == 1
    assert said(run).splitlines()[0] == "1", "programs may be debugged by their owner"
    source = Path(supervise.__file__).read_text(encoding="utf-8")
    body = source[source.index("def main(") :]
    assert body.index("hide_from_others()") < body.index("take_environment()")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every process")
def test_a_task_cannot_read_the_processes_of_its_site_even_without_isolation(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    site.config.write_text(CONFIG + 'isolation = "none"\n')
    try:
        client = site.up()
        looks = "import os, sys\nfor pid in (os.getppid(), *sys.argv[1:]): os.system(f'cat /proc/{pid}/environ')"
        pids = [str(process.pid) for process in site.processes.values()]
        (task,) = client.submit(make_spec(argv=[sys.executable, "-c", looks, *pids], type="demo", maximum={"cpu": 1}))
        client.wait(task)
        assert b"".join(client.logs(task)).count(b"Permission denied") == 4
    finally:
        site.close()


# ------------------------------------------------------------------------- isolation


def test_a_machine_without_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_sandbox("none", ()) is None
    assert caplog.text == ""
    assert find_sandbox("auto", ()) is None
    assert "tasks are not isolated" in caplog.text
    assert "bwrap is not installed (package bubblewrap)" in caplog.text
    site = tmp_path / "site.toml"
    site.write_text(CONFIG + 'isolation = "required"\n')
    with pytest.raises(ConfigError, match="tasks cannot be isolated: bwrap is not installed"):
        make_host(AgentSettings("left", tmp_path / "state", site, pin=False))
    with pytest.raises(ConfigError, match="the backend Fake does not isolate tasks"):
        make_host(AgentSettings("left", tmp_path / "state", site, "fake", pin=False))
    with pytest.raises(ConfigError, match=r"live\.hidden names /"):
        find_sandbox("auto", [Path("/")])


def test_what_a_sandbox_hides(tmp_path: Path) -> None:
    (tmp_path / "state" / "agent").mkdir(parents=True)
    (tmp_path / "token").touch()
    hidden = (tmp_path / "missing", tmp_path / "state", tmp_path / "state" / "agent", tmp_path / "token")
    words = Sandbox("bwrap", hidden).command(tmp_path / "state" / "agent" / "task")
    assert words.count("--tmpfs") == 1, "what is in a hidden directory is hidden with it"
    assert str(tmp_path / "missing") not in words
    at = words.index("--tmpfs")
    assert words[at : at + 2] == ["--tmpfs", str(tmp_path / "state")]
    assert at < words.index("--bind") < words.index("--remount-ro"), "first covered, then the task's part uncovered"
    sandbox = Sandbox("bwrap", hidden)
    assert sandbox.covers(tmp_path / "state" / "agent" / "x") == tmp_path / "state"
    assert sandbox.covers(tmp_path / "elsewhere") is None


def test_a_hidden_link_is_followed_at_every_start(tmp_path: Path) -> None:
    key, old, new = tmp_path / "key", tmp_path / "old", tmp_path / "new"
    old.touch()
    new.touch()
    key.symlink_to(old)
    sandbox = Sandbox("bwrap", (key,))
    assert sandbox.command()[-4:-2] == [os.devnull, str(old)]
    key.unlink()
    key.symlink_to(new)
    assert covered(sandbox) == {str(old), str(new)}, "a task may have replaced the link"
    assert sandbox.covers(new) == new
    assert sandbox.covers(old) == old
    key.unlink()
    key.symlink_to(key)
    assert covered(sandbox) == {str(old)}, "a link that leads nowhere harms nobody"


def covered(sandbox: Sandbox) -> set[str]:
    """What a sandbox covers."""
    words = sandbox.command()
    pairs = zip(words, words[1:], words[2:], strict=False)
    return {to if word == "--ro-bind" else at for word, at, to in pairs if word == "--tmpfs" or at == os.devnull}


@pytest.mark.parametrize("target", ["/", "/usr", "/lib", "/bin", "/etc", "/dev", "/proc/self", "/sys/kernel"])
def test_a_link_does_not_hide_what_every_task_needs(
    tmp_path: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = Sandbox("bwrap", (tmp_path / ".pgpass",))
    (tmp_path / ".pgpass").symlink_to(target)
    assert covered(sandbox) == set()
    assert covered(Sandbox("bwrap", (tmp_path / ".pgpass",))) == set(), "nor when the agent starts again"
    assert sandbox.covers(Path(target) / "x") is None
    sandbox.command()
    assert caplog.text.count("a task may have made this link") == 2, "each says so once"


def test_a_link_does_not_hide_where_tasks_work_nor_their_programs(tmp_path: Path) -> None:
    program, package, root = sys.executable, Path(tapfinger.__file__).parent, tmp_path / "work" / "root"
    root.mkdir(parents=True)
    key = tmp_path / "key"
    for target in (Path(program), Path(program).parent, package, package.parent, root, root.parent):
        key.symlink_to(target)
        assert covered(Sandbox("bwrap", (key,), (root,))) == set()
        key.unlink()
    (root / "own").mkdir()
    key.symlink_to(root / "own")
    assert covered(Sandbox("bwrap", (key,), (root,))) == {str(root / "own")}
    assert covered(Sandbox("bwrap", (root.parent,), (root,))) == {str(root.parent)}, "who names it means it"


def test_a_sandbox_that_works_without_covers_alone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapfinger.live.backends.sandbox.shutil.which", lambda _: "bwrap")
    monkeypatch.setattr(
        "tapfinger.live.backends.sandbox._try", lambda words: "it failed" if str(tmp_path) in words else ""
    )
    with pytest.raises(ConfigError, match=r"all that is to be hidden .*: it failed; change live\.hidden or --hide"):
        find_sandbox("auto", [tmp_path])


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep also root from what is in a directory."""
    for name in ("stat", "lstat"):
        real = getattr(os, name)

        def strict(path: Any, *args: Any, real: Callable[..., Any] = real, **more: Any) -> Any:
            if isinstance(path, str | Path) and folder in Path(path).parents:
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(path, *args, **more)

        monkeypatch.setattr(os, name, strict)


def test_what_the_agent_cannot_reach_needs_not_to_be_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tapfinger.live.backends.sandbox.shutil.which", lambda _: "bwrap")
    monkeypatch.setattr("tapfinger.live.backends.sandbox._try", lambda _: "")
    (tmp_path / "others").mkdir()
    forbid(monkeypatch, tmp_path / "others")
    monkeypatch.setattr("tapfinger.live.backends.sandbox.os.geteuid", lambda: -1)
    sandbox = find_sandbox("auto", [tmp_path / "others" / "keys" / "key.pem"])
    assert sandbox is not None
    assert covered(sandbox) == set()
    assert "cannot be reached" in caplog.text
    assert "does not exist" not in caplog.text


def test_a_directory_that_a_task_has_closed_is_hidden_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "key.pem").touch()
    sandbox = Sandbox("bwrap", (tmp_path / "keys" / "key.pem",))
    forbid(monkeypatch, tmp_path / "keys")
    assert covered(sandbox) == {str(tmp_path / "keys")}, "another task could open it again"


def test_links_that_tasks_can_replace_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tapfinger.live.backends.sandbox.shutil.which", lambda _: "bwrap")
    monkeypatch.setattr("tapfinger.live.backends.sandbox._try", lambda _: "")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    find_sandbox("auto", [tmp_path / "real"])
    assert caplog.text == ""
    find_sandbox("auto", [tmp_path / "link"])
    assert f"{tmp_path / 'link'} is a link on the way to what is to be hidden" in caplog.text


def test_directories_that_a_task_may_permit_itself_to_change_are_held_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / "x" / "state").mkdir(parents=True)
    monkeypatch.setattr("tapfinger.live.backends.sandbox.os.access", lambda *_: False)  # as with mode 0555
    words = Sandbox("bwrap", (tmp_path / "home" / "x" / "state",)).command()
    bound = [words[i + 1] for i, word in enumerate(words) if word == "--dev-bind"]
    assert {str(tmp_path / "home"), str(tmp_path / "home" / "x")} < set(bound)
    monkeypatch.setattr("tapfinger.live.backends.sandbox.os.geteuid", lambda: -1)
    assert Sandbox("bwrap", (tmp_path / "home" / "x" / "state",)).command().count("--dev-bind") == 1


def test_what_is_to_be_hidden_and_does_not_exist_is_made_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TAPFINGER_STATE", raising=False)
    monkeypatch.setattr("tapfinger.live.backends.sandbox.shutil.which", lambda _: "bwrap")
    monkeypatch.setattr("tapfinger.live.backends.sandbox._try", lambda _: "")
    site = tmp_path / "site.toml"
    site.write_text(CONFIG + f'hidden = ["{tmp_path / "key"}"]\n')
    make_host(AgentSettings("left", tmp_path / "state", site, pin=False)).close()
    made = tmp_path / "home" / "tapfinger"
    assert made.is_dir()
    assert made.stat().st_mode & 0o077 == 0
    assert not (tmp_path / "key").exists()
    assert f"{tmp_path / 'key'} is to be hidden from tasks and does not exist" in caplog.text
