"""Runs a task once under a given allocation, through a backend but without a coordinator, and measures it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tapfinger.errors import BackendError, ConfigError, LaunchFailed
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.leases import boot_clock, read_lease, write_lease
from tapfinger.live.backends.base import Backend, BackendContext, Run, open_backend
from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import Launch, Outcome
from tapfinger.profiling.journal import Result, RunLine
from tapfinger.profiling.load import Load, others_share, read_load
from tapfinger.profiling.reports import read_reports

#: Seconds that a task keeps running if the profiler is killed; then its supervisor ends it.
LEASE = 60.0

#: Shortest and longest time between polls of a run, in seconds: short runs are polled more often, to lose little time.
LEAST_PULSE, MOST_PULSE = 0.002, 0.02

#: Seconds that a task may take to end after it was told to stop.
STOPPING = 30.0

#: Bytes kept from the end of the output of a run that did not finish.
TAIL = 2000

#: Environment variable with the path to which progress is reported.
REPORT = "TAPFINGER_REPORT"


@dataclass(frozen=True)
class Command:
    """The command to run."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)


class TaskRunner:
    """Runs one task at a time, each in its own directory, which is removed afterwards."""

    def __init__(
        self, backend: Backend, context: BackendContext, devices: Devices, command: Command, local: bool
    ) -> None:
        """``local``: tasks run on this machine, so that load and reports can be read."""
        self._backend = backend
        self._directory = directory = context.directory
        self._devices = devices
        self._command = command
        self._local = local
        self._pinned = context.pin
        self._cores = context.resources.enforced_by("cores")
        self._numbers = count(1)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_lease(directory / "lease", boot_clock() + LEASE)
        except OSError as error:
            raise ConfigError(f"{directory} cannot be written: {error.strerror}; choose another --out") from None
        open_backend(backend, context)
        self._clear()

    def close(self) -> None:
        """Close the backend and remove all files."""
        close = getattr(self._backend, "close", None)
        if close is not None:
            close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _clear(self) -> None:
        """End tasks left running by a killed predecessor: they would disturb the measurements."""
        for old in sorted(self._directory.glob("run-*")):
            run = Run(Launch((int(old.name.removeprefix("run-")), 1), (), {}, {}), old, {}, self._directory / "lease")
            self._stop(run)
            shutil.rmtree(old, ignore_errors=True)

    def run(
        self, cell: Mapping[str, float], limit: float, deadline: float, waiting: Callable[[], None]
    ) -> RunLine | None:
        """Run the task to its end; ``waiting`` is called now and then.

        ``limit``: seconds after which the task counts as failed. ``deadline``, on the monotonic clock: the task is then
        stopped, and None is returned. None is also returned if something other than the task ended it.
        """
        number = next(self._numbers)
        directory = self._directory / f"run-{number}"
        launch = Launch(
            (number, 1), tuple(self._command.argv), dict(cell), dict(self._command.env), str(self._command.cwd), limit
        )
        devices = self._devices.lease(cell)
        run = Run(launch, directory, devices, self._directory / "lease")
        run.make_directories()
        if self._local:
            launch.env[REPORT] = str(run.reports.resolve())
        cores = devices.get(self._cores, ()) if self._local and self._pinned else ()
        try:
            before, began = read_load(cores), time.time()
            try:
                outcome = self._follow(run, deadline, waiting)
            except LaunchFailed as error:
                outcome = Outcome("failed", 127, str(error))
            after = read_load(cores)
            if outcome is None or outcome.result == "stopped":
                return None
            return self._line(run, outcome, before, after, began, len(cores))
        except BaseException:
            self._stop(run)
            raise
        finally:
            self._devices.release(devices)
            shutil.rmtree(directory, ignore_errors=True)

    def _follow(self, run: Run, deadline: float, waiting: Callable[[], None]) -> Outcome | None:
        self._renew()
        try:
            self._backend.start(run)
        except OSError as error:  # of a machine that lacks something
            raise LaunchFailed(f"run {run.id[0]} could not be started: {error}") from None
        begun = time.monotonic()
        while (outcome := self._backend.poll(run)) is None:
            now = time.monotonic()
            if now > deadline:
                self._stop(run)
                return None
            self._renew()
            waiting()
            time.sleep(min(MOST_PULSE, max(LEAST_PULSE, (now - begun) / 100.0)))
        return outcome

    def _renew(self) -> None:
        if read_lease(self._directory / "lease") < boot_clock() + LEASE / 2:
            write_lease(self._directory / "lease", boot_clock() + LEASE)

    def _stop(self, run: Run) -> None:
        """Stop a run and wait for its end."""
        if not run.directory.exists():
            return
        patience = time.monotonic() + STOPPING
        self._backend.stop(run, at_once=True)
        while self._backend.poll(run) is None:
            if time.monotonic() > patience:
                raise BackendError(f"the task in {run.directory} does not end although it was told to; end it by hand")
            time.sleep(MOST_PULSE)

    def _line(self, run: Run, outcome: Outcome, before: Load, after: Load, began: float, cores: int) -> RunLine:
        started, seconds = _measured(run, began, after.at - before.at)
        said = read_reports(run.reports, started)
        result, reason = _result(run, outcome, seconds)
        if result == "finished" and not said.done:
            result, reason = "unfinished", f"it exited with 0, but its last reported progress was {said.progress:g}"
        return RunLine(
            cell=dict(run.launch.allocation),
            result=result,
            seconds=round(seconds, 6),
            code=outcome.code,
            reason=reason,
            others=_rounded(others_share(before, after, cores)),
            started=round(started, 3),
            progress=said.progress,
            faults=said.faults,
            curve=said.curve,
            tail="" if result == "finished" else _tail(run),
        )


def _measured(run: Run, began: float, passed: float) -> tuple[float, float]:
    """When the task itself began, and how long it took, without the time that its supervisor needed to start.

    Supervisors write files just before they start the task and when it has ended. These are wrong if the machine's
    clock was set in between; then the time measured here is used, which is a little longer.
    """
    first = next((run.directory / name for name in ("pid.json", "begun") if (run.directory / name).exists()), None)
    end = run.directory / "end.json"
    if first is None or not end.exists():
        return began, passed
    start = first.stat().st_mtime
    seconds = end.stat().st_mtime - start
    if not 0.0 < seconds <= passed + 0.05 or passed - seconds > 0.5 + 0.5 * passed:
        return began, passed
    return start, seconds


def _result(run: Run, outcome: Outcome, seconds: float) -> tuple[Result, str]:
    if outcome.result == "finished":
        return "finished", ""
    limit = run.launch.time_limit
    if outcome.result == "failed" and limit is not None and seconds >= limit:
        return "limit", outcome.reason or f"it took longer than {limit:g} s"
    return "failed", outcome.reason or f"it exited with {outcome.code}"


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _tail(run: Run) -> str:
    spool = Spool(run.output)
    parts, at = [], max(0, spool.end - TAIL)
    while data := spool.read(at, TAIL):
        start, text = data
        if not text:
            break
        parts.append(text)
        at = start + len(text)
    return b"".join(parts).decode(errors="replace")[-TAIL:]
