"""A round as a question that another thread can answer: on a copy of the state, with the simulator's session.

The coordinator continues meanwhile. ``Rounds.settle`` checks the answer against the state at the time it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from tapfinger.core.feasibility import can_start, check_amounts, check_size
from tapfinger.core.model import Resources, TaskType
from tapfinger.core.session import Session, SlotOutcome
from tapfinger.core.state import EdgeState
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.errors import SchedulerFailed, SchedulerGone
from tapfinger.live.coordinator.resizing import larger
from tapfinger.profiles.belief_wrapper import Retold
from tapfinger.registry import users_frame

logger = logging.getLogger(__name__)

#: Most characters of what is told of a fault: texts of errors may be as long as a scheduler likes.
LONGEST = 500


def told(error: BaseException) -> str:
    """An error of a scheduler in words: printable, and of bounded length, whatever the scheduler has raised."""
    try:
        text = str(error)
    except BaseException:
        text = "an error that cannot be put into words"
    if not isinstance(error, SchedulerFailed):
        frame = users_frame(error)
        where = "" if frame is None else f" ({frame.filename}:{frame.lineno})"
        text = f"{type(error).__name__}: {text[:LONGEST]}{where}"
    shown = "".join(char if char.isprintable() else " " for char in text[: LONGEST + 1])
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 4]} ..."


class Elsewhere:
    """The environment of a live session. Agents send events at any time, and commands are collected at once.

    So the end of a slot brings neither events nor commands, only the progress that tasks have reported during the slot.
    """

    exhausted = False

    def __init__(self) -> None:
        """Start without reports."""
        self.reports: dict[int, float] = {}

    def begin(self) -> list[Event]:
        """No events before the first slot."""
        return []

    def run_slot(self, slot: int, commands: list[Command]) -> SlotOutcome:
        """Return the reported progress; nothing else happens at the end of a slot."""
        if commands:
            raise AssertionError(f"slot {slot}: {len(commands)} commands were not collected")
        reports, self.reports = self.reports, {}
        return SlotOutcome(progress=reports)


class Decider(SchedulerWrapper):
    """Wraps a scheduler for a live site, where a resize takes time.

    Resources that a shrinking task gives back are free only once its agent has confirmed, in a later round. Until then,
    placements and growth that need them are left out. Resizes of tasks that are not resizable are always left out.
    """

    def __init__(self, scheduler: Scheduler, name: str = "") -> None:
        """``name``: shown to people; by default the scheduler's own name."""
        super().__init__(scheduler)
        self.name = name or self.name
        #: Task types by name, as the scheduler was last told.
        self._types: dict[str, TaskType] = {}
        self._retold = Retold()
        self._odds_hold = False
        self._resizable: frozenset[int] = frozenset()
        self._sizes: dict[int, Resources] = {}

    def know(self, context: SchedulerContext) -> None:
        """Reset the scheduler if the set of task types has changed; tell it if only beliefs have changed."""
        types = {t.name: t for t in context.task_types}
        if self._types.keys() != types.keys():
            self.reset(context)
            self._odds_hold = False
        elif any(self._types[name] is not t for name, t in types.items()):
            self.learn(context)
        self._types = types

    def forget(self) -> None:
        """Reset the scheduler before its next round: it has missed something, or it is a new one."""
        self._types = {}
        self._odds_hold = False

    def begin(self, resizable: frozenset[int]) -> dict[int, Resources]:
        """Begin a round. The returned dict is filled with the new sizes of running tasks during the round."""
        self._resizable, self._sizes = resizable, {}
        self._odds_hold = False
        return self._sizes

    def play(self, question: RoundQuestion) -> Answer:
        """Play one round by the rules of the simulator. Raises whatever the scheduler raises."""
        session = Session(question.state.fork(), Elsewhere())
        sizes = self.begin(question.resizable)
        self.know(question.context)
        session.play_round(self)
        return Answer(tuple(c for c in session.collect() if isinstance(c, StartTask)), sizes, by=self.name)

    def decide(self, snapshot: Snapshot) -> Decision:
        """The part of the scheduler's decision that fits now, without resources not yet given back."""
        before = self._left_to_others
        # Without a call of ``know``, the types of the snapshot are used as they are.
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
        """Note the possible new sizes, and yield the resizes that must be debited for them now."""
        held = {task.id: task for task in snapshot.running()}
        for resize in resizes:
            task = held.get(resize.task)
            if task is None or task.id not in self._resizable or task.cluster is None or task.allocation is None:
                continue
            check_amounts(task.id, task.type, resize.allocation)
            if resize.allocation.none:
                continue  # live tasks cannot be paused
            check_size(task.id, task.type, resize.allocation)  # of one that shrinks, the session checks nothing
            top = larger(task.allocation, resize.allocation)
            if (top - task.allocation).fits(free[task.cluster]):
                free[task.cluster] = free[task.cluster] - (top - task.allocation)
                self._sizes[task.id] = resize.allocation
                if top != task.allocation:
                    yield Resize(task.id, top)

    @property
    def _left_to_others(self) -> int:
        """How often another scheduler decided instead, as far as it is counted: probabilities are void then."""
        return self.counters.get("fallbacks", 0)

    def odds(self) -> Mapping[tuple[int, int], float]:
        """(task, cluster) -> the probability that the scheduler gave the pair in its last turn; empty if unknown.

        Call it in the thread that decides, or while nothing is being decided.
        """
        explain: Any = getattr(self.inner, "explain", None)
        if explain is None or not self._odds_hold:
            return {}
        try:
            agents = explain(top=1).agents
            return {(o.task, agent.cluster): float(o.probability) for agent in agents for o in agent.options}
        except BaseException:  # third-party code; its probabilities are left out then
            logger.exception("scheduler %s could not explain itself", self.name)
            return {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decided."""

    starts: tuple[StartTask, ...] = ()
    #: New sizes of running tasks, by task.
    sizes: Mapping[int, Resources] = field(default_factory=dict)
    #: What went wrong and belongs into the history; empty if nothing did, or if it is there already.
    fault: str = ""
    #: Whether a scheduler failed, and whether its process is gone.
    failed: bool = False
    gone: bool = False
    #: Name of the scheduler that decided; empty if nothing could be started.
    by: str = ""


@dataclass(frozen=True, slots=True)
class RoundQuestion:
    """The state to decide on; it never changes."""

    state: EdgeState
    context: SchedulerContext
    #: Asked one after the other, until one succeeds.
    deciders: Sequence[Decider] = field(repr=False)
    #: Running tasks whose size may change.
    resizable: frozenset[int] = frozenset()

    def answer(self) -> Answer:
        """The answer of the question's own deciders."""
        return self.put_to(self.deciders)

    @property
    def open(self) -> bool:
        """Whether any task could start or be resized now: with a long queue, asking in vain is expensive."""
        if self.resizable:
            return True
        clusters = self.state.cluster_views()
        return any(can_start(task, cluster) for task in self.state.kinds() for cluster in clusters)

    def put_to(self, deciders: Sequence[Decider]) -> Answer:
        """The answer of these deciders: one round, played by the rules of the simulator."""
        if not self.open:
            return Answer()
        fault, gone = "", False
        for decider in deciders:
            try:
                return replace(decider.play(self), fault=fault, failed=bool(fault), gone=gone)
            except BaseException as error:  # a scheduler may raise anything; the next one decides then
                logger.info("scheduler %s failed", decider.name, exc_info=True)
                fault += f"{decider.name}: {told(error)}. "
                gone |= isinstance(error, SchedulerGone)
        return Answer(fault=fault, failed=True, gone=gone)
