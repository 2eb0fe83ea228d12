"""A round as a question that can be answered elsewhere: on a copy of the state, by the session of the simulator.

Whoever asks goes on meanwhile. The answer is checked against what holds when it comes back (``Rounds.settle``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapfinger.core.contract import (
    Decision,
    Placement,
    Resize,
    Scheduler,
    SchedulerContext,
    Snapshot,
)
from tapfinger.core.events import Command, Event, StartTask
from tapfinger.core.feasibility import can_start, check_amounts
from tapfinger.core.model import Resources, TaskType
from tapfinger.core.session import Session, SlotOutcome
from tapfinger.core.state import EdgeState
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.live.coordinator.resizing import larger
from tapfinger.profiles.belief_wrapper import Retold

logger = logging.getLogger(__name__)


class Elsewhere:
    """Events come from agents at any time, and commands are collected at once: a slot's end brings neither.

    It brings what tasks have reported of their progress meanwhile.
    """

    exhausted = False

    def __init__(self) -> None:
        """Nothing was reported yet."""
        self.reports: dict[int, float] = {}

    def begin(self) -> list[Event]:
        """Nothing holds before the first slot."""
        return []

    def run_slot(self, slot: int, commands: list[Command]) -> SlotOutcome:
        """Nothing happens by itself."""
        if commands:
            raise AssertionError(f"slot {slot}: {len(commands)} commands were not collected")
        reports, self.reports = self.reports, {}
        return SlotOutcome(progress=reports)


class Decider(SchedulerWrapper):
    """A scheduler whose resizes take their time.

    What a task is to give back is free only when its agent has confirmed it, in a later round. So placements and growth
    that need it are left out for now, and so are resizes of tasks that keep the size they start with.
    """

    def __init__(self, scheduler: Scheduler, name: str = "") -> None:
        """``name``: what people call it."""
        super().__init__(scheduler)
        self.name = name or self.name
        #: As it was last told of them.
        self._types: dict[str, TaskType] = {}
        self._retold = Retold()
        self._odds_hold = False
        self._resizable: frozenset[int] = frozenset()
        self._sizes: dict[int, Resources] = {}

    def know(self, context: SchedulerContext) -> None:
        """Begin anew if there are task types that it has not heard of; hear of those that are believed otherwise."""
        types = {t.name: t for t in context.task_types}
        if self._types.keys() != types.keys():
            self.reset(context)
            self._odds_hold = False
        elif any(self._types[name] is not t for name, t in types.items()):
            self.learn(context)
        self._types = types

    def begin(self, resizable: frozenset[int]) -> dict[int, Resources]:
        """A new round; what is returned fills with the sizes that running tasks are to get."""
        self._resizable, self._sizes = resizable, {}
        return self._sizes

    def decide(self, snapshot: Snapshot) -> Decision:
        """What fits as things are."""
        before = self._left_to_others
        # Whoever uses it without telling it of types leaves them as they are.
        decision = self.inner.decide(self._retold.show(snapshot, self._types) if self._types else snapshot)
        self._odds_hold = self._left_to_others == before
        if not decision.resizes:
            return decision
        free = list(snapshot.free)
        kept: list[Placement] = []
        for placement in decision.placements:
            if placement.allocation.fits(free[placement.cluster]):
                free[placement.cluster] = free[placement.cluster] - placement.allocation
                kept.append(placement)
        return Decision(tuple(kept), tuple(self._grow(decision.resizes, snapshot, free)), decision.lost)

    def _grow(self, resizes: Iterable[Resize], snapshot: Snapshot, free: list[Resources]) -> Iterator[Resize]:
        """Note the sizes that are possible, and give what must be debited for them now."""
        held = {task.id: task for task in snapshot.running()}
        for resize in resizes:
            task = held.get(resize.task)
            if task is None or task.id not in self._resizable or task.cluster is None or task.allocation is None:
                continue
            check_amounts(task.id, task.type, resize.allocation)
            if resize.allocation.none:
                continue  # nobody can pause a process that computes
            top = larger(task.allocation, resize.allocation)
            if (top - task.allocation).fits(free[task.cluster]):
                free[task.cluster] = free[task.cluster] - (top - task.allocation)
                self._sizes[task.id] = resize.allocation
                if top != task.allocation:
                    yield Resize(task.id, top)

    @property
    def _left_to_others(self) -> int:
        """How often the scheduler has let another decide, if it counts that: its probabilities mean nothing then."""
        return self.counters.get("fallbacks", 0) + self.counters.get("crowded", 0)

    def odds(self) -> Mapping[tuple[int, int], float]:
        """(task, cluster) -> the probability that the scheduler gave it in its last turn, where it can say.

        To be called where it decides, or while it does not.
        """
        explain: Any = getattr(self.inner, "explain", None)
        if explain is None or not self._odds_hold:
            return {}
        try:
            agents = explain(top=1).agents
            return {(o.task, agent.cluster): float(o.probability) for agent in agents for o in agent.options}
        except Exception:  # it may be anyone's scheduler; what it cannot say is left out
            logger.exception("scheduler %s could not explain itself", self.name)
            return {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided."""

    starts: tuple[StartTask, ...] = ()
    #: What running tasks are to get.
    sizes: Mapping[int, Resources] = field(default_factory=dict)
    #: What went wrong with the decision, if anything did.
    fault: str = ""
    #: Who has decided; nobody where nothing could be started.
    by: str = ""


@dataclass(frozen=True, slots=True)
class RoundQuestion:
    """What is to be decided on; nobody changes it any more."""

    state: EdgeState
    context: SchedulerContext
    #: Asked one after the other, until one does not fail.
    deciders: Sequence[Decider] = field(repr=False)
    #: Running tasks whose size may change.
    resizable: frozenset[int] = frozenset()

    def answer(self) -> Answer:
        """As those decide whom it is meant for."""
        return self.put_to(self.deciders)

    @property
    def open(self) -> bool:
        """Whether anything could start or change now: with a long queue and full clusters, asking is dear."""
        if self.resizable:
            return True
        clusters = self.state.cluster_views()
        return any(can_start(task, cluster) for task in self.state.kinds() for cluster in clusters)

    def put_to(self, deciders: Sequence[Decider]) -> Answer:
        """One round, played by the rules of the simulator."""
        if not self.open:
            return Answer()
        session = Session(self.state.fork(), Elsewhere())
        fault, by = "", ""
        sizes: dict[int, Resources] = {}
        for decider in deciders:
            by, sizes = decider.name, decider.begin(self.resizable)
            try:
                decider.know(self.context)
                session.play_round(decider)
                break
            except Exception as error:  # a scheduler may raise anything; tasks must go on
                logger.exception("scheduler %s failed", decider.name)
                fault += f"{decider.name}: {type(error).__name__}: {error}. "
        return Answer(tuple(c for c in session.collect() if isinstance(c, StartTask)), sizes, fault, by)
