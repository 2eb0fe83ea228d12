"""Carries out the instructions of the agent's state machine, with a backend, devices and a directory.

A step never waits for long: what a backend or a disk may delay is done in threads (``Workers``), and only what they
have done is taken up in the agent's loop. All state is changed in that loop.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import TypeAdapter

from tapfinger.errors import ConfigError
from tapfinger.live.agent import files
from tapfinger.live.agent.devices import Devices, NoRoom, without
from tapfinger.live.agent.disk import MB, DiskRules, DiskWatch, size_of
from tapfinger.live.agent.leases import boot_clock, read_lease, replace_file, write_lease
from tapfinger.live.agent.machine import (
    Agent,
    AgentInstruction,
    AgentStimulus,
    Condition,
    ForgetRun,
    Found,
    HoldLease,
    Observed,
    Progressed,
    Resized,
    ResizeRun,
    Said,
    StartRun,
    StopRun,
)
from tapfinger.live.agent.output import MOST, PIECES, Shipping
from tapfinger.live.agent.reports import Following
from tapfinger.live.agent.results import Results
from tapfinger.live.agent.starts import Began, Starts, load_began, save_run
from tapfinger.live.agent.workers import Job, Then, Workers
from tapfinger.live.backends.base import Backend, BackendContext, Run, open_backend
from tapfinger.live.protocol.messages import AttemptId, Launch, Outcome, Report, SizeOrder
from tapfinger.live.protocol.wire import FileAnswer, FileRequest, LogChunk, LogSize
from tapfinger.live.state_dir import hold, make_directory

logger = logging.getLogger(__name__)
_launches = TypeAdapter(Launch)

#: Longest that a step waits for the backend or the disk, in seconds; what takes longer is taken up by a later step.
PATIENCE = 0.25
#: Longest that a step waits for starts, in seconds: many are done by then, and need no step of their own.
START_PATIENCE = 0.05
#: Seconds between two looks at the files that are kept; on a full disk it is looked at once a second.
TIDY = 30.0


@dataclass(slots=True)
class _Kept:
    """A run, and what the agent remembers about it."""

    run: Run
    following: Following
    #: Number of its latest resize.
    size: int = 0
    #: Its start, while it is being started; the backend is asked nothing about it until then.
    starting: Job | None = None
    #: Whether a resize is under way.
    resizing: bool = False
    ended: bool = False
    forgotten: bool = False
    shipping: Shipping = field(default_factory=Shipping)
    #: Whether to stop it at once, where an order to stop it could not be carried out yet; None: no such order.
    stop_again: bool | None = None
    #: Why it is ended by the agent, whatever the backend will say; empty if it is not.
    verdict: str = ""
    #: What was last logged as wrong with it, so that the log does not repeat it.
    complaint: str = ""


class Host:
    """Runs tasks on one cluster. It does not send or receive messages itself."""

    def __init__(
        self,
        context: BackendContext,
        backend: Backend,
        devices: Devices,
        beat: float,
        clock: Callable[[], float] = boot_clock,
        rules: DiskRules | None = None,
    ) -> None:
        """Open the backend and take over the runs of an earlier agent. Only one agent may use the directory."""
        self._directory = context.directory
        self._backend = backend
        make_directory(self._directory / "runs")  # private: it holds the arguments and environments of tasks
        self._lock = hold(self._directory, "agent; stop that one, or use another --state")
        self._devices = devices
        self._clock = clock
        rules = rules or DiskRules()
        self._results = Results(self._directory, rules)
        self._disk = DiskWatch(self._directory, rules.min_free_mb)
        self._disk_trouble = ""
        #: Attempts on their way to a process.
        self.starts = Starts(backend)
        self._workers = Workers("backend", 1)
        self._tidying = Workers("tidy", 1)
        self._looking = False
        self._next_tidy = 0.0
        #: Seconds between reports when nothing happens.
        self.beat = beat
        self._lease = context.lease
        self._runs: dict[AttemptId, _Kept] = {}
        try:
            open_backend(backend, context)  # a wrong setting fails now, not with the first task
            name, incarnation = self._register(context.cluster)
            found = self._find()
        except BaseException as error:
            self._lock.close()
            if isinstance(error, OSError):
                raise ConfigError(f"--state {self._directory} cannot be used: {error}") from None
            raise
        self.machine = Agent(context.cluster, name, incarnation, clock(), beat, found, read_lease(self._lease))

    def close(self) -> None:
        """Release the directory; tasks run on. Waits a few seconds for what is under way."""
        for workers in (self.starts, self._workers, self._tidying):
            workers.close()
        self._lock.close()

    def _register(self, cluster: str) -> tuple[str, int]:
        path = self._directory / "agent.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = {"name": secrets.token_hex(8), "cluster": cluster, "incarnation": 0}
        if known["cluster"] != cluster:
            raise ConfigError(
                f"{self._directory} belongs to the agent of cluster {known['cluster']!r}, not {cluster!r}"
            )
        known["incarnation"] += 1
        replace_file(path, known, sync=True)
        return known["name"], known["incarnation"]

    def _find(self) -> list[Found]:
        found = []
        for directory in sorted((self._directory / "runs").glob("[0-9]*")):
            try:
                saved = json.loads((directory / "launch.json").read_text(encoding="utf-8"))
                launch = _launches.validate_python(saved["launch"])
                began = load_began(saved)
            except (OSError, ValueError, KeyError, TypeError):
                # The file is written before the start: nothing runs.
                self._tidying.do(partial(self._tidied, partial(self._results.discard, directory)))
                continue
            run = Run(launch, directory, {k: tuple(v) for k, v in saved["devices"].items()}, self._lease)
            size = int(saved.get("size", 0))
            kept = self._runs[run.id] = _Kept(run, Following(run.reports, began), size)
            outcome, said = self._look_at(kept, self._clock(), at_once=True)
            kept.ended = outcome is not None
            if outcome is None:
                self._devices.hold(run.devices)
            found.append(Found(run.id, launch.on_disconnect, outcome, size, launch.allocation, said or Said(None)))
            logger.info("found task %d attempt %d: %s", *run.id, outcome or "running")
        return found

    # ----------------------------------------------------------------------- steps

    def step(self, stimulus: AgentStimulus | None = None) -> list[Report]:
        """Take up what has happened, handle a stimulus, and carry out the instructions; returns at most one report.

        It takes a second at most, whatever backend and disk do.
        """
        self._look()
        reports = self._settle()
        reports += self._end_hanging()
        room, trouble = self.starts.room(self.machine.lease_length), self._disk_trouble or self.starts.trouble
        reports += self._do(self.machine.handle(Condition(room, trouble), self._clock()))
        self._tidy()
        if stimulus is not None:
            reports += self._do(self.machine.handle(stimulus, self._clock()))
            if any(kept.stop_again is not None for kept in self._runs.values()):
                self._look()  # it carries out orders to stop
            reports += self._settle()
        # Each report gives the complete state, so only the latest matters.
        return sorted(reports, key=lambda report: report.seq)[-1:]

    @property
    def busy(self) -> bool:
        """Whether something is under way that a later step will take up."""
        return self.starts.busy or self._workers.in_hand > 0 or self._tidying.in_hand > 0

    def _settle(self) -> list[Report]:
        return [*self._workers.settle(PATIENCE), *self.starts.settle(START_PATIENCE), *self._tidying.settle(0.0)]

    def _look(self) -> None:
        """Let a thread look at all runs, unless it still does."""
        if not self._looking:
            self._looking = True
            runs = [kept for kept in self._runs.values() if not kept.ended and kept.starting is None]
            self._workers.do(partial(self._survey, runs, self._clock()))

    def _survey(self, runs: Sequence[_Kept], now: float) -> Then:
        """Stop what is to be stopped, and find out how each run is and what it says. Runs in a thread."""
        stopped = [(kept, at_once) for kept in runs if (at_once := kept.stop_again) is not None]
        done = [(kept, at_once) for kept, at_once in stopped if self._stopped(kept, at_once)]
        found = [(kept, *self._look_at(kept, now)) for kept in runs]
        return partial(self._surveyed, done, found, self._disk.look())

    def _stopped(self, kept: _Kept, at_once: bool) -> bool:
        with self._forgiving(kept, "it could not be stopped"):
            self._backend.stop(kept.run, at_once)
            return True
        return False

    def _look_at(self, kept: _Kept, now: float, at_once: bool = False) -> tuple[Outcome | None, Said | None]:
        """How a run has ended, and what is new in its reports; both None if it runs and says nothing new."""
        outcome: Outcome | None = None  # where the backend cannot say, the task may be alive
        said: Said | None = None
        with self._forgiving(kept, "the backend could not say how it is"):
            outcome = self._backend.poll(kept.run)
        with self._forgiving(kept, "its reports could not be read"):  # of one that has ended, completely
            said = kept.following.look(now, at_once or outcome is not None)
        return (None if outcome is None else self._told(kept, outcome)), said

    def _told(self, kept: _Kept, outcome: Outcome) -> Outcome:
        if kept.verdict:
            return replace(outcome, result="failed", reason=kept.verdict)
        return self._results.told(kept.run, outcome)

    def _surveyed(
        self,
        stopped: Sequence[tuple[_Kept, bool]],
        found: Sequence[tuple[_Kept, Outcome | None, Said | None]],
        trouble: str,
    ) -> list[Report]:
        self._looking = False
        if trouble != self._disk_trouble:
            logger.log(logging.ERROR if trouble else logging.INFO, "%s", trouble or "the disk is well again")
            self._disk_trouble, self._next_tidy = trouble, 0.0
        for kept, at_once in stopped:
            if kept.stop_again == at_once:  # else another order has come meanwhile
                kept.stop_again = None
        ends: dict[AttemptId, Outcome] = {}
        for kept, outcome, _ in found:
            if outcome is not None:
                ends[kept.run.id] = outcome
                kept.ended = True
                self._devices.release(kept.run.devices)
                logger.info("task %d attempt %d ended: %s", *kept.run.id, outcome)
        reports: list[Report] = []
        # Before the ends, so that the report of an end has the last progress.
        if said := {kept.run.id: news for kept, _, news in found if news is not None}:
            reports = self._do(self.machine.handle(Progressed(said), self._clock()))
        return reports + (self._do(self.machine.handle(Observed(ends), self._clock())) if ends else [])

    def _do(self, instructions: list[AgentInstruction]) -> list[Report]:
        reports: list[Report] = []
        for instruction in instructions:
            if isinstance(instruction, Report):
                reports.append(instruction)
            elif isinstance(instruction, HoldLease):
                self._hold_lease(instruction.until)
            elif isinstance(instruction, StartRun):
                reports += self._start(instruction.launch)
            elif isinstance(instruction, StopRun):
                reports += self._stop(self._runs[instruction.id], instruction.at_once)
            elif isinstance(instruction, ResizeRun):
                self._resize(instruction.size)
            elif isinstance(instruction, ForgetRun) and instruction.id in self._runs:
                self._runs[instruction.id].forgotten = True
                self._clean(instruction.id)
        return reports

    def _hold_lease(self, until: float) -> None:
        try:
            write_lease(self._lease, until)
            self._disk.unwritable = ""
        except OSError as error:  # tasks then end with the lease that is written
            self._disk.unwritable = str(error)

    # ------------------------------------------------------------------ starts and stops

    def _start(self, launch: Launch) -> list[Report]:
        try:
            devices = self._devices.lease(launch.allocation)
        except NoRoom as error:
            # Not the task's fault: it goes back to the queue.
            return self._not_started(launch.id, Outcome("lost", reason=str(error)))
        run = Run(launch, self._directory / "runs" / f"{launch.id[0]}.{launch.id[1]}", devices, self._lease)
        began = Began.now()
        kept = self._runs[run.id] = _Kept(run, Following(run.reports, began))
        kept.starting = self.starts.begin(
            run, partial(save_run, run, 0, began), lambda o: partial(self._started, kept, o)
        )
        return []

    def _started(self, kept: _Kept, outcome: Outcome | None) -> list[Report]:
        kept.starting = None
        return [] if outcome is None else self._not_started(kept.run.id, outcome)

    def _not_started(self, ident: AttemptId, outcome: Outcome) -> list[Report]:
        """An attempt that ends before it has begun."""
        logger.warning("task %d attempt %d has not started: %s", *ident, outcome.reason)
        if (kept := self._runs.get(ident)) is not None:
            self._devices.release(kept.run.devices)
            kept.ended, kept.starting = True, None
        return self._do(self.machine.handle(Observed({ident: outcome}), self._clock()))

    def _end_hanging(self) -> list[Report]:
        """Say which starts hang. If all threads do, give back what waits behind them."""
        hanging, trouble = self.starts.hanging(), self.starts.trouble
        reports: list[Report] = []
        for ident, kept in list(self._runs.items()) if hanging else ():
            if kept.starting in hanging and not kept.complaint:
                kept.complaint = f"its backend has been starting it for {self.starts.patience:g} s"
                logger.error("task %d attempt %d: %s", *ident, kept.complaint)
                said = Progressed({ident: Said(None, faults=(kept.complaint,))})
                reports += self._do(self.machine.handle(said, self._clock()))
            elif kept.starting is not None and trouble and self.starts.withdraw(kept.starting):
                reports += self._not_started(ident, Outcome("lost", reason=trouble))
        return reports

    def _stop(self, kept: _Kept, at_once: bool) -> list[Report]:
        """Stop a task when its runs are next looked at; where that fails, it is tried again at every look.

        One that is being started is stopped as soon as that is over, one that no thread has begun to start at once.
        """
        if kept.starting is not None and self.starts.withdraw(kept.starting):
            return self._not_started(kept.run.id, Outcome("stopped", reason="it had not started"))
        kept.stop_again = at_once or bool(kept.stop_again)
        return []

    @contextmanager
    def _forgiving(self, kept: _Kept, what: str) -> Iterator[None]:
        """Whatever goes wrong with one task is logged, and neither the agent nor another task suffers from it."""
        try:
            yield
        except Exception as error:
            complaint = f"{what}: {type(error).__name__}: {error}"
            if complaint != kept.complaint:
                kept.complaint = complaint
                logger.error("task %d attempt %d: %s", *kept.run.id, complaint)

    def _resize(self, size: SizeOrder) -> None:
        """Change a task's size, unless it is being started or resized: the coordinator repeats its order."""
        kept = self._runs[size.id]
        if kept.starting is not None or kept.resizing:
            return
        kept.resizing = True
        devices: Mapping[str, tuple[int, ...]] | None = None
        try:
            devices = self._devices.change(kept.run.devices, size.allocation)
        except NoRoom as error:
            logger.warning("task %d attempt %d keeps its size: %s", *size.id, error)
        self._workers.do(partial(self._change_size, kept, size, devices))

    def _change_size(self, kept: _Kept, size: SizeOrder, devices: Mapping[str, tuple[int, ...]] | None) -> Then:
        """Resize a run, if there are devices for it, and write it down. Runs in a thread."""
        before = after = kept.run
        if devices is not None:
            resized = replace(before, launch=replace(before.launch, allocation=dict(size.allocation)), devices=devices)
            try:
                self._backend.resize(before, size.allocation, devices)
                after = resized
            except Exception as error:  # also what the backend's author did not foresee
                logger.warning("task %d attempt %d keeps its size: %s", *size.id, error)
                before = resized  # its devices are given back
        saved = False
        with self._forgiving(kept, "its size could not be written down"):
            save_run(after, size.number, kept.following.began)
            saved = True
        return partial(self._size_changed, kept, before, after, size.number if saved else None)

    def _size_changed(self, kept: _Kept, before: Run, after: Run, number: int | None) -> list[Report]:
        """``number``: None if it is not on disk. Then it is not confirmed, and the coordinator repeats its order."""
        kept.resizing = False
        if kept.ended:
            self._devices.release(without(after.devices, kept.run.devices))  # the rest was released with its end
            return []
        self._devices.release(without(before.devices, after.devices))
        kept.run = after
        if number is None:
            return []
        kept.size = number
        return self._do(self.machine.handle(Resized(after.id, number, after.launch.allocation), self._clock()))

    def report(self) -> Report:
        """A report of every attempt on this cluster."""
        return self.machine.report(self._clock())

    def stop_all(self) -> bool:
        """Stop every task. Returns whether any is left; call it until none is. Starts that hang are not waited for."""
        hanging = self.starts.hanging()
        left = [kept for kept in self._runs.values() if not kept.ended and kept.starting not in hanging]
        for kept in left:
            self._stop(kept, at_once=False)
        self._look()
        self._settle()
        return bool(left)

    # --------------------------------------------------------------------- output

    def connected(self) -> None:
        """Forget how much output has arrived: after a new connection, the coordinator must be asked again."""
        for kept in self._runs.values():
            kept.shipping.forget()

    def chunks(self) -> list[LogChunk]:
        """Output that the coordinator does not have yet, a limited amount of it: at most one piece of each task."""
        chunks: list[LogChunk] = []
        room, now = MOST, self._clock()
        for kept in self._runs.values():
            if room <= 0 or len(chunks) >= PIECES:
                break
            with self._forgiving(kept, "its output could not be read"):
                if kept.starting is None and (chunk := kept.shipping.piece(kept.run, now)) is not None:
                    chunks.append(chunk)
                    room -= len(chunk.data)
        return chunks

    def arrived(self, size: LogSize) -> None:
        """Note how much output the coordinator has."""
        kept = self._runs.get(size.id)
        if kept is not None:
            kept.shipping.arrived(size)
            self._clean(size.id)

    # ---------------------------------------------------------------------- files

    def _clean(self, ident: AttemptId) -> None:
        """Let go of a run if its end is recorded and its output has arrived; what it has left is kept for a while."""
        kept = self._runs[ident]
        if kept.forgotten and kept.shipping.complete(kept.run):
            del self._runs[ident]
            discard = partial(self._results.discard, kept.run.directory)
            keep = partial(self._results.keep, kept.run)
            self._tidying.do(partial(self._tidied, discard if kept.verdict else keep))

    def _tidied(self, work: Callable[[], None]) -> Then:
        work()
        return list

    def _tidy(self) -> None:
        """Let a thread remove what is kept for too long, and find who is to blame for a full disk."""
        now = boot_clock()
        if now < self._next_tidy or self._tidying.in_hand:
            return
        full = self._disk.full
        self._next_tidy = now + (1.0 if full else TIDY)
        runs = [kept for kept in self._runs.values() if not kept.ended and kept.starting is None]
        self._tidying.do(partial(self._survey_disk, runs, full))

    def _survey_disk(self, runs: Sequence[_Kept], full: bool) -> Then:
        """Runs in a thread."""
        condemned = [kept for kept in runs if kept.verdict]
        for kept in condemned:  # it ends when its end can be written down, which needs room
            self._results.discard(kept.run.work)
        sizes = {kept.run.id: size_of(kept.run.directory) for kept in runs} if full and not condemned else {}
        blamed = self._disk.blame(sizes)
        self._results.tidy(full and blamed is None and not condemned)
        return partial(self._blame, blamed, 0 if blamed is None else sizes[blamed])

    def _blame(self, ident: AttemptId | None, size: int) -> list[Report]:
        kept = self._runs.get(ident) if ident is not None else None
        if kept is None or kept.ended or not self._disk.full:
            return []
        kept.verdict = (
            f"the disk of its cluster was nearly full, and it had put {size / MB:.0f} MB there, by far the most; its "
            "files were removed"
        )
        logger.error("task %d attempt %d is ended: %s", *kept.run.id, kept.verdict)
        return self._stop(kept, at_once=True)

    def files(self, request: FileRequest) -> FileAnswer:
        """Part of the files of an attempt. May be called in any thread."""
        kept = self._runs.get(request.id)
        work = kept.run.work if kept is not None and kept.run.launch.cwd is None else None
        return files.answer(request, self._results.find(request.id, work))


def capacity_of(clusters: Mapping[str, Mapping[str, float]], name: str) -> Mapping[str, float]:
    """A cluster's capacity from the configuration."""
    if name not in clusters:
        raise ConfigError(f"there is no cluster {name!r}; the configuration has {', '.join(sorted(clusters))}")
    return clusters[name]
