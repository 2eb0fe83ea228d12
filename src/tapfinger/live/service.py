"""The coordinator at work: its state machine, its store and its clock. It saves before it tells anyone."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tapfinger.core.contract import Phase, Scheduler
from tapfinger.errors import AgentRefused, ConfigError, NotFound, TooMany, UnknownNameError
from tapfinger.live import tokens
from tapfinger.live.config import LiveConfig
from tapfinger.live.coordinator import Coordinator
from tapfinger.live.deciding import Question
from tapfinger.live.home import hold
from tapfinger.live.insight import Insight
from tapfinger.live.leases import boot_clock
from tapfinger.live.logs import Logs
from tapfinger.live.messages import VERSION, AttemptId, Orders, Report
from tapfinger.live.rounds import Rounds
from tapfinger.live.site import Site
from tapfinger.live.stimuli import Cancel, Decided, Drain, GiveUp, Leases, Stimulus, Submit, Tick
from tapfinger.live.store import Store
from tapfinger.live.tasks import ENDED, Happening, TaskRecord, TaskSpec
from tapfinger.live.thinking import Worker
from tapfinger.live.wire import LogChunk, LogSize

logger = logging.getLogger(__name__)

#: Seconds between something happening and the round it causes: a burst of submissions is decided on together.
SETTLE = 0.02


class Service:
    """One coordinator; used from one thread."""

    def __init__(
        self,
        state: Path,
        site: Site,
        config: LiveConfig,
        scheduler: Scheduler,
        fallback: Scheduler,
        shadows: Mapping[str, Scheduler] | None = None,
    ) -> None:
        """Take up the work that the state directory holds; ``shadows`` are asked and not obeyed."""
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = hold(state, "coordinator; end it first: tapfinger down")
        self.store = Store(state / "store.db")
        self.config = config
        self.site = site
        self.logs = Logs(state / "logs", config.max_log)
        # Wall-clock time that does not jump: leases count differences of it.
        self._offset = time.time() - boot_clock()
        self._senders: dict[str, Callable[[Orders], None]] = {}
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None
        self._thinker = Worker("decisions")
        self._deciding: asyncio.Task[None] | None = None
        self._machine = self._make(scheduler, fallback)
        self.insight = Insight(site, lambda: self._machine, self.store, self.now, self._thinker, shadows or {})
        self.token = self._first_token(state)

    def _make(self, scheduler: Scheduler, fallback: Scheduler) -> Coordinator:
        now = self.now()
        origin = self.store.meta("origin")
        if origin is None:
            origin = now
            self.store.set_meta("origin", origin)
        longest = float(self.store.meta("lease", 0.0))
        slot = max(0, int((now - origin) / self.site.slot_seconds))
        machine = Coordinator(
            self.site,
            Rounds(self.site, scheduler, slot, fallback),
            Leases(self.config.lease_seconds, self.config.grace_seconds),
            self.store.new_epoch(),
            now,
            self.store.unended(),
            self.store.next_id(),
            self.store.meta("drained", []),
            origin,
            longest,
        )
        # From now on leases of this length are given; the next coordinator must wait as long.
        self.store.set_meta("lease", self.config.lease_seconds)
        return machine

    def _first_token(self, state: Path) -> str:
        path = state / "token"
        if path.exists() and tokens.holder(self.store, path.read_text(encoding="ascii").strip()) is not None:
            return path.read_text(encoding="ascii").strip()
        token = tokens.issue(self.store, "first", "operator", None, self.now())
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
        return token

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()
        self._lock.close()

    def now(self) -> float:
        """Seconds since the epoch, never going back."""
        return boot_clock() + self._offset

    # -------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Slots and rounds, until cancelled; ends with an error where only a new coordinator can go on."""
        try:
            while self._broken is None:
                self._act(Tick())
                machine = self._machine
                if (question := machine.ask()) is not None:
                    self._deciding = asyncio.create_task(self._decide(machine, question))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), min(1.0, self.site.slot_seconds))
                    await asyncio.sleep(SETTLE)
                self._wanted.clear()
        finally:
            if self._deciding is not None:
                self._deciding.cancel()  # nobody will be there to hear the answer
        raise self._broken

    async def _decide(self, machine: Coordinator, question: Question) -> None:
        """Let the schedulers think where nobody waits for them; what they answer is checked against what holds then."""
        try:
            began = time.perf_counter()
            answer = await self._thinker.run(question.answer)
            took = time.perf_counter() - began
            if machine is self._machine:  # nobody else has asked that
                self._act(Decided(answer))
            self.insight.decided(question, answer, took)
        except Exception as error:  # schedulers' own are caught: without an answer nothing would ever be asked again
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Only a new coordinator, made from what is on disk, can go on."""
        if self._broken is None:
            self._broken = error
            logger.critical("the coordinator cannot go on", exc_info=error)
            self._wanted.set()

    def _act(self, stimulus: Stimulus) -> tuple[TaskRecord, ...]:
        """Let the machine decide, save, and only then tell anyone."""
        if self._broken is not None:
            raise self._broken
        try:
            instructions = self._machine.handle(stimulus, self.now())
            if instructions.records or instructions.history:
                with self.insight.telemetry.commit.time():
                    self.store.save(instructions.records, instructions.history)
        except (ConfigError, UnknownNameError, NotFound, AgentRefused):
            raise  # refused before anything was changed
        except BaseException as error:
            self._fail(error)  # what the machine believes is not what is on disk
            raise
        self.insight.saw(instructions)
        for line in instructions.history:
            logger.info("%s", _described(line))
        for orders in instructions.orders:
            if (send := self._senders.get(orders.cluster)) is not None:
                send(orders)
        if instructions.history:
            self._announce()
        if self._machine.wants_round:
            self._wanted.set()
        return instructions.records

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, seconds: float) -> None:
        """Wait until something has happened, but no longer than this."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    # --------------------------------------------------------------------- people

    def submit(self, specs: Sequence[TaskSpec], owner: str) -> list[int]:
        """Take these tasks; they are on disk when this returns. A key that was used before gives that task."""
        fresh: list[TaskSpec] = []
        keys: dict[str, int] = {}  # position in fresh
        places: list[tuple[bool, int]] = []  # of each: whether it is new; its position in fresh, or its id
        for spec in specs:
            record = self.store.by_key(owner, spec.key) if spec.key is not None else None
            same = record.spec if record is not None else fresh[keys[spec.key]] if spec.key in keys else None
            if same not in (None, spec):
                raise ConfigError(f"key {spec.key!r} was used for another task; use another key")
            if record is not None:
                places.append((False, record.id))
                continue
            if same is None:
                fresh.append(spec)
                if spec.key is not None:
                    keys[spec.key] = len(fresh) - 1
            places.append((True, len(fresh) - 1 if spec.key is None else keys[spec.key]))
        room = self.config.max_waiting - self._machine.waiting
        if len(fresh) > room:
            raise TooMany(f"{len(fresh)} tasks are more than the {max(0, room)} that may still wait; try again later")
        made = [record.id for record in self._act(Submit(fresh, owner))] if fresh else []
        return [made[place] if new else place for new, place in places]

    def cancel(self, ident: int) -> TaskRecord:
        """End a task, or see to it that it ends; one that has ended stays as it is."""
        record = self.task(ident)
        if record.phase not in ENDED:
            self._act(Cancel(ident))
        return self.task(ident)

    def task(self, ident: int) -> TaskRecord:
        """A task as it is now."""
        record = self.store.task(ident)
        if record is None:
            raise NotFound(f"there is no task {ident}")
        return record

    def tasks(self, phases: Sequence[Phase], limit: int, before: int | None) -> list[TaskRecord]:
        """The latest tasks."""
        return self.store.tasks(phases, limit, before)

    def clusters(self) -> list[dict[str, object]]:
        """Every cluster, for people."""
        return self._machine.clusters(self.now())

    def drain(self, cluster: str, drained: bool) -> None:
        """Let a cluster take no new tasks, or take them again."""
        self._act(Drain(cluster, drained))
        self.store.set_meta("drained", [c["name"] for c in self.clusters() if c["drained"]])

    def give_up(self, cluster: str) -> None:
        """A person says that a silent cluster is gone."""
        self._act(GiveUp(cluster))

    def issue(self, name: str, role: str, cluster: str | None) -> str:
        """A new token."""
        if cluster is not None and cluster not in self.site.index:
            raise NotFound(f"there is no cluster {cluster!r}")
        return tokens.issue(self.store, name, role, cluster, self.now())

    # --------------------------------------------------------------------- agents

    def connect(self, cluster: str, send: Callable[[Orders], None]) -> None:
        """Orders for this cluster go here from now on."""
        self._senders[cluster] = send

    def disconnect(self, cluster: str, send: Callable[[Orders], None]) -> None:
        """That connection is gone; the agent may have another by now."""
        if self._senders.get(cluster) is send:
            del self._senders[cluster]

    def report(self, report: Report) -> None:
        """An agent says what is there."""
        if report.version != VERSION:
            raise AgentRefused(f"the agent speaks version {report.version}, the coordinator {VERSION}; use the same")
        self._act(report)

    def output(self, cluster: str, chunk: LogChunk) -> LogSize:
        """Keep a piece of output, if it is of a task that is or was on that cluster."""
        record = self.store.task(chunk.id[0])
        known = record is not None and 1 <= chunk.id[1] <= record.attempt
        if not known or (record is not None and not self._ran_on(record, chunk.id, cluster)):
            return LogSize(chunk.id, chunk.offset, full=True)
        size = self.logs.add(chunk.id, chunk.offset, chunk.data.encode("latin-1"))
        if chunk.data:
            self._announce()
        return LogSize(chunk.id, size, self.logs.full(chunk.id))

    def _ran_on(self, record: TaskRecord, ident: AttemptId, cluster: str) -> bool:
        if record.attempt_id == ident and record.cluster is not None:
            return record.cluster == cluster
        return any(
            (line.kind, line.attempt, line.cluster) == ("granted", ident[1], cluster)
            for _, line in self.store.history(0, 10_000, record.id)
        )


def _described(line: Happening) -> str:
    plain = replace(line, at=round(line.at, 3))
    parts = [
        f"{name}={value}" for name in ("task", "attempt", "cluster") if (value := getattr(plain, name)) is not None
    ]
    return " ".join([line.kind, *parts, *([f"({line.detail})"] if line.detail else [])])
