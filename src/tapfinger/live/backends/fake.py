"""A backend that runs nothing: attempts only take some time on a given clock. For tests and dry runs."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tapfinger.errors import LaunchFailed, UnsupportedOperation
from tapfinger.live.backends.base import RAN_OUT, Run
from tapfinger.live.protocol.messages import AttemptId, Launch, Outcome

#: Ended runs of which it remembers how they ended, also when their directories are gone.
REMEMBERED = 300


def by_environment(launch: Launch) -> tuple[float, int]:
    """Seconds and exit code from the task's environment: FAKE_SECONDS and FAKE_CODE. With FAKE_REPORTS, the task also
    reports its progress."""
    return float(launch.env.get("FAKE_SECONDS", "1")), int(launch.env.get("FAKE_CODE", "0"))


def short_of(launch: Launch) -> str:
    """Resource of which a pretended task needs more than it was granted; FAKE_NEEDS=memory=8 is what it needs."""
    name, _, amount = launch.env.get("FAKE_NEEDS", "").partition("=")
    return name if amount and launch.allocation.get(name, 0.0) < float(amount) else ""


@dataclass(slots=True)
class _Pretended:
    run: Run
    began: float
    ends: float
    outcome: Outcome
    #: Latest reported progress.
    said: float = 0.0
    #: Whether its end was told.
    told: bool = False


class Fake:
    """Pretends to run tasks."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        script: Callable[[Launch], tuple[float, int]] = by_environment,
        lease: Callable[[Run], float | None] = lambda _run: None,
        polite: float = 0.0,
        people: Mapping[str, float] | None = None,
    ) -> None:
        """``lease``: when a run's lease ends, None for never. ``polite``: seconds that a polite stop takes.

        ``people``: natural amounts by resource that others pretend to use.
        """
        self.people = people
        self._clock = clock
        self._script = script
        self._lease = lease
        self._polite = polite
        self._runs: dict[AttemptId, _Pretended] = {}
        #: Those whose end was told, the first one first.
        self._told: deque[_Pretended] = deque()

    def start(self, run: Run) -> None:
        """Pretend to start the task; exit code 127 stands for a program that does not exist."""
        seconds, code = self._script(run.launch)
        if code == 127:
            raise LaunchFailed(f"there is no program {run.launch.argv[0]!r}")
        began = self._clock()
        limit, ends = run.launch.time_limit, began + seconds
        outcome = Outcome("failed" if code else "finished", code, output=0)
        if short := short_of(run.launch):
            outcome = Outcome("failed", -9, RAN_OUT.format(name=short), short=short)
        if limit is not None and limit < seconds:
            ends, outcome = began + limit, Outcome("failed", -9, f"it took longer than {limit:g} s")
        self._runs[run.id] = _Pretended(run, began, ends, outcome)

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
        """Accept any size but zero."""
        if not any(allocation.values()):
            raise UnsupportedOperation("a pretended task cannot be paused")
        pretended = self._runs[run.id]
        launch = replace(run.launch, allocation=dict(allocation))
        pretended.run = replace(run, launch=launch, devices=dict(devices))

    def stop(self, run: Run, at_once: bool) -> None:
        """End the task now, or after ``polite`` seconds."""
        pretended = self._runs.get(run.id)
        at = self._clock() + (0.0 if at_once else self._polite)
        if pretended is not None and at < pretended.ends:
            pretended.ends, pretended.outcome = at, Outcome("stopped", -9, "stopped")

    def poll(self, run: Run) -> Outcome | None:
        """The outcome once the task's time is over; ``lost`` for a run that was never started."""
        pretended = self._runs.get(run.id)
        if pretended is None:
            return Outcome("lost", reason="nothing is known of it")
        lease = self._lease(run)
        if run.launch.on_disconnect == "stop" and lease is not None and lease <= min(self._clock(), pretended.ends):
            pretended.ends, pretended.outcome = lease, Outcome("stopped", -9, "the lease ended")
        if "FAKE_REPORTS" in run.launch.env:
            self._report(pretended)
        if self._clock() < pretended.ends:
            return None
        if not pretended.told:
            pretended.told = True
            self._told.append(pretended)
            self._forget()
        return pretended.outcome

    def others(self) -> Mapping[str, float] | None:
        """What others pretend to use."""
        return self.people

    def _forget(self) -> None:
        """Forget ended runs that the agent has forgotten: it asks no more about those without a directory."""
        while len(self._told) > REMEMBERED and not self._told[0].run.directory.exists():
            pretended = self._told.popleft()
            if self._runs.get(pretended.run.id) is pretended:
                del self._runs[pretended.run.id]

    def _report(self, pretended: _Pretended) -> None:
        """Report the share of time that has passed, to the file that a real task would use."""
        now, began, left = self._clock(), pretended.began, pretended.outcome.result != "finished"
        share = min((now - began) / max(pretended.ends - began, 1e-9), 0.99 if left else 1.0)
        if share > pretended.said:
            pretended.said = share
            line = json.dumps({"t": time.time(), "progress": share, "metrics": {"loss": 1.0 - share}})
            pretended.run.make_directories()
            with pretended.run.reports.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def crash(self) -> None:
        """Pretend that the machine goes down with all its tasks."""
        self._runs.clear()
        self._told.clear()

    def alive(self) -> list[Run]:
        """The runs that have not ended."""
        now = self._clock()
        return [p.run for p in list(self._runs.values()) if p.ends > now and self.poll(p.run) is None]
