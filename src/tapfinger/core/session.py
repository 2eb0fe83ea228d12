"""The session: turns, rounds and slots. Training, evaluation and live all play through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tapfinger.core.contract import Decision, Mode, Scheduler
from tapfinger.core.events import Command, Event, event_key
from tapfinger.core.state import EdgeState
from tapfinger.core.wrapper import name_of
from tapfinger.errors import InvalidDecision

#: Maximum number of turns in a slot: a scheduler that is never void would hang a multi-task round. Placements run out,
#: so only endless resizing reaches this limit.
MAX_TURNS = 100_000


@dataclass(frozen=True, slots=True)
class SlotOutcome:
    """What an executor reports after a slot."""

    #: Starts, resizes and ends of this slot, then events at the beginning of the next slot (such as arrivals).
    events: list[Event] = field(default_factory=list)
    #: Progress reported by running tasks, by task id.
    progress: Mapping[int, float] = field(default_factory=dict)


class Executor(Protocol):
    """Carries out commands and reports what happened: the simulator, or real clusters."""

    def begin(self) -> list[Event]:
        """Events before the first slot (the first arrivals)."""
        ...

    def run_slot(self, slot: int, commands: list[Command]) -> SlotOutcome:
        """Carry out the commands, let one slot pass, and report."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no further task will arrive."""
        ...


class Session:
    """One run of one scheduler on one executor."""

    def __init__(self, state: EdgeState, executor: Executor, sinks: Iterable[Callable[[Event], None]] = ()) -> None:
        """Apply the events before the first slot; each sink gets every event in canonical order."""
        self.state = state
        self._executor = executor
        self._sinks = tuple(sinks)
        self._commands: list[Command] = []
        #: Number of proposals that have lost a conflict so far.
        self.conflicts = 0
        #: Sum over slots of tasks in the system: the objective.
        self.total_tasks_in_system = 0
        self.take(executor.begin())

    def take(self, events: list[Event]) -> None:
        """Apply events and pass them on to the sinks; live clusters also report events during a slot."""
        events.sort(key=event_key)
        for event in events:
            self.state.apply(event)
            for sink in self._sinks:
                sink(event)

    @property
    def done(self) -> bool:
        """Whether every task has arrived and ended."""
        return self._executor.exhausted and self.state.tasks_in_system == 0

    def turn(self, decision: Decision) -> bool:
        """Commit one logical decision; True when the round is settled and the slot can end."""
        self._commands += self.state.commit(decision)
        self.conflicts += len(decision.lost)
        return decision.void or self.state.mode is Mode.SINGLE

    def play_round(self, scheduler: Scheduler) -> None:
        """Algorithm 1: turns until every cluster is void; one turn in single-task mode or for one-shot schedulers."""
        for _ in range(MAX_TURNS):
            settled = self.turn(scheduler.decide(self.state.snapshot()))
            if settled or scheduler.one_shot:
                return
        raise InvalidDecision(f"{name_of(scheduler)} was still not void after {MAX_TURNS} turns in one slot")

    def collect(self) -> list[Command]:
        """Return the commands that were not yet handed on, and forget them; the caller must carry them out."""
        commands, self._commands = self._commands, []
        return commands

    def end_slot(self) -> int:
        """Let the slot pass; return the number of tasks that were in the system (the negated reward)."""
        count = self.state.tasks_in_system
        self.total_tasks_in_system += count
        outcome = self._executor.run_slot(self.state.slot, self.collect())
        ends_with_slot = [event for event in outcome.events if event.slot == self.state.slot]
        next_slot = [event for event in outcome.events if event.slot > self.state.slot]
        self.take(ends_with_slot)
        self.state.end_slot(outcome.progress)
        self.take(next_slot)
        return count
