"""Isolated tasks, with real sandboxes of bubblewrap: what a hostile task finds, and that all else is as without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from live.sites import CONFIG, RealSite, python
from live.test_backends import (  # noqa: F401 - these tests run here with another fixture: a sandbox
    end_of,
    lease,
    said,
    start,
    test_a_killed_supervisor_takes_its_task_along_and_the_attempt_is_lost,
    test_a_pid_that_is_used_again_is_not_signalled,
    test_a_task_has_time_to_clean_up,
    test_a_task_sees_what_it_was_granted_and_no_secrets,
    test_a_task_that_does_not_listen_is_killed,
    test_arguments_reach_the_program_as_they_are,
    test_cores_of_a_running_task_can_be_changed_and_nothing_else,
    test_stopping_ends_the_whole_tree_and_only_that,
    test_what_a_task_leaves_behind_ends_with_it,
)
from waiting import wait_for

from tapfinger.errors import ConfigError, LaunchFailed
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.sandbox import Sandbox, find_sandbox
from tapfinger.testing import check_backend


def usable() -> bool:
    try:
        return find_sandbox("required", ()) is not None
    except ConfigError:
        return False


pytestmark = pytest.mark.skipif(not usable(), reason="needs bubblewrap, and a user who may make namespaces")


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox | None:
    return find_sandbox("required", [tmp_path])


# --------------------------------------------------------------------- a hostile task

#: Tries every way to what is not its own, and prints those that work. Arguments: the site's directory, the working
#: directory of another task, processes of the site.
HOSTILE = """
import ctypes, json, os, signal, subprocess, sys
state, other, *pids = sys.argv[1:]
mine, found = os.path.dirname(os.environ["TAPFINGER_REPORT"]), []
def attempt(name, act):
    try:
        if act(): found.append(name)
    except OSError: pass
def read(path):
    with open(path, "rb") as file: return file.read()
def files():
    return [os.path.join(d, f) for d, _, names in os.walk(state) for f in names if not d.startswith(mine)]
def ptrace(pid): return ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0
attempt("operator's token", lambda: read(state + "/token"))
attempt("token by another root", lambda: read("/proc/1/root" + state + "/token"))
attempt("files of the site", files)
attempt("other task's directory", lambda: os.listdir(other))
attempt("store", lambda: open(state + "/store.db", "r+b"))
attempt("a file in the site's place", lambda: open(state + "/token", "w"))
unmount = f"umount {state} || umount -l {state}; cat {state}/token"
attempt("token without its cover", lambda: subprocess.run(["unshare", "-Urm", "sh", "-c", unmount],
    capture_output=True).stdout)
for pid in filter(str.isdigit, os.listdir("/proc")):
    attempt("environment of " + pid, lambda: any(w in read(f"/proc/{pid}/environ") for w in (b"_TOKEN", b"hunter2")))
for pid in map(int, pids):
    attempt(f"process {pid}", lambda: os.path.exists(f"/proc/{pid}"))
    attempt(f"signal to {pid}", lambda: os.kill(pid, signal.SIGTERM) is None)
    attempt(f"ptrace of {pid}", lambda: ptrace(pid))
attempt("ptrace of 1", lambda: ptrace(1))
attempt("kernel settings", lambda: os.access("/proc/sys/kernel/core_pattern", os.W_OK))
attempt("control groups", lambda: os.path.exists("/sys/fs/cgroup") and os.access("/sys/fs/cgroup", os.W_OK))
with open("/proc/self/status") as file: status = dict(line.split(":", 1) for line in file)
attempt("capabilities", lambda: int(status["CapEff"], 16) or int(status["CapPrm"], 16))
attempt("new rights", lambda: status["NoNewPrivs"].strip() != "1")
os.kill(os.getppid(), signal.SIGKILL)  # the kernel takes it and does nothing
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.killpg(0, signal.SIGTERM)
print(json.dumps(found))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    real = RealSite(tmp_path)
    yield real
    real.close()


#: Waits for a file in its working directory.
WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nexit(7)"


def victim_in(site: RealSite) -> tuple[int, Path]:
    """A task with a secret that runs, and its working directory."""
    assert site.client is not None
    (task,) = site.client.submit(python(WAITS, env={"PASSWORD": "hunter2"}))
    (directory,) = wait_for(lambda: list(site.state.glob(f"agents/*/runs/{task}.1/task/work")))
    wait_for(lambda: b"up" in b"".join(site.client.logs(task)))
    return task, directory


def test_a_hostile_task_finds_nothing_and_harms_nobody(site: RealSite) -> None:
    site.config.write_text(CONFIG + f'isolation = "required"\nhidden = ["{site.state}"]\n')
    client = site.up()
    assert [cluster["isolates"] for cluster in client.clusters()] == [True, True]
    victim, directory = victim_in(site)
    supervisor = json.loads((directory.parent.parent / "pid.json").read_text())["pid"]
    pids = [supervisor, *(process.pid for process in site.processes.values())]
    words = [str(site.state), str(directory), *map(str, pids)]
    (task,) = client.submit(python("", argv=[sys.executable, "-c", HOSTILE, *words]))
    ended, text = client.wait(task), b"".join(client.logs(task))
    assert (ended.code, json.loads(text)) == (0, []), text
    assert all(process.poll() is None for process in site.processes.values())
    (directory / "go").touch()
    ended = client.wait(victim)
    assert (ended.code, ended.attempt) == (7, 1)


def test_without_isolation_a_task_reads_the_token_and_clusters_say_so(site: RealSite) -> None:
    site.config.write_text(CONFIG + 'isolation = "none"\n')
    client = site.up()
    assert [cluster["isolates"] for cluster in client.clusters()] == [False, False]
    (task,) = client.submit(python(f"print(open({str(site.state / 'token')!r}).read())"))
    assert client.wait(task).code == 0
    assert b"".join(client.logs(task)).strip() == (site.state / "token").read_bytes().strip()


# --------------------------------------------------------------- all else is as without


class Sandboxed(Process):
    """The process backend as an agent with isolation uses it."""

    def open(self, context: BackendContext) -> None:
        super().open(replace(context, sandbox=find_sandbox("required", ())))


def test_the_process_backend_fulfils_the_contract_in_sandboxes(tmp_path: Path) -> None:
    check_backend(Sandboxed, tmp_path)


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("import sys; sys.exit(5)", (5, "")),
        ("import sys; sys.exit(137)", (137, "")),
        ("import os; os.kill(os.getpid(), 9)", (-9, "ended by signal 9 (Killed)")),
        ("import os; os.abort()", (-6, "ended by signal 6 (Aborted)")),
        ("import os; os.kill(os.getppid(), 9); os.kill(1, 2); os.kill(1, 15)", (0, "")),
        ("import os; os.fork() or os.fork() or os.setsid(); os.kill(os.getpid(), 15)", (-15, "ended by signal 15")),
    ],
)
def test_codes_and_signals_are_those_of_the_task(
    start: Callable[..., Run],  # noqa: F811
    code: str,
    ends: tuple[int, str],
) -> None:
    end = end_of(start(code))
    assert end.code == ends[0]
    assert end.reason.startswith(ends[1])


def test_a_time_limit_and_a_program_that_is_not_there(start: Callable[..., Run]) -> None:  # noqa: F811
    end = end_of(start("import time; time.sleep(600)", time_limit=0.5))
    assert (end.result, end.reason) == ("failed", "it took longer than 0.5 s")
    end = end_of(start("", argv=("/no/such/program",)))
    assert (end.result, end.code) == ("failed", 127)
    assert "'/no/such/program' could not be started: [Errno 2] No such file or directory" in end.reason


def test_a_task_cannot_make_bubblewrap_run_its_code(start: Callable[..., Run], tmp_path: Path) -> None:  # noqa: F811
    """Variables of the task must reach its own program alone: bubblewrap starts outside of the sandbox."""
    env = {"LD_PRELOAD": "/no/such/library.so", "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    run = start("import os; print(os.environ['LD_PRELOAD'])", env=env)
    assert end_of(run).code == 0
    complaints = said(run).count("/no/such/library.so' from LD_PRELOAD cannot be preloaded")
    assert complaints == 1, "the dynamic linker complains once, for the task"


def test_a_working_directory_that_is_hidden_is_refused(start: Callable[..., Run], tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "place").mkdir()
    with pytest.raises(LaunchFailed, match=r"is in .*, which tasks cannot see; choose another"):
        start("pass", cwd=str(tmp_path / "place"))


def test_a_hidden_file_is_empty_and_a_missing_one_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    box = find_sandbox("required", [tmp_path / "token", tmp_path / "missing"])
    assert box is not None
    shown = subprocess.run(
        [*box.command(), "--", "cat", str(tmp_path / "token")], capture_output=True, text=True, check=False
    )
    assert "secret" not in shown.stdout
    assert not (tmp_path / "missing").exists()


def test_the_agent_restarts_and_its_isolated_task_runs_on(site: RealSite) -> None:
    client = site.up()
    victim, directory = victim_in(site)
    cluster = client.show(victim).cluster or ""
    site.kill(cluster)
    site.agent(cluster)
    (directory / "go").touch()
    ended = client.wait(victim)
    assert (ended.code, ended.attempt) == (7, 1)


# ------------------------------------------------------------------------- the probe


def test_a_machine_without_user_namespaces_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = shutil.which("bwrap")
    wrapper = tmp_path / "bwrap"
    # As on a machine that forbids them: within this one, nobody can make another namespace.
    wrapper.write_text(
        f'#!/bin/sh\nexec {real} --unshare-user --uid 1000 --disable-userns --dev-bind / / {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_sandbox("auto", ()) is None
    assert "tasks are not isolated" in caplog.text
    assert "bwrap failed with 1: bwrap: " in caplog.text
    with pytest.raises(ConfigError, match=r'live.isolation = "required", but tasks cannot be isolated: .*bwrap: '):
        find_sandbox("required", ())
