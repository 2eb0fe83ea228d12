"""The checks that every backend must pass; use them through ``tapfinger.testing.check_backend``."""

from __future__ import annotations

import fcntl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tapfinger.errors import BackendError, LaunchFailed, UnsupportedOperation
from tapfinger.live.agent.leases import boot_clock, write_lease
from tapfinger.live.agent.others import checked_others
from tapfinger.live.backends.base import Backend, BackendContext, Run, open_backend
from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import Launch, Outcome

#: Seconds within which a task must start, or end after an order to stop.
SOON = 20.0
#: Starts that are under way at once in one of the checks.
STARTS = 4

_SLEEPS = "import sys, time; time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"
_SHOWS = """
import os, sys
names = ("TAPFINGER_TASK", "TAPFINGER_ATTEMPT", "TAPFINGER_CPUS", "MINE", "HIDDEN")
print("seen", *(os.environ.get(name) for name in names), os.getcwd())
print("error", file=sys.stderr)
"""
# It holds a lock for as long as it lives: its process number would mean nothing outside of a sandbox.
_FORKS = """
import fcntl, os, sys, time
if os.fork() == 0:
    os.setsid()
    file = open(sys.argv[1] + ".part", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(3600)
"""


class _Trial:
    """Makes runs in a directory and waits for them."""

    def __init__(self, make: Callable[[], Backend], directory: Path, patience: float) -> None:
        self._make = make
        self.patience = patience
        self._context = BackendContext(directory.resolve(), "check", {"cpu": 8.0, "gpu": 0.0}, stop_seconds=1.0)
        #: Those of the site.
        self.resources = self._context.resources
        self._started: list[Run] = []
        self._next = 1
        self.lease = self._context.lease
        write_lease(self.lease, boot_clock() + 3600.0)
        self.renew()

    def renew(self) -> None:
        """Make a new backend instance, as after a restart of the agent."""
        self.backend = self._make()
        open_backend(self.backend, self._context)

    def run(self, seconds: float, code: int = 0, **more: object) -> Run:
        """A task that sleeps and then exits with a code; ``more``: fields of its launch."""
        argv = (sys.executable, "-c", _SLEEPS, str(seconds), str(code))
        env = {"FAKE_SECONDS": str(seconds), "FAKE_CODE": str(code)}
        launch = replace(Launch((self._next, 1), argv, {"cpu": 1.0, "gpu": 0.0}, env), **more)  # type: ignore[arg-type]
        directory = self._context.directory / f"{self._next}.1"
        directory.mkdir()
        self._next += 1
        return Run(launch, directory, {}, self.lease)

    def start(self, run: Run) -> Run:
        self._started.append(run)
        self.backend.start(run)
        return run

    def end(self, run: Run) -> Outcome | None:
        """Wait for the outcome of a run; None if it takes too long."""
        deadline = time.monotonic() + self.patience
        while (outcome := self.backend.poll(run)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return outcome

    def got(self, end: Outcome | None) -> str:
        """What poll has returned, as text."""
        return f"poll() said {end}" if end is not None else f"poll() still said None after {self.patience:g} s"

    def clear(self) -> None:
        """Leave no task running, whatever went wrong."""
        for run in self._started:
            with suppress(Exception):
                self.backend.stop(run, at_once=True)


def faults(make: Callable[[], Backend], directory: Path, outlives: bool, patience: float = SOON) -> Iterator[str]:
    """Each fault of the backend, one after the other. ``outlives``: tasks must survive the agent."""
    trial = _Trial(make, directory, patience)
    try:
        yield from _ends(trial)
        yield from _stops(trial)
        yield from _refusals(trial)
        yield from _threads(trial)
        yield from _others(trial)
        if outlives:
            yield from _shows(trial)
            yield from _trees(trial)
            yield from _restarts(trial)
            yield from _leases(trial)
    finally:
        trial.clear()


def _ends(trial: _Trial) -> Iterator[str]:
    for code, result in ((0, "finished"), (3, "failed")):
        run = trial.start(trial.run(0.05, code))
        end = trial.end(run)
        if end is None or (end.result, end.code) != (result, code):
            yield f"a task that exits with {code} must end as {result!r} with that code; {trial.got(end)}"
        if (again := trial.backend.poll(run)) != end:
            yield f"poll must say the same on every call, so keep the outcome; it said {end} and then {again}"
    end = trial.end(trial.start(trial.run(3600.0, time_limit=0.1)))
    if end is None or end.result != "failed":
        yield (
            "a task that takes longer than launch.time_limit (0.1 s) must be killed and end as 'failed'; "
            f"{trial.got(end)}"
        )


def _stops(trial: _Trial) -> Iterator[str]:
    for at_once in (True, False):
        run = trial.start(trial.run(3600.0))
        if (early := trial.backend.poll(run)) is not None:
            yield f"poll must say None while a task runs; right after start it said {early}"
        trial.backend.stop(run, at_once)
        trial.backend.stop(run, at_once)
        end = trial.end(run)
        if end is None or end.result != "stopped":
            yield f"after stop(run, at_once={at_once}) a task must end as 'stopped'; {trial.got(end)}"
        trial.backend.stop(run, True)
        if (again := trial.backend.poll(run)) != end:
            yield f"stopping a task that has ended must change nothing; poll said {end} before and {again} after"
    run = trial.start(trial.run(0.01, 0))
    before = trial.end(run)
    trial.backend.stop(run, True)
    if (after := trial.backend.poll(run)) != before:
        yield f"a task that had ended before it was stopped must keep its outcome {before}, got {after}"


def _refusals(trial: _Trial) -> Iterator[str]:
    missing = trial.run(0.0, 127, argv=("/no/such/program",))
    try:
        end = trial.end(trial.start(missing))
    except LaunchFailed:
        end = Outcome("failed")
    if end is None or end.result != "failed":
        yield f"a program that does not exist must make start raise LaunchFailed, or end as 'failed'; {trial.got(end)}"
    never = trial.run(0.0)
    if (end := trial.end(never)) is None or end.result != "lost":
        yield (
            "a run that was never started must end as 'lost' (an agent may die between writing a run down and "
            f"starting it, and its task would wait for ever); {trial.got(end)}"
        )
    run = trial.start(trial.run(3600.0))
    try:
        trial.backend.resize(run, {"cpu": 2.0, "gpu": 0.0}, {})
    except UnsupportedOperation:
        pass
    except (BackendError, NotImplementedError) as error:
        yield f"resize must work or raise UnsupportedOperation, and it raised {type(error).__name__}: {error}"
    if (end := trial.backend.poll(run)) is not None:
        yield f"resize must leave the task running, whether it works or not; afterwards poll() said {end}"
    trial.backend.stop(run, True)
    trial.end(run)


def _threads(trial: _Trial) -> Iterator[str]:
    """Check that several runs can be started at once, each in a thread of its own."""
    runs = [trial.run(0.05, code) for code in range(STARTS)]
    raised: list[Exception] = []

    def start(run: Run) -> None:
        try:
            trial.start(run)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=start, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rule = "start must work in several threads at once, for different runs"
    for error in raised:
        yield f"{rule}; it raised {type(error).__name__}: {error}"
    for code, run in enumerate(runs):
        end = trial.end(run) if not raised else Outcome("failed", code)
        if end is None or end.code != code:
            yield f"{rule}; the one that exits with {code} must end with that code; {trial.got(end)}"


def _others(trial: _Trial) -> Iterator[str]:
    """Check what others use, if the backend says it."""
    ask = getattr(trial.backend, "others", None)
    if ask is None:
        return
    try:
        for _ in range(2):  # the first answer may be that it is not known yet
            checked_others(ask(), trial.resources.names)
    except Exception as error:
        yield f"others() must return natural amounts by resource, or None: {type(error).__name__}: {error}"


def _shows(trial: _Trial) -> Iterator[str]:
    """Check the environment and the output of a task."""
    place = trial.lease.parent / "place"
    place.mkdir()
    argv, own = (sys.executable, "-c", _SHOWS), {"MINE": "a b"}
    run = trial.run(0.0, argv=argv, env=own, secrets={"HIDDEN": "c"}, cwd=str(place))
    end = trial.end(trial.start(run))
    spool = Spool(run.output)
    text = spool.read(0, 10_000)[1].decode(errors="replace")
    wanted = f"seen {run.id[0]} 1 1 a b c {place}"
    if wanted not in text.splitlines():
        yield (
            "a task must run in launch.cwd, with launch.env, launch.secrets and what live/backends/environment.py "
            f"gives it, and run.output must hold what it prints: the line {wanted!r} was expected, got {text!r}; "
            f"{trial.got(end)}"
        )
    elif "error" not in text:
        yield f"run.output must hold standard error as well as standard output, got {text!r}"
    elif end is not None and end.output != spool.end:
        yield f"Outcome.output must be the bytes in run.output, {spool.end}, got {end.output}; the rest would get lost"


def _trees(trial: _Trial) -> Iterator[str]:
    """Check that processes started by a task end with it, even in a session of their own."""
    note = trial.lease.parent / "grandchild"
    run = trial.start(trial.run(0.0, argv=(sys.executable, "-c", _FORKS, str(note))))
    deadline = time.monotonic() + trial.patience
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    trial.backend.stop(run, True)
    end = trial.end(run)
    if note.exists() and _locked(note):
        yield (
            "a process that the task had started in a session of its own lives on after "
            f"{trial.got(end)}; stop must reach the whole tree before poll says that it has ended"
        )


def _locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _restarts(trial: _Trial) -> Iterator[str]:
    run, brief = trial.start(trial.run(3600.0)), trial.start(trial.run(0.05, 4))
    trial.renew()
    if (end := trial.backend.poll(run)) is not None:
        yield f"a new instance must find alive what an earlier one has started (keep notes in run.directory), got {end}"
    end = trial.end(brief)
    if end is None or (end.result, end.code) != ("failed", 4):
        yield f"a new instance must find how an earlier one's task ended: 'failed' with 4; {trial.got(end)}"
    trial.backend.stop(run, True)
    end = trial.end(run)
    if end is None or end.result != "stopped":
        yield f"a new instance must be able to stop what an earlier one has started; {trial.got(end)}"


def _leases(trial: _Trial) -> Iterator[str]:
    until = boot_clock() + 0.5
    write_lease(trial.lease, until)
    run = trial.start(trial.run(3600.0))
    kept = trial.start(trial.run(3600.0, on_disconnect="keep"))
    end = trial.end(run)
    if end is None or end.result != "stopped":
        yield (
            "a task must end as 'stopped' when the agent's lease ends (run.lease_left() is 0), though nobody calls "
            f"stop; {trial.got(end)}"
        )
    elif boot_clock() < until:
        yield "a task was stopped before the agent's lease ended"
    if (end := trial.backend.poll(kept)) is not None:
        yield f"a task with on_disconnect = 'keep' must outlive the lease, got {end}"
    trial.backend.stop(kept, True)
    if trial.end(kept) is None:
        yield "a task with on_disconnect = 'keep' must still end after stop"
