"""Carries out the instructions of the agent's state machine, with a backend, devices and a directory.

A step never waits for long: what a backend or a disk may delay is done in threads (``JobPool``), and only what they
have done is taken up in the agent's loop. All state is changed in that loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tapfinger.core.exchange import EXCHANGE
from tapfinger.errors import ConfigError
from tapfinger.live.agent import files
from tapfinger.live.agent.devices import Devices, NoRoom, without
from tapfinger.live.agent.disk import DiskRules
from tapfinger.live.agent.housekeeping import Housekeeping
from tapfinger.live.agent.job_pool import JobPool, Then
from tapfinger.live.agent.kept import KeptRun, directory_name, find_runs, register
from tapfinger.live.agent.leases import boot_clock, read_lease, write_lease
from tapfinger.live.agent.machine import (
    Agent,
    AgentInstruction,
    AgentStimulus,
    Condition,
    ForgetRun,
    Found,
    HoldLease,
    HostFacts,
    Observed,
    Progressed,
    Resized,
    ResizeRun,
    Said,
    StartRun,
    StopRun,
)
from tapfinger.live.agent.others import OthersWatch
from tapfinger.live.agent.outcomes import sound
from tapfinger.live.agent.output import MOST, PIECES
from tapfinger.live.agent.reports import Following
from tapfinger.live.agent.starts import HANGS, Began, Starts, larger_of, save_run
from tapfinger.live.agent.strays import end_strays
from tapfinger.live.backends.base import Backend, BackendContext, Run, open_backend
from tapfinger.live.protocol.messages import AttemptId, Launch, Outcome, Report, SizeOrder
from tapfinger.live.protocol.wire import FileAnswer, FileRequest, LogChunk, LogSize
from tapfinger.live.state_dir import hold, make_directory

logger = logging.getLogger(__name__)

#: Longest that a step waits for the backend or the disk, in seconds; what takes longer is taken up by a later step.
PATIENCE = 0.25
#: Longest that a step waits for starts, in seconds: many are done by then, and need no step of their own.
START_PATIENCE = 0.05


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
        #: What concerns the disk.
        self.house = Housekeeping(self._directory, rules or DiskRules(), partial(self._stop, at_once=True))
        #: Attempts on their way to a process.
        self.starts = Starts(backend)
        self._workers = JobPool("backend", 1)
        self.others = OthersWatch(backend, context.resources)
        self._looking = self._hangs = False
        #: Seconds after which the backend hangs.
        self.patience = HANGS
        #: Seconds between reports when nothing happens.
        self.beat = beat
        self._lease = context.lease
        self._runs: dict[AttemptId, KeptRun] = {}
        try:
            open_backend(backend, context)  # a wrong setting fails now, not with the first task
            name, incarnation = register(self._directory, context.cluster)
            found = self._find()
        except BaseException as error:
            self._lock.close()
            if isinstance(error, OSError):
                raise ConfigError(f"--state {self._directory} cannot be used: {error}") from None
            raise
        lease, isolates = read_lease(self._lease), getattr(backend, "isolates", None)
        about = HostFacts(context.capacity or None, isolates, EXCHANGE)
        self.machine = Agent(context.cluster, name, incarnation, clock(), beat, found, lease, about)

    def close(self) -> None:
        """Release the directory; tasks run on. Waits a few seconds for what is under way."""
        for workers in (self.starts, self._workers, self.house.workers):
            workers.close()
        self.others.workers.close(0.0)
        self._lock.close()

    def _find(self) -> list[Found]:
        """Take over the runs of an earlier agent."""
        found = []
        runs, useless = find_runs(self._directory, self._lease)
        end_strays(self._directory / "runs", [kept.run.directory.name for kept in runs])
        for directory in useless:
            self.house.remove(directory)
        for kept in runs:
            run, launch = kept.run, kept.run.launch
            self._runs[run.id] = kept
            outcome, said = self._look_at(kept, self._clock(), at_once=True)
            kept.ended = outcome is not None
            if outcome is None:
                self._devices.hold(run.devices)
            found.append(Found(run.id, launch.on_disconnect, outcome, kept.size, launch.allocation, said or Said(None)))
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
        room = self.starts.room(self.machine.lease_length)
        trouble = self.house.trouble or self.starts.trouble or self._mute()
        self.others.step()
        condition = Condition(room, trouble, self.others.amounts)
        reports += self._do(self.machine.handle(condition, self._clock()))
        self.house.tidy(self._runs.values())
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
        return self.starts.busy or self._workers.in_hand > 0 or self.house.workers.in_hand > 0

    def _settle(self) -> list[Report]:
        return [*self._workers.settle(PATIENCE), *self.starts.settle(START_PATIENCE), *self.house.workers.settle(0.0)]

    def _mute(self) -> str:
        """Why nothing is heard of any task, and nothing done to it; empty if that is not so."""
        hangs = bool(self._workers.hanging(self.patience))
        if hangs != self._hangs:
            level, what = (logging.ERROR, "hangs") if hangs else (logging.INFO, "answers again")
            logger.log(level, "the backend %s", what)
            self._hangs = hangs
        return f"its backend hangs: it has said nothing of any task for {self.patience:g} s" if hangs else ""

    def _look(self) -> None:
        """Let a thread look at all runs, unless it still does."""
        if not self._looking:
            self._looking = True
            runs = [kept for kept in self._runs.values() if not kept.ended and kept.starting is None]
            self._workers.do(partial(self._survey_or_say, runs, self._clock()))

    def _survey_or_say(self, runs: Sequence[KeptRun], now: float) -> Then:
        """A survey; after one that has failed, the next one follows all the same."""
        try:
            return self._survey(runs, now)
        except (Exception, SystemExit):
            logger.exception("the tasks could not be looked at; it is tried again")
            return partial(self._surveyed, (), (), self.house.trouble)

    def _survey(self, runs: Sequence[KeptRun], now: float) -> Then:
        """Stop what is to be stopped, and find out how each run is and what it says. Runs in a thread."""
        stopped = [(kept, at_once) for kept in runs if (at_once := kept.stop_again) is not None]
        done = [(kept, at_once) for kept, at_once in stopped if self._stopped(kept, at_once)]
        found = [(kept, *self._look_at(kept, now)) for kept in runs]
        return partial(self._surveyed, done, found, self.house.disk.look())

    def _stopped(self, kept: KeptRun, at_once: bool) -> bool:
        with kept.forgiving("it could not be stopped"):
            self._backend.stop(kept.run, at_once)
            return True
        return False

    def _look_at(self, kept: KeptRun, now: float, at_once: bool = False) -> tuple[Outcome | None, Said | None]:
        """How a run has ended, and what is new in its reports; both None if it runs and says nothing new."""
        outcome: Outcome | None = None  # where the backend cannot say, the task may be alive
        said: Said | None = None
        with kept.forgiving("the backend could not say how it is"):
            outcome = self._backend.poll(kept.run)
        if not at_once:  # else it is an earlier agent's, and tells nothing of now
            self.starts.polled(kept.run.id, outcome)
        with kept.forgiving("its reports could not be read"):  # of one that has ended, completely
            said = kept.following.look(now, at_once or outcome is not None)
        return (None if outcome is None else self.house.told(kept, sound(outcome))), said

    def _surveyed(
        self,
        stopped: Sequence[tuple[KeptRun, bool]],
        found: Sequence[tuple[KeptRun, Outcome | None, Said | None]],
        trouble: str,
    ) -> list[Report]:
        self._looking = False
        self.house.heard(trouble)
        for kept, at_once in stopped:
            if kept.stop_again == at_once:  # else another order has come meanwhile
                kept.stop_again = None
        ends: dict[AttemptId, Outcome] = {}
        for kept, outcome, _ in found:
            if outcome is not None:
                ends[kept.run.id] = outcome
                kept.ended, kept.shipping.next = True, 0.0
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
                reports += self._start_or_lose(instruction.launch)
            elif isinstance(instruction, StopRun):
                reports += self._with(instruction.id, partial(self._stop, at_once=instruction.at_once))
            elif isinstance(instruction, ResizeRun):
                reports += self._with(instruction.size.id, partial(self._resize, size=instruction.size))
            elif isinstance(instruction, ForgetRun) and instruction.id in self._runs:
                self._runs[instruction.id].forgotten = True
                self._clean(instruction.id)
        return reports

    def _with(self, ident: AttemptId, act: Callable[[KeptRun], list[Report]]) -> list[Report]:
        """Do this with a run. One of which nothing is known has never begun: the coordinator must hear of it."""
        if (kept := self._runs.get(ident)) is not None:
            return act(kept)
        return self._not_started(ident, Outcome("lost", reason="its agent knows nothing of it"))

    def _hold_lease(self, until: float) -> None:
        try:
            self.house.disk.refuses = write_lease(self._lease, until)
            self.house.disk.unwritable = ""
        except OSError as error:  # tasks then end with the lease that is written
            self.house.disk.unwritable = str(error)

    # ------------------------------------------------------------------ starts and stops

    def _start_or_lose(self, launch: Launch) -> list[Report]:
        """Start a run. Whatever goes wrong, the instructions after this one are carried out."""
        try:
            return self._start(launch)
        except Exception as error:
            logger.exception("task %d attempt %d could not be started", *launch.id)
            reason = f"its agent could not start it: {type(error).__name__}: {error}"
            return self._not_started(launch.id, Outcome("lost", reason=reason))

    def _start(self, launch: Launch) -> list[Report]:
        self.house.results.disown(launch.id)
        if gone := [name for name, value in launch.secrets.items() if value is None]:
            reason = f"secret {gone[0]!r} was removed before the task could start; set it again, and submit it again"
            return self._not_started(launch.id, Outcome("failed", 127, reason))
        self.house.begins(launch.id)
        began = Began.now()
        try:
            devices = self._devices.lease(launch.allocation)
        except NoRoom as error:
            # Not the task's fault: it goes back to the queue.
            return self._not_started(launch.id, Outcome("lost", reason=str(error)))
        run = Run(launch, self._directory / "runs" / directory_name(launch.id), devices, self._lease)
        kept = self._runs[run.id] = KeptRun(run, Following(run.reports, began))
        kept.starting = self.starts.begin(
            run, partial(save_run, run, 0, began), lambda o: partial(self._started, kept, o)
        )
        return []

    def _started(self, kept: KeptRun, outcome: Outcome | None) -> list[Report]:
        kept.starting = None
        kept.run = replace(kept.run, launch=replace(kept.run.launch, env={}, secrets={}))  # nothing needs them any more
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

    def _stop(self, kept: KeptRun, at_once: bool) -> list[Report]:
        """Stop a task when its runs are next looked at; where that fails, it is tried again at every look.

        One that is being started is stopped as soon as that is over, one that no thread has begun to start at once.
        """
        if kept.starting is not None and self.starts.withdraw(kept.starting):
            return self._not_started(kept.run.id, Outcome("stopped", reason="it had not started"))
        kept.stop_again = at_once or bool(kept.stop_again)
        return []

    def _resize(self, kept: KeptRun, size: SizeOrder) -> list[Report]:
        """Change a task's size, unless it is being started or resized: the coordinator repeats its order."""
        if kept.starting is not None or kept.resizing:
            return []
        kept.resizing = True
        devices: Mapping[str, tuple[int, ...]] | None = None
        try:
            devices = self._devices.change(kept.run.devices, size.allocation)
        except NoRoom as error:
            logger.warning("task %d attempt %d keeps its size: %s", *size.id, error)
        self._workers.do(partial(self._change_size, kept, size, devices))
        return []

    def _change_size(self, kept: KeptRun, size: SizeOrder, devices: Mapping[str, tuple[int, ...]] | None) -> Then:
        """Resize a run, if there are devices for it, and write it down. Runs in a thread."""
        before = after = kept.run
        if devices is not None:
            resized = replace(before, launch=replace(before.launch, allocation=dict(size.allocation)), devices=devices)
            try:
                # Whatever happens meanwhile, a later agent counts all that the task may have.
                save_run(larger_of(before, resized), kept.size, kept.following.began)
                self._backend.resize(before, size.allocation, devices)
                after = resized
            except (Exception, SystemExit) as error:  # also what the backend's author did not foresee
                logger.warning("task %d attempt %d keeps its size: %s", *size.id, error)
                before = resized  # its devices are given back
        saved = False
        with kept.forgiving("its size could not be written down"):
            save_run(after, size.number, kept.following.began)
            saved = True
        return partial(self._size_changed, kept, before, after, size.number if saved else None)

    def _size_changed(self, kept: KeptRun, before: Run, after: Run, number: int | None) -> list[Report]:
        """``number``: None if it is not on disk. Then it is not confirmed, and the coordinator repeats its order."""
        kept.resizing = False
        if kept.ended:
            for run in (before, after):
                self._devices.release(without(run.devices, kept.run.devices))  # the rest was released with its end
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
            with kept.forgiving("its output could not be read"):
                chunk = None if kept.starting is not None else kept.shipping.piece(kept.run, now, len(self._runs))
                if chunk is not None:
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
        """Let go of a run if its end is recorded and its output has arrived."""
        kept = self._runs[ident]
        if kept.forgotten and kept.shipping.complete(kept.run):
            del self._runs[ident]
            self.house.let_go(kept)

    def files(self, request: FileRequest) -> FileAnswer:
        """Part of the files of an attempt. May be called in any thread."""
        return files.answer(request, self.house.results.find(request.id))
