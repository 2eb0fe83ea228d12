"""Starts: many at once, slow ones, ones that hang, and orders to stop what is being started."""

from __future__ import annotations

import errno
import os
import platform
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from live.sites import opened
from live.starting import start_many
from live.test_faults import hosting
from live.test_machines import orders
from live.test_resize import told
from waiting import PATIENCE, wait_for

from tapfinger.errors import LaunchFailed, LaunchLost, UnsupportedOperation
from tapfinger.live.agent import runtime, starts
from tapfinger.live.agent.job_pool import Job, JobPool, Then
from tapfinger.live.agent.leases import boot_clock, read_lease, write_lease
from tapfinger.live.agent.machine import Agent, Condition, StartRun
from tapfinger.live.agent.runtime import Host
from tapfinger.live.agent.starts import MOST, REST, THREADS, TRIAL
from tapfinger.live.backends import starting, supervise, supervision
from tapfinger.live.backends.base import Run, TooLittle
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.starting import TOO_LITTLE
from tapfinger.live.protocol.messages import Launch, Orders, Outcome, Report, SizeOrder


def launches(*numbers: int) -> tuple[Launch, ...]:
    return tuple(Launch((n, 1), ("x",), {"memory": 1.0}, {}) for n in numbers)


class Slow(Fake):
    """Starts nothing until it is let go; it may hang on some tasks for ever."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 10.0)
        self.go = threading.Event()
        self.begun: list[int] = []
        self.stopped: list[int] = []
        self.threads: set[str] = set()

    def start(self, run: Run) -> None:
        self.begun.append(run.id[0])
        self.threads.add(threading.current_thread().name)
        assert (run.directory / "launch.json").exists(), "on disk before the start"
        self.go.wait()
        super().start(run)

    def stop(self, run: Run, at_once: bool) -> None:
        self.stopped.append(run.id[0])
        super().stop(run, at_once)


@contextmanager
def slowly(directory: Path, backend: Slow) -> Iterator[Host]:
    """A host that has a lease already; in the end its starts hang no longer."""
    with hosting(directory, backend) as (host, _):
        hear(host, 1)
        try:
            yield host
        finally:
            backend.go.set()


def hear(host: Host, seq: int, **more: object) -> list[Report]:
    machine = host.machine
    echo = host.report().seq
    message = Orders("c0", machine.agent, machine.incarnation, 1, seq, echo, 60.0, **more)  # type: ignore[arg-type]
    return host.step(message)


# ------------------------------------------------------------------------ the machine


def test_no_more_is_accepted_than_there_is_room_for() -> None:
    agent = Agent("c0", "a", 1, 0.0, 100.0)
    agent.handle(Condition(1), 0.0)
    agent.report(0.0)
    first = agent.handle(orders(starts=launches(1, 2, 3)), 0.1)
    assert [i.launch.id for i in first if isinstance(i, StartRun)] == [(1, 1)]
    assert agent.handle(Condition(0), 0.2) == []
    (report,) = agent.handle(Condition(2), 0.3)
    assert isinstance(report, Report), "the answer to it repeats what was passed over"
    assert agent.handle(Condition(2), 0.4) == [], "it is asked for once"
    again = agent.handle(orders(seq=2, echo=report.seq, starts=launches(2, 3)), 0.5)
    assert [i.launch.id for i in again if isinstance(i, StartRun)] == [(2, 1), (3, 1)]


def test_in_trouble_attempts_are_given_back() -> None:
    agent = Agent("c0", "a", 1, 0.0, 100.0)
    (report,) = agent.handle(Condition(9, "it burns"), 0.0)
    assert isinstance(report, Report)
    assert report.trouble == "it burns"
    done = agent.handle(orders(echo=report.seq, starts=launches(1)), 0.1)
    assert not any(isinstance(i, StartRun) for i in done)
    (told,) = [i for i in done if isinstance(i, Report)]
    assert told.runs[0].outcome == Outcome("lost", reason="it burns")


# --------------------------------------------------------------------------- the host


def test_slow_starts_delay_neither_steps_nor_each_other(tmp_path: Path) -> None:
    backend = Slow()
    with slowly(tmp_path, backend) as host:
        hear(host, 2, starts=launches(*range(1, 601)))
        wait_for(lambda: len(backend.begun) == THREADS)
        runs = host.report().runs
        assert len(runs) == MOST, "no more than can be started soon"
        assert host.step() is not None
        assert len(backend.begun) == THREADS
        seq = 2
        backend.go.set()
        while len(host.report().runs) < 600 or host.busy:
            seq += 1
            left = sorted({*range(1, 601)} - {run.id[0] for run in host.report().runs})
            hear(host, seq, starts=launches(*left))
        assert sorted(backend.begun) == [*range(1, 601)], "each once"
        assert all(run.outcome is None for run in host.report().runs)
        assert backend.threads == {"start"}


def test_an_order_to_stop_reaches_what_is_being_started(tmp_path: Path) -> None:
    backend = Slow()
    with slowly(tmp_path, backend) as host:
        numbers = range(1, THREADS + 2)
        hear(host, 2, starts=launches(*numbers))
        wait_for(lambda: len(backend.begun) == THREADS)
        (waiting,) = {*numbers} - {*backend.begun}
        begun = backend.begun[0]
        hear(host, 3, stops=((waiting, 1), (begun, 1)))
        ends = {run.id[0]: run.outcome for run in host.report().runs}
        assert ends[waiting] == Outcome("stopped", reason="it had not started")
        assert ends[begun] is None
        assert backend.stopped == [], "a backend is asked nothing of a run that it starts"
        backend.go.set()
        ends = {run.id[0]: run.outcome for run in told(host, 4)}
        assert backend.stopped == [begun]
        assert ends[begun] == Outcome("stopped", -9, "stopped")
        assert waiting not in backend.begun


def test_when_every_thread_hangs_the_rest_is_given_back_and_the_cluster_takes_nothing(tmp_path: Path) -> None:
    backend = Slow()
    with slowly(tmp_path, backend) as host:
        hear(host, 2, starts=launches(*range(1, THREADS + 3)))
        wait_for(lambda: len(backend.begun) == THREADS)
        host.starts.patience = 0.0
        wait_for(lambda: host.step() is not None and host.report().trouble)
        runs = {run.id[0]: run for run in host.report().runs}
        waited = {*runs} - {*backend.begun}
        assert len(waited) == 2
        assert {runs[n].outcome.result for n in waited if runs[n].outcome is not None} == {"lost"}
        assert all(runs[n].outcome is None and "starting it for" in runs[n].faults[0] for n in backend.begun)
        assert "its backend hangs: 8 starts" in host.report().trouble
        lease = host.machine.lease_until
        hear(host, 3)
        assert host.machine.lease_until >= lease, "the lease is renewed all the while"
        host.starts.patience = 1e9
        backend.go.set()
        wait_for(lambda: host.step() is not None and not host.busy and not host.report().trouble)
        told(host, 4, starts=launches(99))
        assert 99 in backend.begun


def test_a_poll_that_hangs_holds_up_neither_lease_nor_starts_and_is_told(tmp_path: Path) -> None:
    class Mute(Slow):
        def poll(self, run: Run) -> Outcome | None:
            self.go.wait()
            return super().poll(run)

        def start(self, run: Run) -> None:
            Fake.start(self, run)
            self.begun.append(run.id[0])

    backend = Mute()
    now = [10.0]
    with slowly(tmp_path, backend) as host:
        host._clock = lambda: now[0]
        hear(host, 2, starts=launches(1))
        wait_for(lambda: host.step() is not None and backend.begun == [1])
        hear(host, 3, starts=launches(2))
        now[0] = 20.0
        hear(host, 4)
        assert read_lease(tmp_path / "lease") == 80.0
        wait_for(lambda: host.step() is not None and backend.begun == [1, 2])
        host.patience = 0.0
        wait_for(lambda: host.step() is not None and "said nothing of any task" in host.report().trouble)
        backend.go.set()
        host.patience = 1e9
        wait_for(lambda: host.step() is not None and not host.report().trouble)


def test_a_growth_that_fails_while_its_task_ends_gives_its_devices_back(tmp_path: Path) -> None:
    class Ends(Fake):
        """Its task is found to have ended before it can grow."""

        def __init__(self) -> None:
            super().__init__(clock=lambda: 10.0)
            self.asked, self.go = threading.Event(), threading.Event()

        def poll(self, run: Run) -> Outcome | None:
            self.asked.set()
            self.go.wait()
            return Outcome("finished", 0)

        def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
            raise UnsupportedOperation("its group is gone")

    backend = Ends()
    with hosting(tmp_path, backend) as (host, devices):
        hear(host, 1, starts=(Launch((1, 1), ("x",), {"cpu": 1.0}, {}),))
        wait_for(lambda: host.step() is not None and backend.asked.is_set())
        hear(host, 2, sizes=(SizeOrder((1, 1), 1, {"cpu": 3.0}),))
        assert devices.free == {"cpu": 1}
        backend.go.set()
        wait_for(lambda: not host.step() and not host.busy)
        assert host.report().runs[0].outcome == Outcome("finished", 0)
        assert devices.free == {"cpu": 4}


def test_one_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    class Picky(Slow):
        def start(self, run: Run) -> None:
            if run.id[0] == 1:
                super().start(run)
            else:
                Fake.start(self, run)

    backend = Picky()
    with slowly(tmp_path, backend) as host:
        hear(host, 2, starts=launches(*range(1, 31)))
        wait_for(lambda: host.step() is not None and len(backend.alive()) == 29)
        backend.go.set()


def test_what_was_accepted_and_not_started_is_unknown_to_the_next_agent(tmp_path: Path) -> None:
    backend = Slow()
    with slowly(tmp_path, backend) as host:
        hear(host, 2, starts=launches(*range(1, THREADS + 2)))
        wait_for(lambda: len(backend.begun) == THREADS)
        (waiting,) = {*range(1, THREADS + 2)} - {*backend.begun}
        assert not (tmp_path / "runs" / f"{waiting}.1").exists(), "so the coordinator may give it to another"
        assert all((tmp_path / "runs" / f"{n}.1" / "launch.json").exists() for n in backend.begun)
        backend.go.set()


# ------------------------------------------------------------------------- no threads


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    """As on a machine whose user has as many processes as it may have."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refuse)


def test_a_pool_without_threads_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, done = JobPool("x", 2), []

    def work(number: int) -> Then:
        done.append(number)
        return list

    with monkeypatch.context() as patch:
        refuse_threads(patch)
        pool.do(partial(work, 1))
        withdrawn = pool.do(partial(work, 2))
        assert pool.settle(600.0) == [], "nobody is waited for"
        assert (pool.stranded, pool.in_hand) == (True, 2)
        assert pool.withdraw(withdrawn)
    pool.settle(600.0)
    assert (done, pool.stranded, pool.in_hand) == ([1], False, 0)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        pool.do(partial(work, 3))
        pool.do(partial(work, 4))
        pool.settle(600.0)
        assert (done, pool.stranded) == ([1, 3, 4], False), "the thread that there is does all"
    pool.close()


def test_a_job_that_exits_does_not_end_its_thread() -> None:
    pool = JobPool("x", 1)
    pool.do(lambda: sys.exit(3))
    pool.do(lambda: list)
    pool.settle(600.0)
    assert pool.in_hand == 0
    pool.close()


def test_without_threads_nothing_is_lost_and_the_cluster_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Slow()
    backend.go.set()
    with slowly(tmp_path, backend) as host:
        told(host, 2)
        with monkeypatch.context() as patch:
            refuse_threads(patch)
            hear(host, 3, starts=launches(1, 2, 3))
            host.step()
            assert "lets the agent start no thread" in host.report().trouble
            hear(host, 4, stops=((2, 1),))
        wait_for(lambda: host.step() is not None and not host.busy and not host.report().trouble)
        ends = {run.id[0]: run.outcome for run in host.report().runs}
        assert ends == {1: None, 2: Outcome("stopped", reason="it had not started"), 3: None}
        assert sorted(backend.begun) == [1, 3]


def test_a_start_that_cannot_begin_stops_no_other_instruction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, devices):
        begin = host.starts.begin

        def choosy(run: Run, *more: Any) -> Job:
            if run.id[0] == 1:
                raise MemoryError("no memory")
            return begin(run, *more)

        monkeypatch.setattr(host.starts, "begin", choosy)
        both = tuple(Launch((n, 1), ("x",), {"cpu": 1.0}, {}) for n in (1, 2))
        first, second = told(host, 1, starts=both)
        assert first.outcome == Outcome("lost", reason="its agent could not start it: MemoryError: no memory")
        assert (second.outcome, devices.free) == (None, {"cpu": 3})


def test_orders_for_a_run_that_nobody_knows_end_it(tmp_path: Path) -> None:
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, _):
        told(host, 1, starts=launches(1, 2))
        for ident in ((1, 1), (2, 1)):
            del host._runs[ident]  # whatever has made it forget
        runs = told(host, 2, stops=((1, 1),), sizes=(SizeOrder((2, 1), 1, {"memory": 2.0}),))
        assert [run.outcome for run in runs] == [Outcome("lost", reason="its agent knows nothing of it")] * 2


@pytest.mark.parametrize(
    ("error", "outcome", "trouble"),
    [
        (MemoryError(), Outcome("lost", reason="the agent cannot write to its disk: MemoryError"), True),
        (
            OSError(errno.EACCES, "no"),
            Outcome("lost", reason="the agent cannot write to its disk: [Errno 13] no"),
            False,
        ),
        (ValueError("odd"), Outcome("failed", 127, "its agent could not start it: ValueError: odd"), False),
        (SystemExit(2), Outcome("failed", 127, "its agent could not start it: SystemExit: 2"), False),
    ],
)
def test_whatever_happens_while_a_run_is_written_down_ends_it(
    error: BaseException, outcome: Outcome, trouble: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(runtime, "save_run", fail)
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, devices):
        (run,) = told(host, 1, starts=(Launch((1, 1), ("x",), {"cpu": 1.0}, {}),))
        assert (run.outcome, devices.free, bool(host.report().trouble)) == (outcome, {"cpu": 4}, trouble)


def test_a_backend_that_exits_ends_no_look_and_no_resize(tmp_path: Path) -> None:
    class Exits(Fake):
        def poll(self, run: Run) -> Outcome | None:
            self.polls = getattr(self, "polls", 0) + 1
            sys.exit(2)

        def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
            sys.exit(2)

    backend = Exits(clock=lambda: 10.0)
    with hosting(tmp_path, backend) as (host, _):
        told(host, 1, starts=launches(1))
        told(host, 2, sizes=(SizeOrder((1, 1), 1, {"memory": 2.0}),))
        assert host.report().runs[0].size == 1, "it is told that it keeps its size"
        seen = backend.polls
        wait_for(lambda: host.step() or backend.polls > seen)


# ------------------------------------------------------------------- a short machine


class Short(Fake):
    """Its machine has no more processes at times."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 10.0)
        self.error: OSError | None = OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.tried: list[int] = []

    def start(self, run: Run) -> None:
        self.tried.append(run.id[0])
        if self.error is not None:
            raise self.error
        super().start(run)


class Told(Fake):
    """Says of every run what it is told to say."""

    says: Outcome | None = None

    def poll(self, run: Run) -> Outcome | None:
        return self.says


def test_who_starts_on_a_machine_that_lacks_something_is_given_back(tmp_path: Path) -> None:
    backend, now = Short(), [1000.0]
    with hosting(tmp_path, backend) as (host, devices):
        host.starts._clock = lambda: now[0]
        one, two, three, four = (Launch((n, 1), ("x",), {"cpu": 1.0}, {}) for n in (1, 2, 3, 4))
        (first,) = told(host, 1, starts=(one,))
        assert first.outcome is not None
        assert first.outcome.result == "lost"
        assert first.outcome.reason.startswith(f"{TOO_LITTLE}: [Errno 11] ")
        assert devices.free == {"cpu": 4}
        assert host.report().trouble.startswith(f"{TOO_LITTLE}: Resource temporarily unavailable; ")
        now[0] += REST - 1.0
        told(host, 2, starts=(two,))
        assert backend.tried == [1], "nothing is tried meanwhile"
        now[0] += 2.0
        host.step()
        assert host.report().trouble == ""
        told(host, 3, starts=(three, four))
        assert backend.tried == [1, 3], "one attempt shows whether it is over"
        assert TOO_LITTLE in host.report().trouble
        backend.error = None
        now[0] += REST + 1.0
        host.step()
        told(host, 4, starts=(four,))
        assert backend.tried == [1, 3, 4]
        assert host.starts.room(60.0) == 0, "its supervisor may yet find that it lacks something"
        now[0] += TRIAL
        wait_for(lambda: host.step() or host.starts.room(60.0) > 1)
        backend.error = OSError(errno.ENOENT, "No such file or directory")
        *_, last = told(host, 5, starts=(Launch((5, 1), ("x",), {"cpu": 1.0}, {}),))
        assert last.outcome is not None
        assert (last.outcome.result, host.report().trouble) == ("failed", "")


def test_a_supervisor_too_may_find_that_the_machine_lacks_something(tmp_path: Path) -> None:
    backend = Told()
    with hosting(tmp_path, backend) as (host, _):
        backend.says = Outcome("lost", reason=f"{TOO_LITTLE}: says a task")
        told(host, 1, starts=launches(1))
        wait_for(lambda: host.step() or host.report().runs[0].outcome)
        assert host.report().trouble == "", "words alone count nothing"
        backend.says = TooLittle("lost", reason="my secret", lacks=errno.EAGAIN)
        told(host, 2, starts=launches(2))
        wait_for(lambda: host.step() or host.report().trouble)
        assert host.report().runs[1].outcome == Outcome("lost", reason="my secret")
        assert host.report().trouble.startswith(f"{TOO_LITTLE}: {os.strerror(errno.EAGAIN)}; ")


@pytest.mark.parametrize(
    ("alive", "outcome", "room"),
    [
        (0.0, None, 0),
        (TRIAL, None, THREADS),
        (0.0, Outcome("failed", 127), THREADS),
        (TRIAL, TooLittle("lost", lacks=errno.EAGAIN), 1),
    ],
)
def test_one_attempt_shows_whether_a_shortage_is_over(
    alive: float, outcome: Outcome | None, room: int, tmp_path: Path
) -> None:
    now = [10.0]
    pool = starts.Starts(Fake(), clock=lambda: now[0])
    run = Run(launches(1)[0], tmp_path / "1.1")
    pool.polled((0, 1), TooLittle("lost", lacks=errno.EAGAIN))
    now[0] += REST
    assert (pool.trouble, pool.room(1.0)) == ("", 1)
    pool.begin(run, lambda: None, lambda _: list)
    pool.settle(PATIENCE)
    pool.polled((9, 1), None)
    assert pool.room(1.0) == 0
    now[0] += alive
    pool.polled(run.id, outcome)
    assert (pool.room(0.0), bool(pool.trouble)) == (room, room == 1)
    pool.close()


def test_what_an_earlier_agent_lacked_closes_nothing(tmp_path: Path) -> None:
    backend = Told()
    with hosting(tmp_path, backend) as (host, _):
        told(host, 1, starts=launches(1))
    backend.says = TooLittle("lost", lacks=errno.EAGAIN)
    with hosting(tmp_path, backend) as (host, _):
        (run,) = host.report().runs
        assert (run.outcome, host.starts.trouble) == (Outcome("lost"), "")


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ("bwrap: Creating new namespace failed: No space left on device", errno.ENOSPC),
        ("bwrap: No permissions to create new namespace", 0),
        ("", 0),
    ],
)
def test_bubblewrap_says_what_the_machine_lacks(said: str, lacks: int) -> None:
    fault = starting.Fault.of_bubblewrap(said)
    assert (fault.lost, fault.lacks, bool(fault)) == (lacks != 0, lacks, True)


def refuse(number: int) -> None:
    raise OSError(number, os.strerror(number), "[Errno 11] 1 11")


@pytest.mark.parametrize(
    ("number", "own", "lost", "lacks"),
    [
        (errno.EAGAIN, True, True, errno.EAGAIN),
        (errno.EIO, True, True, errno.EIO),
        (errno.ENOENT, True, False, 0),
        (errno.EAGAIN, False, True, 0),
        (errno.EIO, False, False, 0),
        (errno.ENOSPC, False, False, 0),
        (errno.ENOENT, False, False, 0),
    ],
)
def test_an_error_of_the_task_is_told_from_one_of_the_machine(
    number: int, own: bool, lost: bool, lacks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across the processes in between."""
    monkeypatch.setattr(os, "setsid" if own else "chdir", lambda *_: refuse(number))
    monkeypatch.setattr(starting, "prctl", lambda *_: None)  # of this process
    run = {"argv": ["true"], "cwd": str(tmp_path), "roots": [], "cpus": [], "cgroup": ""}
    with open(os.devnull, "wb") as output:
        started = starting.start(run, {}, output.fileno())
    fault = started.fault
    assert (started.pid, fault.lost, fault.lacks) == (0, lost, lacks)
    assert fault.text == f"'true' could not be started: [Errno {number}] {os.strerror(number)}: '[Errno 11] 1 11'"


def truncated_program(path: Path) -> Path:
    """A program that names an interpreter beyond its end: to execute it is an error of input and output."""
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 1 << 22, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    path.write_bytes(head + struct.pack("<IIQQQQQQ", 3, 4, 1 << 20, 0, 0, 28, 28, 1))
    path.chmod(0o755)
    return path


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is one of x86-64")
def test_a_truncated_program_has_failed(tmp_path: Path) -> None:
    program = str(truncated_program(tmp_path / "program"))
    backend = opened(Process(), tmp_path)
    write_lease(tmp_path / "lease", boot_clock() + 600.0)
    run = Run(Launch((1, 1), (program,), {"cpu": 1.0}, {}), tmp_path / "run", lease=tmp_path / "lease")
    backend.start(run)
    outcome = wait_for(lambda: backend.poll(run))
    assert (outcome.result, outcome.code, os.strerror(errno.EIO) in outcome.reason) == ("failed", 127, True)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EIO, LaunchFailed), (errno.ENOSPC, LaunchFailed), (errno.EMFILE, LaunchLost)]
)
def test_a_working_directory_that_says_the_machine_lacks_something(
    number: int, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a file system of the task's own."""
    run = Run(Launch((1, 1), ("x",), {"cpu": 1.0}, {}, cwd="/odd"), tmp_path / "run")
    real = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: refuse(number) if str(path) == "/odd" else real(path))
    with pytest.raises(error, match="working directory /odd cannot be used"):
        opened(Process(), tmp_path).start(run)


def test_an_attempt_that_is_given_back_closes_nothing(tmp_path: Path) -> None:
    class Back(Fake):
        def start(self, run: Run) -> None:
            raise LaunchLost("not now")

    with hosting(tmp_path, Back()) as (host, _):
        (run,) = told(host, 1, starts=launches(1))
        assert (run.outcome, host.report().trouble) == (Outcome("lost", reason="not now"), "")


def test_a_supervisor_that_cannot_fork_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", partial(refuse, errno.EAGAIN))
    monkeypatch.setattr(starting, "prctl", lambda *_: None)  # of this process
    run = {"argv": ["x"], "cpus": [], "cgroup": "", "max_log": 1}
    end = supervise.follow(run, {})
    assert (end["result"], end["reason"].startswith(f"{TOO_LITTLE}: 'x' could not be started: ")) == ("lost", True)
    supervise.write_end(str(tmp_path), end)
    assert supervision._read_end(Run(launches(1)[0], tmp_path)) == TooLittle(
        "lost", reason=end["reason"], lacks=errno.EAGAIN
    )


def test_a_supervisor_without_a_thread_does_not_start_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(supervise.Pump, "start", none)
    monkeypatch.setattr(starting, "start", lambda *_: pytest.fail("it was started"))
    end = supervise.follow({"max_log": 1}, {})
    assert (end["result"], end["reason"]) == ("lost", f"{TOO_LITTLE}: can't start new thread")
    assert end["lacks"] == errno.EAGAIN


@pytest.mark.parametrize(("number", "error"), [(errno.EAGAIN, OSError), (errno.ENOENT, LaunchFailed)])
def test_a_supervisor_that_cannot_be_launched(tmp_path: Path, number: int, error: type[Exception]) -> None:
    class Refused(Process):
        def launch(self, run: Run, command: list[str]) -> int:
            raise OSError(number, os.strerror(number))

    run = Run(Launch((1, 1), ("x",), {"cpu": 1.0}, {}), tmp_path / "run")
    with pytest.raises(error, match=os.strerror(number)):
        opened(Refused(), tmp_path).start(run)
    assert not (run.directory / supervise.ENVIRONMENT).exists()


@pytest.mark.parametrize(("pace", "lease", "most"), [(0.01, 60.0, MOST), (2.0, 10.0, THREADS), (0.5, 15.0, 48)])
def test_room_is_what_can_be_started_in_a_share_of_the_lease(pace: float, lease: float, most: int) -> None:
    pool = starts.Starts(Fake())
    pool._pace = pace
    assert pool.room(lease) == most


# --------------------------------------------------------------------------- for real


def test_many_real_starts_at_once_lose_nothing(tmp_path: Path) -> None:
    """Started one after the other they would take about as long as the lease; in tests/soak there are 600."""
    start_many(tmp_path, tasks=80, lease=20.0)
