"""Carries out the instructions of the agent's state machine, with a backend, devices and a directory."""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from tapfinger.errors import BackendError, ConfigError
from tapfinger.live.agent.devices import Devices, NoRoom, without
from tapfinger.live.agent.leases import boot_clock, read_lease, replace_file, write_lease
from tapfinger.live.agent.machine import (
    Agent,
    AgentInstruction,
    AgentStimulus,
    AgentTick,
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
from tapfinger.live.agent.reports import Following
from tapfinger.live.backends.base import Backend, BackendContext, Run, open_backend
from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import AttemptId, Launch, Outcome, Report, SizeOrder
from tapfinger.live.protocol.wire import CHUNK, LogChunk, LogSize
from tapfinger.live.state_dir import hold, make_directory

logger = logging.getLogger(__name__)
_launches = TypeAdapter(Launch)


@dataclass(slots=True)
class _Kept:
    """A run, and what the agent remembers about it."""

    run: Run
    following: Following
    #: Number of its latest resize.
    size: int = 0
    ended: bool = False
    forgotten: bool = False
    #: Bytes of output that the coordinator has; None until it has told.
    shipped: int | None = None
    #: Whether output was sent that the coordinator has not answered yet.
    asked: bool = False
    #: Whether the coordinator wants no more of its output.
    full: bool = False
    #: Whether to stop it at once, where an order to stop it could not be carried out yet; None: no such order.
    stop_again: bool | None = None
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
    ) -> None:
        """Open the backend and take over the runs of an earlier agent. Only one agent may use the directory."""
        self._directory = context.directory
        self._backend = backend
        make_directory(self._directory / "runs")  # private: it holds the arguments and environments of tasks
        self._lock = hold(self._directory, "agent; stop that one, or use another --state")
        self._devices = devices
        self._clock = clock
        #: Seconds between reports when nothing happens.
        self.beat = beat
        self._lease = context.lease
        self._runs: dict[AttemptId, _Kept] = {}
        try:
            open_backend(backend, context)  # a wrong setting fails now, not with the first task
            name, incarnation = self._register(context.cluster)
            found = self._find()
        except BaseException:
            self._lock.close()
            raise
        self.machine = Agent(context.cluster, name, incarnation, clock(), beat, found, read_lease(self._lease))

    def close(self) -> None:
        """Release the directory; tasks run on."""
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
        for directory in sorted((self._directory / "runs").iterdir()):
            try:
                saved = json.loads((directory / "launch.json").read_text(encoding="utf-8"))
                launch = _launches.validate_python(saved["launch"])
            except (OSError, ValueError, KeyError):
                shutil.rmtree(directory, ignore_errors=True)  # the file is written before the start: nothing runs
                continue
            run = Run(launch, directory, {k: tuple(v) for k, v in saved["devices"].items()}, self._lease)
            size = int(saved.get("size", 0))
            kept = self._runs[run.id] = _Kept(run, Following(run.reports, saved.get("started")), size)
            outcome: Outcome | None = None
            with self._forgiving(kept, "the backend could not say how it is"):
                outcome = self._backend.poll(run)
            kept.ended = outcome is not None
            if outcome is None:
                self._devices.hold(run.devices)
            said = Said(None)
            with self._forgiving(kept, "its reports could not be read"):
                said = kept.following.look(self._clock(), at_once=True) or said
            found.append(Found(run.id, launch.on_disconnect, outcome, size, launch.allocation, said))
            logger.info("found task %d attempt %d: %s", *run.id, outcome or "running")
        return found

    # ----------------------------------------------------------------------- steps

    def step(self, stimulus: AgentStimulus | None = None) -> list[Report]:
        """Poll all runs, handle a stimulus, and carry out the instructions. Returns at most one report to send."""
        ends = {ident: outcome for ident, outcome in self._poll().items() if outcome is not None}
        reports: list[Report] = []
        if said := self._listen(ends):  # before the ends, so that the report of an end has the last progress
            reports = self._do(self.machine.handle(Progressed(said), self._clock()))
        reports += self._do(self.machine.handle(Observed(ends) if ends else AgentTick(), self._clock()))
        if stimulus is not None:
            reports += self._do(self.machine.handle(stimulus, self._clock()))
        # Each report gives the complete state, so only the latest matters.
        return sorted(reports, key=lambda report: report.seq)[-1:]

    def _listen(self, ends: Iterable[AttemptId]) -> dict[AttemptId, Said]:
        """What tasks have reported since the last call. Reports of tasks that have just ended are read completely."""
        over, now = set(ends), self._clock()
        found = {}
        for ident, kept in self._runs.items():
            if ident in over or not kept.ended:
                with self._forgiving(kept, "its reports could not be read"):
                    if (said := kept.following.look(now, at_once=ident in over)) is not None:
                        found[ident] = said
        return found

    def _poll(self) -> dict[AttemptId, Outcome | None]:
        ends: dict[AttemptId, Outcome | None] = {}
        for ident, kept in self._runs.items():
            if not kept.ended:
                if kept.stop_again is not None:
                    self._stop(kept, kept.stop_again)
                ends[ident] = None  # where the backend cannot say, the task may be alive
                with self._forgiving(kept, "the backend could not say how it is"):
                    ends[ident] = self._backend.poll(kept.run)
        for ident, outcome in ends.items():
            if outcome is not None:
                self._runs[ident].ended = True
                self._devices.release(self._runs[ident].run.devices)
                logger.info("task %d attempt %d ended: %s", *ident, outcome)
        return ends

    def _do(self, instructions: list[AgentInstruction]) -> list[Report]:
        reports: list[Report] = []
        for instruction in instructions:
            if isinstance(instruction, Report):
                reports.append(instruction)
            elif isinstance(instruction, HoldLease):
                try:
                    write_lease(self._lease, instruction.until)
                except OSError as error:  # tasks then end with the lease that is written
                    logger.error("the lease could not be written: %s", error)
            elif isinstance(instruction, StartRun):
                reports += self._start(instruction.launch)
            elif isinstance(instruction, StopRun):
                self._stop(self._runs[instruction.id], instruction.at_once)
            elif isinstance(instruction, ResizeRun):
                reports += self._resize(instruction.size)
            elif isinstance(instruction, ForgetRun) and instruction.id in self._runs:
                self._runs[instruction.id].forgotten = True
                self._clean(instruction.id)
        return reports

    def _start(self, launch: Launch) -> list[Report]:
        if gone := [name for name, value in launch.secrets.items() if value is None]:
            reason = f"secret {gone[0]!r} was removed before the task could start; set it again, and submit it again"
            return self._not_started(launch.id, Outcome("failed", 127, reason))
        try:
            devices = self._devices.lease(launch.allocation)
        except NoRoom as error:
            # Not the task's fault: it goes back to the queue.
            return self._not_started(launch.id, Outcome("lost", reason=str(error)))
        run = Run(launch, self._directory / "runs" / f"{launch.id[0]}.{launch.id[1]}", devices, self._lease)
        kept = self._runs[run.id] = _Kept(run, Following(run.reports, time.time()))
        try:
            run.directory.mkdir(exist_ok=True)
            self._keep(run.id)  # on disk before the start: a restarted agent must know every run that may be alive
        except OSError as error:
            return self._not_started(run.id, Outcome("lost", reason=f"the agent cannot write to its disk: {error}"))
        try:
            self._backend.start(run)
        except BackendError as error:
            return self._not_started(run.id, Outcome("failed", 127, str(error)))
        except Exception as error:
            logger.exception("task %d attempt %d: the backend failed to start it", *run.id)
            self._stop(kept, at_once=True)  # whatever of it has started
            reason = f"the backend failed to start it: {type(error).__name__}: {error}"
            return self._not_started(run.id, Outcome("failed", 127, reason))
        kept.run = replace(run, launch=replace(launch, secrets={}))  # the task has them; the agent forgets them
        return []

    def _not_started(self, ident: AttemptId, outcome: Outcome) -> list[Report]:
        """An attempt that ends before it has begun."""
        logger.warning("task %d attempt %d could not start: %s", *ident, outcome.reason)
        if (kept := self._runs.get(ident)) is not None:
            self._devices.release(kept.run.devices)
            kept.ended = True
        return self._do(self.machine.handle(Observed({ident: outcome}), self._clock()))

    def _stop(self, kept: _Kept, at_once: bool) -> None:
        """Stop a task; where that fails, it is tried again at every look."""
        kept.stop_again = at_once
        with self._forgiving(kept, "it could not be stopped"):
            self._backend.stop(kept.run, at_once)
            kept.stop_again = None

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

    def _keep(self, ident: AttemptId) -> None:
        kept = self._runs[ident]
        # Secrets stay out of files; an agent that takes the attempt over does not need them.
        saved = {"launch": asdict(replace(kept.run.launch, secrets={})), "devices": kept.run.devices, "size": kept.size}
        saved["started"] = kept.following.started
        replace_file(kept.run.directory / "launch.json", saved, sync=True)

    def _resize(self, size: SizeOrder) -> list[Report]:
        """Change a task's size. It is on disk before it is confirmed, since other tasks get what it gives back."""
        kept = self._runs[size.id]
        run = kept.run
        try:
            devices = self._devices.change(run.devices, size.allocation)
        except NoRoom as error:
            logger.warning("task %d attempt %d keeps its size: %s", *size.id, error)
        else:
            resized = replace(run, launch=replace(run.launch, allocation=dict(size.allocation)), devices=devices)
            try:
                self._backend.resize(run, size.allocation, devices)
                kept.run = resized
            except Exception as error:  # also what the backend's author did not foresee
                logger.warning("task %d attempt %d keeps its size: %s", *size.id, error)
            before, after = (run, resized) if kept.run is resized else (resized, run)
            self._devices.release(without(before.devices, after.devices))
        kept.size = size.number
        self._keep(size.id)
        told = Resized(size.id, size.number, kept.run.launch.allocation)
        return self._do(self.machine.handle(told, self._clock()))

    def report(self) -> Report:
        """A report of every attempt on this cluster."""
        return self.machine.report(self._clock())

    def stop_all(self) -> bool:
        """Stop every task. Returns whether any is left; call it until none is."""
        left = [i for i, outcome in self._poll().items() if outcome is None]
        for ident in left:
            self._stop(self._runs[ident], at_once=False)
        return bool(left)

    # --------------------------------------------------------------------- output

    def connected(self) -> None:
        """Forget how much output has arrived: after a new connection, the coordinator must be asked again."""
        for kept in self._runs.values():
            kept.shipped, kept.asked = None, False

    def chunks(self) -> list[LogChunk]:
        """Output that the coordinator does not have yet: one piece of each task."""
        chunks: list[LogChunk] = []
        for ident, kept in self._runs.items():
            if kept.full or kept.asked:
                continue
            before = len(chunks)
            if kept.shipped is None:
                chunks.append(LogChunk(ident, 0))
            else:
                with self._forgiving(kept, "its output could not be read"):
                    start, data = Spool(kept.run.output).read(kept.shipped, CHUNK)
                    if data:
                        chunks.append(LogChunk(ident, start, data.decode("latin-1"), start - kept.shipped))
            kept.asked = len(chunks) > before
        return chunks

    def arrived(self, size: LogSize) -> None:
        """Note how much output the coordinator has."""
        kept = self._runs.get(size.id)
        if kept is not None:
            kept.shipped, kept.full, kept.asked = size.size, size.full, False
            self._clean(size.id)

    def _clean(self, ident: AttemptId) -> None:
        """Remove a run if its end is recorded and its output has arrived."""
        kept = self._runs[ident]
        done = kept.full
        try:
            done = done or (kept.shipped is not None and kept.shipped >= Spool(kept.run.output).end)
        except (OSError, ValueError):  # the task has tampered with it: there is nothing to wait for
            done = True
        if kept.forgotten and done:
            del self._runs[ident]
            shutil.rmtree(kept.run.directory, ignore_errors=True)


def capacity_of(clusters: Mapping[str, Mapping[str, float]], name: str) -> Mapping[str, float]:
    """A cluster's capacity from the configuration."""
    if name not in clusters:
        raise ConfigError(f"there is no cluster {name!r}; the configuration has {', '.join(sorted(clusters))}")
    return clusters[name]
