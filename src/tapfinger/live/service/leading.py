"""The running coordinator: its state machine, store and clock. It saves every change before it tells anyone.

If several coordinators share a store, one leads and has a state machine; the standbys answer from the store.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tapfinger.core.contract import Scheduler
from tapfinger.errors import (
    AgentRefused,
    ConfigError,
    NotFound,
    NotLeading,
    StoreFailed,
    StoreUnavailable,
    TapfingerError,
    UnknownNameError,
)
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.config import LiveConfig
from tapfinger.live.coordinator.decisions import Decider, RoundQuestion
from tapfinger.live.coordinator.group_commit import Change, Commits
from tapfinger.live.coordinator.inputs import (
    Decided,
    Instructions,
    Stimulus,
    Tick,
)
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.coordinator.site import Site
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.hub import Insight
from tapfinger.live.insight.learning import Digest, Learning
from tapfinger.live.insight.reasons import HOLDING
from tapfinger.live.insight.shadow import Shadows
from tapfinger.live.logging_setup import log_event
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import CLUSTERS, Granted, LiveEvent, OlderStore
from tapfinger.live.protocol.messages import Orders
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.protocol.wire import Message, Refusal
from tapfinger.live.service import standby
from tapfinger.live.service.deciding import Deciding
from tapfinger.live.service.earlier_tasks import EarlierTasks
from tapfinger.live.service.given_secrets import GivenSecrets
from tapfinger.live.service.learning_loop import LearningLoop
from tapfinger.live.service.loop_bridge import Announcer, LoopBridge
from tapfinger.live.service.loop_lag import LoopLag
from tapfinger.live.service.proposals import ProposalDesk, inferring
from tapfinger.live.service.retention_loop import RetentionLoop
from tapfinger.live.service.secret_orders import with_secrets
from tapfinger.live.service.starting_over import FAULT, Suspects, starts_over
from tapfinger.live.service.taking_over import Kept, make_machine, take_epoch
from tapfinger.live.store import tokens
from tapfinger.live.store.leadership import TERM
from tapfinger.live.store.store import LAST_ID, NEEDS, OLDER

logger = logging.getLogger(__name__)

#: Seconds between an event and the round that it causes, so that a burst of submissions is decided in one round.
SETTLE = 0.02
#: Seconds between two turns of the loop beyond which the coordinator has stood still; usually it is one at most.
PAUSE = 5.0
#: Seconds to let agents report after that; in this time they connect again.
HEARING = 3.0
#: Seconds between a standby's checks of the leader and the history.
LOOK = 0.3


class Leading:
    """The loops of one coordinator. Other threads reach them by ``bridge``. ``Service`` adds people and agents."""

    def __init__(
        self,
        state: Path,
        site: Site,
        config: LiveConfig,
        scheduler: Scheduler,
        fallback: Scheduler,
        shadows: Mapping[str, Scheduler] | None = None,
    ) -> None:
        """Restore the work in the store and lead. With a shared store, ``run`` decides later whether to lead.

        ``shadows``: schedulers that are asked, but whose decisions are never executed.
        """
        self._senders: dict[str, Callable[[Message], None]] = {}
        self.bridge = LoopBridge()
        #: Asks agents for proposals; idle with central inference.
        self.proposals = ProposalDesk(
            site.index, self._senders, self.bridge.tell, config.inference_seconds, config.decide_seconds / 2
        )
        if config.inference == "agents":
            inferring(scheduler).infer_by(self.proposals)
        self.kept = Kept(state, config)
        self.store = self.kept.store
        self.config = config
        self.site = site
        self._state = state
        #: What is wrong although the coordinator goes on: a name for each fault, and what to tell people.
        self.faults: dict[str, str] = {}
        self._deciders = Decider(scheduler), Decider(fallback)
        #: Address of this coordinator; empty until it listens.
        self.url = ""
        #: The first token, if this coordinator knows it.
        self.token = ""
        # Wall-clock time that never jumps: leases are differences of it.
        self._offset = time.time() - boot_clock()
        self._bulk = asyncio.Lock()
        self._earlier = EarlierTasks(self.store)
        self._given = GivenSecrets(self.store)
        self._wanted = asyncio.Event()
        self.changes = Announcer()
        #: Each is called, in any thread, with the name of a token that is void from now on.
        self.on_void: list[Callable[[str], None]] = []
        self._broken: BaseException | None = None
        self._suspects = Suspects()
        self._leading: Coordinator | None = None
        self._leader = ""
        self._seen = 0
        #: When the loop last came round; 0 before the first time.
        self._awake = 0.0
        self._decision_thread = Worker("decisions")
        self._deciding: asyncio.Task[None] | None = None
        self._schedulers = Deciding(self._deciders, config.decide_seconds, self.now, self.faults, self._decision_thread)
        site.learn = config.learn
        self.learning = Learning(site, config.doubt)
        self._learning_loop = LearningLoop(self.learning, Worker("learning"), self.now)
        self.insight = Insight(
            site,
            lambda: self._machine,
            self.store,
            self.now,
            self._decision_thread,
            Shadows(shadows or {}, config.decide_seconds, self.now),
            self.learning,
            self.faults,
        )
        self._lateness = LoopLag(self.insight.telemetry.loop_lag.observe)
        self.insight.telemetry.longest_lag.set_function(self._lateness.longest)
        self._commits = Commits(self.store, self._fail, self.insight.telemetry.commit.observe)
        self.retention = RetentionLoop(self.kept.retention(config, self.now), lambda: self._leading is not None)
        if not self.store.shared:
            self._leading = self._take_over()

    @property
    def _machine(self) -> Coordinator:
        """The state machine, which only the leader has; every change needs it."""
        if self._broken is not None:
            raise self._broken
        if self._leading is None:
            raise NotLeading(self._leader)
        return self._leading

    @property
    def failure(self) -> str:
        """What has ended this coordinator, if it was foreseen."""
        return str(self._broken) if isinstance(self._broken, TapfingerError) else ""

    @property
    def role(self) -> str:
        """``leader`` or ``standby``."""
        return "standby" if self._leading is None else "leader"

    @property
    def leader(self) -> str:
        """Address of the leader; empty if unknown."""
        return self._leader if self._leading is None else self.url

    def _take_over(self) -> Coordinator | None:
        """Lead, unless another coordinator does."""
        epoch = take_epoch(self.store, self._state, self.url)
        if epoch is None:
            return None
        self._schedulers.forget()
        self.insight.shadows.forget()
        machine = make_machine(self.store, self.site, self.config, self._deciders, epoch, self.now())
        machine.progress.learner = self.learning
        self.site.believe(self._learning_loop.take_up(self.store).revised, forget=True)
        self.insight.take_up()
        self.token = tokens.first(self.store, self._state, self.now())
        return machine

    def close(self) -> None:
        """Save what is left to save, and close the store."""
        self._senders.clear()  # connections that close from now on are no news
        self._schedulers.close()
        self.insight.shadows.close()
        self._commits.close()
        self._earlier.close()
        self.retention.close()
        if self._leading is not None and self._broken is None:
            self._learning_loop.close(self.store)
        self.kept.close()

    def now(self) -> float:
        """Seconds since the epoch; never goes back."""
        return boot_clock() + self._offset

    # -------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Run slots and rounds until cancelled. Raises an error that only a new coordinator can recover from."""
        self.bridge.bind()
        others = (self._keep_term(), self._lateness.watch(), self.retention.run(self._fail))
        beside = [asyncio.create_task(one) for one in others]
        try:
            while self._broken is None:
                if self._leading is None:
                    self._awake = 0.0
                    await self._stand_by()
                    continue
                await self._hear_first()
                if FAULT in self.faults and self._suspects.calm(self.now()):
                    del self.faults[FAULT]
                with suppress(NotLeading, StoreUnavailable):
                    self._act(Tick())
                    self._note_hold(self._machine.held_for)
                    self._ask()
                    self._learning_loop.look(partial(self._learnt, self._machine), self._fail)
                with suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the event.
                    async with asyncio.timeout(self._nap()):
                        await self._wanted.wait()
                    await asyncio.sleep(SETTLE)
                self._wanted.clear()
        finally:
            for one in beside:
                one.cancel()
            if self._deciding is not None:
                self._deciding.cancel()  # nobody will use the answer
        raise self._broken

    def _note_hold(self, why: str) -> None:
        if why:
            self.faults[HOLDING] = why
        else:
            self.faults.pop(HOLDING, None)

    def _nap(self) -> float:
        """Seconds until the next tick if nothing happens: a slot, a second, or until a task has rested."""
        due = math.inf if self._leading is None else self._leading.next_due - self.now()
        return max(0.0, min(1.0, self.site.slot_seconds, due))

    async def _hear_first(self) -> None:
        """After a pause of its own (the machine slept, the process was stopped) let agents report before leases end.

        Their reports wait, and what they say has ended must not be run again.
        """
        stood = self.now() - self._awake
        if stood > PAUSE and self._awake:
            logger.warning("this coordinator stood still for %.0f s; it hears its agents before it goes on", stood)
            await asyncio.sleep(HEARING)
        self._awake = self.now()

    def _ask(self) -> None:
        """Start a decision on the decision thread, if there is something to decide."""
        machine = self._machine
        if (question := machine.ask()) is not None:
            self._deciding = asyncio.create_task(self._decide(machine, question))

    async def _decide(self, machine: Coordinator, question: RoundQuestion) -> None:
        """Put a question to the schedulers. The answer is dropped if this coordinator has stopped leading meanwhile."""
        try:
            began = time.perf_counter()
            answer = await self._schedulers.answer(question)
            took = time.perf_counter() - began
            if self.config.inference == "agents":
                self.proposals.show(self.faults)
            if machine is self._leading:
                self._act(Decided(answer))
                self._aside(partial(self.insight.decided, question, answer, took))
        except (NotLeading, StoreUnavailable):
            pass  # already handled where it was found out
        except Exception as error:  # not a scheduler's: those are caught. Without an answer, no question could follow
            self._fail(error)

    def _learnt(self, machine: Coordinator, found: Digest) -> None:
        """Use and save new beliefs. They are dropped if this coordinator has stopped leading meanwhile."""
        if machine is self._leading:
            self.site.believe(found.revised)
            told = Instructions(history=found.events)
            self._commits.put(Change(history=found.events, learned=found.learned), partial(self._tell, told))

    async def _keep_term(self) -> None:
        """Renew the term while nothing is saved. A coordinator that is stuck does not, so another one takes over."""
        while self.store.shared:
            await asyncio.sleep(TERM / 4)
            if 0.0 < self.store.leads_until < boot_clock() + 0.8 * TERM:
                try:
                    await asyncio.to_thread(self.store.renew)
                except Exception as error:  # also one that nobody foresaw: without this loop the term would lapse
                    self._fail(error)

    async def _stand_by(self) -> None:
        # A save that was under way when this coordinator stopped leading must not end in a later epoch of its own.
        await asyncio.to_thread(self._commits.close)
        try:
            machine = await asyncio.to_thread(self._look)
            seen, self._seen = self._seen, self.store.last_line()
        except (NotLeading, StoreUnavailable) as error:
            logger.warning("standing by: %s", error)
            if isinstance(error, StoreUnavailable):
                self.faults["store"] = str(error)
            await asyncio.sleep(LOOK)
        except Exception as error:
            self._fail(error)
        else:
            self.faults.pop("store", None)
            if machine is None:
                if seen != self._seen:
                    self.changes.announce()
                await asyncio.sleep(LOOK)
                return
            self._commits = Commits(self.store, self._fail, self.insight.telemetry.commit.observe)
            self._leading = machine
            logger.warning("this coordinator leads from now on, epoch %d", machine.epoch)

    def _look(self) -> Coordinator | None:
        """Check who leads, and take over if nobody does. Runs in a thread: restoring a large store takes time."""
        leader = self.store.leader()
        self._leader = "" if leader is None or leader.gone else leader.url
        return self._take_over() if leader is None or leader.gone else None

    def _fail(self, error: BaseException) -> None:
        """Stop using the machine, which no longer matches the store. Only a new machine, made from it, can go on."""
        if self.store.shared and isinstance(error, NotLeading | StoreUnavailable):
            if self._leading is not None:
                logger.warning("this coordinator leads no longer: %s", error)
            self._leader = getattr(error, "leader", "")
            if isinstance(error, StoreUnavailable):
                self.faults["store"] = str(error)
            self._leave(error)
        elif self._broken is None:
            self._broken = error
            foreseen = isinstance(error, TapfingerError)  # its message says it all
            logger.critical("the coordinator cannot go on: %s", error, exc_info=None if foreseen else error)
        self._commits.stop(error)
        self._earlier.clear()
        self._given.clear()
        self._wanted.set()

    def _start_over(self, stimulus: Stimulus, error: Exception) -> None:
        """Leave the machine, which an error that nobody foresaw may have left half changed; make a new one."""
        kind = type(stimulus).__name__
        logger.critical("an error that nobody foresaw, in a %s: %s", kind, error, exc_info=error)
        if not self._suspects.note(stimulus, self.now()):
            self._fail(error)
            return
        self.faults[FAULT] = f"an error that nobody foresaw, in a {kind}; the coordinator started over from its store"
        over = starts_over()
        self._leave(over)
        self._commits.stop(over)
        self._earlier.clear()
        self._given.clear()
        self._wanted.set()

    def _leave(self, why: TapfingerError) -> None:
        """Lead no longer; the loop leads again when it can."""
        self.store.stand_down()
        self._leading = None
        if self.store.shared:  # another coordinator may be faster
            for send in self._senders.values():
                send(Refusal(str(why), standby=True, leader=self._leader))

    def _act(self, stimulus: Stimulus) -> tuple[TaskRecord, ...]:
        """Handle a stimulus, save, and only then tell anyone. The returned records are on disk after a flush."""
        machine = self._machine
        self._suspects.check(stimulus, self.now())
        machine.leads_until = self.store.leads_until + self._offset
        try:
            instructions = machine.handle(stimulus, self.now())
            change = self._changed(machine, instructions)
        except (ConfigError, UnknownNameError, NotFound, AgentRefused):
            raise  # refused before anything has changed
        except (NotLeading, StoreUnavailable, StoreFailed) as error:
            self._fail(error)
            raise
        except Exception as error:
            self._start_over(stimulus, error)
            raise starts_over() from error
        self._commits.put(change, partial(self._tell, instructions))
        if machine.wants_round:
            self._wanted.set()
        return instructions.records

    def _changed(self, machine: Coordinator, instructions: Instructions) -> Change:
        """What must be saved before anyone is told."""
        meta: dict[str, Any] = {}
        if any(isinstance(line, CLUSTERS) for line in instructions.history):
            clusters = machine.clusters(self.now())
            meta = {"links": standby.links(clusters), "drained": [c["name"] for c in clusters if c["drained"]]}
        if instructions.epoch is not None:
            meta["epoch"] = instructions.epoch
        if instructions.holding is not None:
            meta[OLDER] = "" if instructions.holding else None
        if instructions.last_id is not None:
            meta[LAST_ID] = instructions.last_id
        if instructions.needs is not None:
            meta[NEEDS] = instructions.needs
        for line in instructions.history:
            self._prepare(line)
        return Change(instructions.records, instructions.history, meta)

    def _prepare(self, line: LiveEvent) -> None:
        if isinstance(line, OlderStore):
            logger.warning(words.sentence(line))
        elif isinstance(line, Granted) and self.kept.files is not None and line.task and line.attempt:
            self.kept.files.discard((line.task, line.attempt))

    def _tell(self, instructions: Instructions) -> None:
        self._aside(partial(self.insight.saw, instructions))
        if logger.isEnabledFor(logging.INFO):
            for line in instructions.history:
                log_event(logger, line)
        for orders in instructions.orders:
            if (send := self._senders.get(orders.cluster)) is not None:
                tasks = {} if self._leading is None else self._leading.tasks
                self._aside(partial(self._order, send, orders, tasks), "orders were not sent; each report asks again")
        if instructions.history:
            self.changes.announce()

    def _order(self, send: Callable[[Message], None], orders: Orders, tasks: Mapping[int, TaskRecord]) -> None:
        send(with_secrets(orders, tasks, self.store.secrets))

    def _aside(self, work: Callable[[], None], failed: str = "insight failed; tasks are not affected") -> None:
        """Do something that may fail by itself: only the store may stop a coordinator."""
        try:
            work()
        except Exception:
            logger.exception(failed)

    async def change(self, seconds: float, seen: int) -> None:
        """Wait until there are more ``changes`` than ``seen``, at most this many seconds. For any loop."""
        await self.changes.wait(seconds, seen)
