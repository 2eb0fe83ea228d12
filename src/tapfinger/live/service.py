"""The coordinator at work: its state machine, its store and its clock. It saves before it tells anyone.

Where several share a store, one leads and has a state machine; the others stand by, and answer from the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tapfinger.core.contract import Phase, Scheduler
from tapfinger.errors import (
    AgentRefused,
    ConfigError,
    NotFound,
    NotLeading,
    StoreUnavailable,
    TooMany,
    UnknownNameError,
)
from tapfinger.live import standby, tokens
from tapfinger.live.audit import Audit
from tapfinger.live.backends.environment import refused_names
from tapfinger.live.commits import Change, Commits
from tapfinger.live.config import LiveConfig
from tapfinger.live.coordinator import Coordinator
from tapfinger.live.deciding import Question
from tapfinger.live.home import hold, make_directory
from tapfinger.live.insight import Insight
from tapfinger.live.learning import Digest, Learning
from tapfinger.live.leases import boot_clock
from tapfinger.live.lines import log_happening
from tapfinger.live.logs import Logs, Output, StoredLogs
from tapfinger.live.messages import VERSION, AttemptId, Report
from tapfinger.live.rounds import Rounds
from tapfinger.live.site import Site
from tapfinger.live.stimuli import Cancel, Decided, Drain, GiveUp, Instructions, Leases, Stimulus, Submit, Tick
from tapfinger.live.store import Piece, Store
from tapfinger.live.stores.leadership import TERM
from tapfinger.live.study import Study
from tapfinger.live.tasks import TaskRecord, TaskSpec
from tapfinger.live.thinking import Worker
from tapfinger.live.wire import LogChunk, LogSize, Message, Refusal

logger = logging.getLogger(__name__)

#: Seconds between something happening and the round it causes: a burst of submissions is decided on together.
SETTLE = 0.02
#: Seconds between looks of a coordinator that stands by at who leads and what has happened.
LOOK = 0.3


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
        """Take up the work that the store holds; where several share it, whoever ``run`` finds can.

        ``shadows`` are asked and not obeyed.
        """
        make_directory(state)
        self._lock = hold(state, "coordinator; end it first: tapfinger down")
        self.store = Store(config.store or state / "store.db")
        self.config = config
        self.site = site
        self.audit = Audit(state / "audit.jsonl")
        self._files = None if self.store.shared else Logs(state / "logs", config.max_log)
        self.logs: Output = self._files or StoredLogs(self.store)
        self._state = state
        self._schedulers = scheduler, fallback
        #: Where others find this coordinator, once it listens.
        self.url = ""
        #: The first token, where this coordinator has made it.
        self.token = ""
        # Wall-clock time that does not jump: leases count differences of it.
        self._offset = time.time() - boot_clock()
        self._senders: dict[str, Callable[[Message], None]] = {}
        self._unsaved: dict[tuple[str, str], TaskRecord] = {}  # by owner and key
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None
        self._leading: Coordinator | None = None
        self._leader = ""
        self._seen = 0
        self._thinker = Worker("decisions")
        self._deciding: asyncio.Task[None] | None = None
        site.learn = config.learn
        self.learning = Learning(site, config.doubt)
        self._study = Study(self.learning, self._thinker, self.now)
        self.insight = Insight(
            site, lambda: self._machine, self.store, self.now, self._thinker, shadows or {}, self.learning
        )
        self._commits = Commits(self.store, self._fail, self.insight.telemetry.commit.observe)
        if not self.store.shared:
            self._leading = self._take_over()

    @property
    def _machine(self) -> Coordinator:
        """The state machine, which only a leader has; whatever would change something needs it."""
        if self._broken is not None:
            raise self._broken
        if self._leading is None:
            raise NotLeading(self._leader)
        return self._leading

    @property
    def role(self) -> str:
        """What this coordinator does now."""
        return "standby" if self._leading is None else "leader"

    @property
    def leader(self) -> str:
        """Address of the one that leads, if any is known."""
        return self._leader if self._leading is None else self.url

    def _take_over(self) -> Coordinator | None:
        """Lead if nobody else does."""
        epoch = self.store.lead(self.url)
        if epoch is None:
            return None
        machine = self._make(epoch)
        self.site.believe(self._study.take_up(self.store).revised, anew=True)
        self.insight.take_up()
        self.token = self._first_token(self._state)
        return machine

    def _make(self, epoch: int) -> Coordinator:
        now = self.now()
        origin = self.store.meta("origin")
        if origin is None:
            origin = now
            self.store.set_meta("origin", origin)
        longest = max(self.config.lease_seconds, float(self.store.meta("lease", 0.0)))
        if self.store.shared:
            longest += TERM  # a predecessor may have answered reports until then
        slot = max(0, int((now - origin) / self.site.slot_seconds))
        scheduler, fallback = self._schedulers
        machine = Coordinator(
            self.site,
            Rounds(self.site, scheduler, slot, fallback),
            Leases(self.config.lease_seconds, self.config.grace_seconds),
            epoch,
            now,
            self.store.unended(),
            self.store.next_id(),
            self.store.meta("drained", []),
            origin,
            longest,
        )
        machine.progress.learner = self.learning
        # From now on leases of this length are given; the next coordinator must wait as long.
        self.store.set_meta("lease", self.config.lease_seconds)
        return machine

    def _first_token(self, state: Path) -> str:
        path = state / "token"
        if path.exists() and self._valid(path.read_text(encoding="ascii")):
            return path.read_text(encoding="ascii").strip()
        if self.store.shared and any(token.name == "first" for token in self.store.tokens()):
            return ""  # another coordinator has made it, and it lies in the state directory of that one
        path.unlink(missing_ok=True)
        token = tokens.issue(self.store, "first", "operator", None, self.now())
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
        return token

    def _valid(self, token: str) -> bool:
        return tokens.holder(self.store, token.strip(), self.now()) is not None

    def close(self) -> None:
        """Let go of the store."""
        self._commits.close()
        if self._leading is not None and self._broken is None:
            self._study.close(self.store)
        self.store.close()
        self.audit.close()
        self._lock.close()

    def now(self) -> float:
        """Seconds since the epoch, never going back."""
        return boot_clock() + self._offset

    # -------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Slots and rounds, until cancelled; ends with an error where only a new coordinator can go on."""
        keeper = asyncio.create_task(self._keep_term())
        try:
            while self._broken is None:
                if self._leading is None:
                    await self._stand_by()
                    continue
                with suppress(NotLeading):
                    self._act(Tick())
                    self._ask()
                    self._study.look(partial(self._learnt, self._machine), self._fail)
                with suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it forgets a cancellation that comes with what is waited for.
                    async with asyncio.timeout(min(1.0, self.site.slot_seconds)):
                        await self._wanted.wait()
                    await asyncio.sleep(SETTLE)
                self._wanted.clear()
        finally:
            keeper.cancel()
            if self._deciding is not None:
                self._deciding.cancel()  # nobody will be there to hear the answer
        raise self._broken

    def _ask(self) -> None:
        """Let the schedulers think where nobody waits for them, if there is something to decide."""
        machine = self._machine
        if (question := machine.ask()) is not None:
            self._deciding = asyncio.create_task(self._decide(machine, question))

    async def _decide(self, machine: Coordinator, question: Question) -> None:
        """What they answer is checked against what holds then; of what a deposed leader has asked nothing holds."""
        try:
            began = time.perf_counter()
            answer = await self._thinker.run(question.answer)
            took = time.perf_counter() - began
            if machine is self._leading:
                self._act(Decided(answer))
                self.insight.decided(question, answer, took)
        except NotLeading:
            pass  # noted where it was found out
        except Exception as error:  # schedulers' own are caught: without an answer nothing would ever be asked again
            self._fail(error)

    def _learnt(self, machine: Coordinator, found: Digest) -> None:
        """Tasks are believed to be faster or slower; what a deposed leader has learnt is learnt anew."""
        if machine is self._leading:
            self.site.believe(found.revised)
            told = Instructions(history=found.happenings)
            self._commits.put(Change(history=found.happenings, learned=found.learned), partial(self._tell, told))

    async def _keep_term(self) -> None:
        """Go on leading while nothing is saved; a coordinator that is stuck does not, and another takes over."""
        while self.store.shared:
            await asyncio.sleep(TERM / 4)
            if 0.0 < self.store.leads_until < boot_clock() + 0.8 * TERM:
                try:
                    await asyncio.to_thread(self.store.renew)
                except (NotLeading, StoreUnavailable) as error:
                    self._fail(error)

    async def _stand_by(self) -> None:
        # What was being saved when this coordinator stopped leading must not go on under a new epoch of its own.
        await asyncio.to_thread(self._commits.close)
        try:
            machine = await asyncio.to_thread(self._look)
        except (NotLeading, StoreUnavailable) as error:
            logger.warning("standing by: %s", error)
            await asyncio.sleep(LOOK)
        except BaseException as error:
            self._fail(error)
        else:
            if machine is None:
                seen, self._seen = self._seen, self.store.last_line()
                if seen != self._seen:
                    self._announce()
                await asyncio.sleep(LOOK)
                return
            self._commits = Commits(self.store, self._fail, self.insight.telemetry.commit.observe)
            self._leading = machine
            logger.warning("this coordinator leads from now on, epoch %d", machine.epoch)

    def _look(self) -> Coordinator | None:
        """Who leads? Takes over where nobody does. Runs in a thread: a store may have much to take up."""
        leader = self.store.leader()
        self._leader = "" if leader is None or leader.gone else leader.url
        return self._take_over() if leader is None or leader.gone else None

    def _fail(self, error: BaseException) -> None:
        """What the machine believes is not what is in the store. Only a new one, made from that, can go on."""
        if self.store.shared and isinstance(error, NotLeading | StoreUnavailable):
            if self._leading is not None:
                logger.warning("this coordinator leads no longer: %s", error)
            self._leader = getattr(error, "leader", "")
            self.store.stand_down()
            self._leading = None
            for send in self._senders.values():
                send(Refusal(str(error), standby=True, leader=self._leader))
        elif self._broken is None:
            self._broken = error
            logger.critical("the coordinator cannot go on", exc_info=error)
        self._commits.stop(error)
        self._unsaved.clear()
        self._wanted.set()

    def _act(self, stimulus: Stimulus) -> tuple[TaskRecord, ...]:
        """Let the machine decide, save, and only then tell anyone; what it returns is saved when a flush has ended."""
        machine = self._machine
        machine.leads_until = self.store.leads_until + self._offset
        try:
            instructions = machine.handle(stimulus, self.now())
        except (ConfigError, UnknownNameError, NotFound, AgentRefused):
            raise  # refused before anything was changed
        except BaseException as error:
            self._fail(error)
            raise
        meta = {}
        if any(line.kind in standby.LINKS for line in instructions.history):
            clusters = machine.clusters(self.now())
            meta = {"links": standby.links(clusters), "drained": [c["name"] for c in clusters if c["drained"]]}
        self._commits.put(Change(instructions.records, instructions.history, meta), partial(self._tell, instructions))
        if machine.wants_round:
            self._wanted.set()
        return instructions.records

    def _tell(self, instructions: Instructions) -> None:
        self.insight.saw(instructions)
        if logger.isEnabledFor(logging.INFO):
            for line in instructions.history:
                log_happening(logger, line)
        for orders in instructions.orders:
            if (send := self._senders.get(orders.cluster)) is not None:
                send(orders)
        if instructions.history:
            self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, seconds: float) -> None:
        """Wait until something has happened, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # --------------------------------------------------------------------- people

    async def submit(self, specs: Sequence[TaskSpec], owner: str) -> list[int]:
        """Take these tasks; they are on disk when this returns. A key that was used before gives that task."""
        for spec in specs:
            if refused := refused_names(spec.env, self.config.env_names):
                raise ConfigError(
                    f"variable {refused[0]!r} may not be set; this site allows {', '.join(self.config.env_names)}"
                )
        room = self.config.max_waiting - self._machine.waiting
        known = self._known(owner, [spec.key for spec in specs if spec.key is not None])
        fresh: list[TaskSpec] = []
        keys: dict[str, int] = {}  # position in fresh
        places: list[tuple[bool, int]] = []  # of each: whether it is new; its position in fresh, or its id
        for spec in specs:
            record = known.get(spec.key) if spec.key is not None else None
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
        if len(fresh) > room:
            raise TooMany(f"{len(fresh)} tasks are more than the {max(0, room)} that may still wait; try again later")
        made = self._act(Submit(fresh, owner)) if fresh else ()
        unsaved = {(owner, record.spec.key): record for record in made if record.spec.key is not None}
        self._unsaved |= unsaved
        await self._commits.flush()
        for pair in unsaved:
            self._unsaved.pop(pair, None)
        return [made[place].id if new else place for new, place in places]

    def _known(self, owner: str, keys: Sequence[str]) -> dict[str, TaskRecord]:
        """Tasks that were submitted under these keys, also those that are not on disk yet."""
        unsaved = {key: self._unsaved[owner, key] for key in keys if (owner, key) in self._unsaved}
        return self.store.by_keys(owner, [key for key in keys if key not in unsaved]) | unsaved

    async def cancel(self, ident: int) -> TaskRecord:
        """End a task, or see to it that it ends; one that has ended stays as it is."""
        if ident in self._machine.tasks:
            self._act(Cancel(ident))
        await self._commits.flush()
        return self.task(ident)

    def task(self, ident: int) -> TaskRecord:
        """A task as it is now."""
        record = self.store.task(ident)
        if record is None:
            raise NotFound(f"there is no task {ident}")
        return self._fresh(record)

    def _fresh(self, record: TaskRecord) -> TaskRecord:
        """With what the task has said since it was saved last."""
        running = None if self._leading is None else self._leading.tasks.get(record.id)
        if running is not None and running.attempt == record.attempt:
            record.progress, record.metrics = running.progress, running.metrics
        return record

    @property
    def heard(self) -> int:
        """Rises when tasks say how far they are."""
        return 0 if self._leading is None else self._leading.progress.count

    def progress(self) -> list[dict[str, object]]:
        """How far running tasks are, of those that say so."""
        running = () if self._leading is None else self._leading.tasks.values()
        return [
            {"task": r.id, "attempt": r.attempt, "progress": r.progress, "metrics": r.metrics}
            for r in running
            if r.progress is not None
        ]

    def tasks(self, phases: Sequence[Phase], limit: int, before: int | None) -> list[TaskRecord]:
        """The latest tasks."""
        return [self._fresh(record) for record in self.store.tasks(phases, limit, before)]

    def clusters(self) -> list[dict[str, object]]:
        """Every cluster, for people."""
        return standby.clusters(self.site, self.store) if self._leading is None else self._leading.clusters(self.now())

    async def drain(self, cluster: str, drained: bool) -> None:
        """Let a cluster take no new tasks, or take them again."""
        self._act(Drain(cluster, drained))
        await self._commits.flush()

    async def give_up(self, cluster: str) -> None:
        """A person says that a silent cluster is gone."""
        self._act(GiveUp(cluster))
        await self._commits.flush()

    def issue(self, name: str, role: str, cluster: str | None, lasts: float | None = None) -> str:
        """A new token; ``lasts``: seconds, None for ever."""
        if self._leading is None:
            raise NotLeading(self._leader)
        if cluster is not None and cluster not in self.site.index:
            raise NotFound(f"there is no cluster {cluster!r}")
        return tokens.issue(self.store, name, role, cluster, self.now(), lasts)

    def revoke(self, name: str) -> None:
        """A token that works no more."""
        if not self.store.remove_token(name):
            raise NotFound(f"there is no token of the name {name!r}")

    # --------------------------------------------------------------------- agents

    def connect(self, cluster: str, send: Callable[[Message], None]) -> None:
        """Orders for this cluster go here from now on."""
        if self._leading is None:
            raise NotLeading(self._leader)
        self._senders[cluster] = send

    def disconnect(self, cluster: str, send: Callable[[Message], None]) -> None:
        """That connection is gone; the agent may have another by now."""
        if self._senders.get(cluster) is send:
            del self._senders[cluster]

    def report(self, report: Report) -> None:
        """An agent says what is there."""
        if report.version != VERSION:
            raise AgentRefused(f"the agent speaks version {report.version}, the coordinator {VERSION}; use the same")
        heard = self.heard
        self._act(report)
        if heard != self.heard:
            self._announce()

    def output(self, cluster: str, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        """Keep a piece of output, if it is of a task that is or was on that cluster; ``answer`` once it is kept."""
        record = self.store.task(chunk.id[0])
        known = record is not None and 1 <= chunk.id[1] <= record.attempt
        if not known or (record is not None and not self._ran_on(record, chunk.id, cluster)):
            answer(LogSize(chunk.id, chunk.offset, full=True))
            return
        data, change = chunk.data.encode("latin-1"), Change()
        if self._files is not None:
            self._files.add(chunk.id, chunk.offset, data, chunk.skipped)
        elif data:
            change = Change(output=[Piece(chunk.id, chunk.offset, data, self.config.max_log, chunk.skipped)])
        self._commits.put(change, partial(self._kept, chunk, answer))

    def _kept(self, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        answer(LogSize(chunk.id, self.logs.size(chunk.id)))
        if chunk.data:
            self._announce()

    def _ran_on(self, record: TaskRecord, ident: AttemptId, cluster: str) -> bool:
        if record.attempt_id == ident and record.cluster is not None:
            return record.cluster == cluster
        return any(
            (line.kind, line.attempt, line.cluster) == ("granted", ident[1], cluster)
            for _, line in self.store.history(0, 10_000, record.id)
        )
