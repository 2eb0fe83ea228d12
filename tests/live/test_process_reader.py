"""Processes whose command line and environment cannot be read, or not soon, hold up nobody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from live import holding
from live.sites import opened
from live.test_resize import make_host
from live.test_strays import alive, started
from waiting import PATIENCE, wait_for

from tapfinger.live.agent import strays
from tapfinger.live.agent.job_pool import JobPool
from tapfinger.live.agent.kept import register
from tapfinger.live.agent.main import BACKEND_NOTE
from tapfinger.live.backends import process_reader, supervise, supervision
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.process_reader import MOST, ProcessReader, is_beside_us
from tapfinger.live.local_site import clear


@contextmanager
def sleeping(*words: str) -> Iterator[int]:
    """A process of another program."""
    with subprocess.Popen(words or ("sleep", "600"), start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[int]]]:
    """A process of which nothing can be read, and how often it was tried."""
    tried: list[int] = []
    go = threading.Event()

    def but_one(read: process_reader.Read, pid: int) -> bytes:
        if pid == one:
            tried.append(pid)
            assert go.wait(PATIENCE)
        return read(pid)

    pool = JobPool("test", MOST)
    with sleeping() as one:
        lines = ProcessReader(partial(but_one, process_reader.command_line_of), pool)
        monkeypatch.setattr(strays, "command_lines", lines)
        environments = ProcessReader(partial(but_one, process_reader.environment_of), pool)
        monkeypatch.setattr(supervision, "environments", environments)
        try:
            yield one, tried
        finally:
            go.set()


# ------------------------------------------------------------------------- the reader


def test_one_that_hangs_is_read_once_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging(monkeypatch) as (one, tried), sleeping() as other:
        for _ in range(3):
            found, hung = supervision.environments.of([one, other, os.getpid()])
            assert found.keys() == {other, os.getpid()}
            assert hung == {one}
        assert tried == [one]
        assert caplog.text.count(f"process {one} cannot be looked at") == 1


def test_one_that_was_only_slow_is_read_again() -> None:
    go, me = threading.Event(), os.getpid()
    reader = ProcessReader(lambda _: b"read" if go.wait(PATIENCE) else b"", JobPool("test", 1))
    assert reader.of([me]) == ({}, {me})
    go.set()
    assert wait_for(lambda: reader.of([me])[0]) == {me: b"read"}


def test_there_is_an_end_to_the_threads_for_what_hangs() -> None:
    go, tried, threads = threading.Event(), list[int](), 3

    def hang(pid: int) -> bytes:
        tried.append(pid)
        go.wait(PATIENCE)
        return b""

    reader = ProcessReader(hang, JobPool("test", threads), patience=0.3)
    with ExitStack() as stack:
        pids = [stack.enter_context(sleeping()) for _ in range(threads + 2)]
        for _ in range(2):
            assert reader.of(pids) == ({}, set(pids))
        assert len(tried) <= threads
        go.set()


def test_what_has_ended_or_is_refused_does_not_hang() -> None:
    def refuse(pid: int) -> bytes:
        raise PermissionError

    ended = subprocess.Popen(["true"])
    ended.wait()
    assert ProcessReader(refuse, JobPool("test", 1)).of([os.getpid(), ended.pid]) == ({os.getpid(): b""}, set())


def test_what_is_in_a_sandbox_is_not_beside_us() -> None:
    command = ["unshare", "-Urpf", "--mount-proc", "sh", "-c", "echo; exec sleep 600"]
    assert is_beside_us(os.getpid())
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                pytest.skip("no namespaces can be made here")
            (inner,) = supervise.descendants(process.pid)
            assert is_beside_us(process.pid)
            assert not is_beside_us(inner)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


# ----------------------------------------------------------------------------- agents


def test_an_agent_starts_whatever_hangs_and_still_finds_strays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(Process(), tmp_path)
    run, pids = started(tmp_path, backend, 1)
    (run.directory / "launch.json").unlink()
    with hanging(monkeypatch):
        host, _ = make_host(tmp_path, Fake())
        try:
            assert host.report().runs == ()
            assert alive(pids) == []
        finally:
            host.close()
    wait_for(partial(backend.poll, run))


def test_a_program_in_a_sandbox_or_without_a_run_passes_for_no_supervisor(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    program, place = supervise.__file__, os.fsencode(runs)

    def seen(*wrapper: str, name: str) -> Sequence[str]:
        words = [*wrapper, "sh", "-c", "sleep 600; :", program, str(runs / name)]
        with sleeping(*words) as pid:
            wait_for(lambda: [one for one in (pid, *supervise.descendants(pid)) if below_shell(one)])
            return [found for _, found in strays.supervisors(place)]

    def below_shell(pid: int) -> bool:
        children = supervise.descendants(pid)
        return any(process_reader.command_line_of(child).startswith(b"sleep") for child in children)

    assert seen(name="7.1") == ["7.1"]
    assert seen(name="no such run") == []
    if subprocess.run(["unshare", "-Urpf", "true"], capture_output=True, check=False).returncode == 0:
        # Unshare itself is outside, and has these words as well.
        assert seen("unshare", "-Urpf", name="7.1") == ["7.1"]


def test_a_run_without_a_supervisor_is_lost_although_something_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging(monkeypatch) as (one, tried):
        monkeypatch.setattr(supervision, "DOUBT", 1e9)
        backend = opened(Process(), tmp_path)
        run, (supervisor, *_) = started(tmp_path, backend, 1)
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: backend.poll(run) is None and tried)
        assert backend.poll(run) is None, "what hangs may be left of it, for all that is known"
        monkeypatch.setattr(supervision, "DOUBT", 0.0)
        outcome = wait_for(lambda: backend.poll(run))
        assert outcome.result == "lost"
        # Others may hang for a moment, too, on a busy machine.
        assert re.search(rf"it cannot be told whether it has left process (\d+, )*{one}\b", caplog.text)
        assert alive([one]) == [one]


@pytest.mark.slow
def test_a_process_that_holds_the_lock_of_its_memory_holds_up_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "DOUBT", 1.0)
    command = ["unshare", "-Urm", sys.executable, holding.__file__, "/dev/fuse", str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as holder:
        try:
            assert holder.stdout is not None
            words = holder.stdout.readline().split()
            if not words:
                pytest.skip("no file system of FUSE can be mounted here")
            wait_for(lambda: Path(f"/proc/{int(words[1])}/stat").read_text().rpartition(")")[2].split()[0] == "D")
            host, _ = make_host(tmp_path, Fake())
            host.close()
            backend = opened(Process(), tmp_path)
            run, (supervisor, *_) = started(tmp_path, backend, 1)
            os.kill(supervisor, signal.SIGKILL)
            assert wait_for(lambda: backend.poll(run)).result == "lost"
            register(tmp_path, "c0")
            (tmp_path / BACKEND_NOTE).write_text("{}")
            assert clear(tmp_path)
            look = f"from {process_reader.__name__} import environments as e; print(e.of([{int(words[1])}]))"
            said = subprocess.run([sys.executable, "-c", look], capture_output=True, timeout=PATIENCE, check=True)
            assert words[1] in said.stdout, "a thread that hangs keeps no process from its end"
        finally:
            os.killpg(holder.pid, signal.SIGKILL)
