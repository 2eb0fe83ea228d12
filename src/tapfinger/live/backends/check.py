"""What every backend must get right; ``tapfinger.testing.check_backend`` is the way to use it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tapfinger.errors import LaunchFailed, UnsupportedOperation
from tapfinger.live.backends.base import Backend, Run
from tapfinger.live.leases import boot_clock, write_lease
from tapfinger.live.messages import Launch, Outcome

#: Seconds within which a task must have started, or ended once it was told to.
SOON = 20.0

_PROGRAM = "import sys, time; time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"


class _Trial:
    """Makes runs in a directory, and waits for them."""

    def __init__(self, make: Callable[[], Backend], directory: Path, patience: float) -> None:
        self.backend = make()
        self.patience = patience
        self._directory = directory
        self._next = 1
        self.lease = directory / "lease"
        write_lease(self.lease, boot_clock() + 3600.0)

    def run(self, seconds: float, code: int = 0, **more: object) -> Run:
        argv = (sys.executable, "-c", _PROGRAM, str(seconds), str(code))
        env = {"FAKE_SECONDS": str(seconds), "FAKE_CODE": str(code)}
        launch = replace(Launch((self._next, 1), argv, {"cpu": 1.0, "gpu": 0.0}, env), **more)  # type: ignore[arg-type]
        directory = self._directory / f"{self._next}.1"
        directory.mkdir()
        self._next += 1
        return Run(launch, directory, {}, self.lease)

    def start(self, run: Run) -> Run:
        self.backend.start(run)
        return run

    def end(self, run: Run) -> Outcome | None:
        deadline = time.monotonic() + self.patience
        while (outcome := self.backend.poll(run)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return outcome


def faults(make: Callable[[], Backend], directory: Path, outlives: bool, patience: float = SOON) -> Iterator[str]:
    """Everything that is wrong, one after the other."""
    trial = _Trial(make, directory, patience)
    yield from _ends(trial)
    yield from _stops(trial)
    yield from _refusals(trial)
    if outlives:
        yield from _restarts(trial, make)
        yield from _leases(trial)


def _ends(trial: _Trial) -> Iterator[str]:
    for code, result in ((0, "finished"), (3, "failed")):
        run = trial.start(trial.run(0.05, code))
        end = trial.end(run)
        if end is None or (end.result, end.code) != (result, code):
            yield f"a task that exits with {code} must end as {result!r} with that code, got {end}"
        if trial.backend.poll(run) != end:
            yield f"poll must say the same on every call, got {end} and then {trial.backend.poll(run)}"
    end = trial.end(trial.start(trial.run(3600.0, time_limit=0.1)))
    if end is None or end.result != "failed":
        yield f"a task that takes longer than its time limit must fail, got {end}"


def _stops(trial: _Trial) -> Iterator[str]:
    for at_once in (True, False):
        run = trial.start(trial.run(3600.0))
        if (early := trial.backend.poll(run)) is not None:
            yield f"poll must be None while a task runs, got {early}"
        trial.backend.stop(run, at_once)
        trial.backend.stop(run, at_once)
        end = trial.end(run)
        if end is None or end.result != "stopped":
            yield f"after stop(at_once={at_once}) a task must end as 'stopped' within {trial.patience:g} s, got {end}"
        trial.backend.stop(run, True)
        if trial.backend.poll(run) != end:
            yield "stopping what has ended must change nothing"
    run = trial.start(trial.run(0.01, 0))
    before = trial.end(run)
    trial.backend.stop(run, True)
    if trial.backend.poll(run) != before:
        yield f"a task that had ended before it was stopped must keep its outcome {before}, got {trial.end(run)}"


def _refusals(trial: _Trial) -> Iterator[str]:
    missing = trial.run(0.0, 127, argv=("/no/such/program",))
    try:
        end = trial.end(trial.start(missing))
    except LaunchFailed:
        end = Outcome("failed")
    if end is None or end.result != "failed":
        yield f"a program that does not exist must raise LaunchFailed or fail, got {end}"
    never = trial.run(0.0)
    if (end := trial.end(never)) is None or end.result != "lost":
        yield f"a run that was never started must be 'lost', or its task would wait for ever; got {end}"
    run = trial.start(trial.run(3600.0))
    with suppress(UnsupportedOperation):
        trial.backend.resize(run, {"cpu": 2.0, "gpu": 0.0}, {})
    if (end := trial.backend.poll(run)) is not None:
        yield f"resize must leave the task running, or raise UnsupportedOperation; it ended: {end}"
    trial.backend.stop(run, True)
    trial.end(run)


def _restarts(trial: _Trial, make: Callable[[], Backend]) -> Iterator[str]:
    run, brief = trial.start(trial.run(3600.0)), trial.start(trial.run(0.05, 4))
    trial.backend = make()
    if (end := trial.backend.poll(run)) is not None:
        yield f"a new instance must find what its predecessor has started alive, got {end}"
    end = trial.end(brief)
    if end is None or (end.result, end.code) != ("failed", 4):
        yield f"a new instance must find how its predecessor's task ended: failed with 4, got {end}"
    trial.backend.stop(run, True)
    end = trial.end(run)
    if end is None or end.result != "stopped":
        yield f"a new instance must be able to stop what its predecessor has started, got {end}"


def _leases(trial: _Trial) -> Iterator[str]:
    until = boot_clock() + 0.5
    write_lease(trial.lease, until)
    run = trial.start(trial.run(3600.0))
    kept = trial.start(trial.run(3600.0, on_disconnect="keep"))
    end = trial.end(run)
    if end is None or end.result != "stopped":
        yield f"a task must be stopped when the agent's lease ends, though nobody calls stop; got {end}"
    elif boot_clock() < until:
        yield "a task was stopped before the agent's lease ended"
    if (end := trial.backend.poll(kept)) is not None:
        yield f"a task that is to be kept must outlive the lease, got {end}"
    trial.backend.stop(kept, True)
    if trial.end(kept) is None:
        yield "a task that is to be kept must still be stoppable"
