"""Starts attempts in a few threads: a slow start delays neither the lease nor another start, a hanging one neither."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tapfinger.errors import BackendError, LaunchLost
from tapfinger.live.agent.job_pool import Job, JobPool, Then
from tapfinger.live.agent.leases import boot_clock, boot_id, replace_file
from tapfinger.live.backends.base import LAUNCH, Backend, Run, TooLittle
from tapfinger.live.backends.starting import TOO_LITTLE, is_shortage, shortage
from tapfinger.live.protocol.messages import AttemptId, Outcome, Report

logger = logging.getLogger(__name__)

#: Starts under way at once. More would gain little: most of a start is waiting for the disk, the rest needs a core.
THREADS = 8
#: Most attempts that are accepted and not started yet. The coordinator repeats the rest with its next answer.
MOST = 64
#: Share of the lease within which all accepted attempts should be started.
SHARE = 0.2
#: Seconds after which a start hangs. If all threads hang, what waits behind them is given back.
HANGS = 30.0
#: Seconds without starts after one for which the machine had too little. The next one shows whether it has enough.
REST = 30.0
#: Seconds that this next one must be alive: its supervisor may find the shortage after its start.
TRIAL = 1.0


@dataclass(frozen=True, slots=True)
class Began:
    """When an attempt was accepted: on the clock of the task's reports, and on the clock that never jumps."""

    wall: float
    boot: float
    #: Boot of the machine for which ``boot`` counts.
    boot_id: str

    @classmethod
    def now(cls) -> Began:
        """This moment."""
        return cls(time.time(), boot_clock(), boot_id())


class Starts:
    """Attempts on their way from an order to a process."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        """``backend``: its method ``start`` is called in several threads at once, for different runs."""
        self._backend = backend
        self._workers = JobPool("start", THREADS)
        #: Seconds that a start has taken lately.
        self._pace = 0.05
        #: Seconds after which a start hangs.
        self.patience = HANGS
        self._clock = clock
        #: What the machine lacked lately, and when starts are tried again; empty if it lacks nothing.
        self._lacks, self._again = "", 0.0
        #: The attempt that shows whether it still does, and when it was started; None while there is none.
        self._trial: tuple[AttemptId, float] | None = None

    def begin(self, run: Run, save: Callable[[], None], then: Callable[[Outcome | None], Then]) -> Job:
        """Start a run in a thread. ``save`` writes it to disk first; ``then`` is given the reason if it failed."""

        def work() -> Then:
            began = self._clock()
            outcome = self._start_or_say(run, save)
            self._pace += 0.2 * (self._clock() - began - self._pace)
            if outcome is None and self._lacks and began >= self._again:
                self._trial = run.id, self._clock()
            return then(outcome)

        return self._workers.do(work)

    def _start_or_say(self, run: Run, save: Callable[[], None]) -> Outcome | None:
        """Start a run. Whatever goes wrong is its end: nobody else would notice it."""
        try:
            return self._start(run, save)
        except (Exception, SystemExit) as error:
            logger.exception("task %d attempt %d could not be started", *run.id)
            what = "its agent could not start it"
            if is_shortage(error):
                return self._lost(what, error)
            return Outcome("failed", 127, f"{what}: {type(error).__name__}: {error}")

    def _start(self, run: Run, save: Callable[[], None]) -> Outcome | None:
        try:
            run.make_directories()
            save()  # before the start: a restarted agent must know every run that may be alive
        except (OSError, MemoryError) as error:
            return self._lost("the agent cannot write to its disk", error)
        try:
            self._backend.start(run)
        except LaunchLost as error:
            return Outcome("lost", reason=str(error))
        except BackendError as error:
            return Outcome("failed", 127, str(error))
        except (Exception, SystemExit) as error:
            if not (short := is_shortage(error)):
                logger.exception("task %d attempt %d: the backend failed to start it", *run.id)
            try:
                self._backend.stop(run, at_once=True)  # whatever of it has started
            except Exception:
                logger.exception("task %d attempt %d: nor could what has started be stopped", *run.id)
            if short:
                return self._lost(TOO_LITTLE, error)
            return Outcome("failed", 127, f"the backend failed to start it: {type(error).__name__}: {error}")
        return None

    def _lost(self, what: str, error: BaseException) -> Outcome:
        if lacks := shortage(error):
            self._short(what, lacks)
        return Outcome("lost", reason=f"{what}: {str(error) or type(error).__name__}")

    def _short(self, what: str, lacks: int) -> None:
        # Everybody sees this: it says nothing of the attempt that has met with it.
        self._lacks, self._again = f"{what}: {os.strerror(lacks)}", self._clock() + REST
        self._trial = None

    def polled(self, ident: AttemptId, outcome: Outcome | None) -> None:
        """Hear what the backend says of an attempt: its supervisor too may find that the machine lacks something."""
        if isinstance(outcome, TooLittle):
            self._short(TOO_LITTLE, outcome.lacks)
            return
        trial, began = self._trial or (None, 0.0)
        if ident == trial and (outcome is not None or self._clock() >= began + TRIAL):
            self._lacks, self._trial = "", None

    def room(self, lease: float) -> int:
        """How many more attempts to accept; ``lease``: its length in seconds. 0 until half of that is free again.

        So few messages are needed to start many tasks. After a shortage one attempt comes before the others.
        """
        if self._lacks:
            return 0 if self._workers.in_hand or self._trial is not None else 1
        most = max(THREADS, min(MOST, int(SHARE * lease * THREADS / max(self._pace, 0.001))))
        room = most - self._workers.in_hand
        return room if 2 * room >= most else 0

    def withdraw(self, job: Job) -> bool:
        """Take back an attempt that no thread has begun to start."""
        return self._workers.withdraw(job)

    def hanging(self) -> list[Job]:
        """Starts that hang."""
        return self._workers.hanging(self.patience)

    @property
    def trouble(self) -> str:
        """Why nothing can be started now; empty if something can."""
        if self._workers.stranded:
            return "its machine lets the agent start no thread: there are too many processes, or there is no memory"
        if self._lacks and self._clock() < self._again:
            return f"{self._lacks}; it is tried again {REST:g} s later"
        if len(self.hanging()) < THREADS:
            return ""
        return f"its backend hangs: {THREADS} starts have taken longer than {self.patience:g} s"

    @property
    def busy(self) -> bool:
        """Whether attempts are being started."""
        return self._workers.in_hand > 0

    def settle(self, patience: float) -> list[Report]:
        """Finish what has been started; waits for the rest at most ``patience`` seconds."""
        return self._workers.settle(patience)

    def close(self) -> None:
        """Start nothing more."""
        self._workers.close()


def larger_of(one: Run, other: Run) -> Run:
    """The run with the larger of both allocations. Of devices, one of them has the first ones of the other's."""
    sizes, wanted = one.launch.allocation, other.launch.allocation
    amounts = {name: max(sizes.get(name, 0.0), wanted.get(name, 0.0)) for name in {**sizes, **wanted}}
    devices = {
        name: max(one.devices.get(name, ()), other.devices.get(name, ()), key=len)
        for name in {**one.devices, **other.devices}
    }
    return replace(one, launch=replace(one.launch, allocation=amounts), devices=devices)


def save_run(run: Run, size: int, began: Began | None) -> None:
    """Write down what a later agent must know about a run; on disk when this returns."""
    # Without environment and secrets: nothing needs them after the start.
    launch = asdict(replace(run.launch, env={}, secrets={}))
    saved = {"launch": launch, "devices": run.devices, "size": size}
    saved["began"] = None if began is None else asdict(began)
    replace_file(run.directory / LAUNCH, saved, sync=True)


def load_began(saved: dict[str, Any]) -> Began | None:
    """When a run was accepted, from what was written down; None if that is not known."""
    began = saved.get("began")
    return None if began is None else Began(**began)
