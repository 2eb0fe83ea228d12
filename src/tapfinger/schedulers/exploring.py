"""Careful exploration: now and then a task gets another size than its scheduler chose, to learn the speed of that size.

Schedulers never try a size that is believed to be slow, so without trials a wrong belief of that kind would last
forever. A share of the running time of all tasks is saved up, and trials spend their expected cost from it. Where
nothing is in doubt, nothing is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tapfinger.core.contract import Decision, Placement, Scheduler, SchedulerContext, Snapshot
from tapfinger.core.estimates import duration
from tapfinger.core.model import Resources, TaskType, unit_uniform
from tapfinger.core.spans import Rooms
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.errors import ConfigError
from tapfinger.registry import create

#: Share of tasks for which another size is considered.
OFTEN: Final = 0.5

#: Standard deviation of the log rate below which a size is known well enough and not tried.
KNOWN: Final = 0.05

#: Factor on the variance of the log rate in the expected cost of a trial; higher is more careful.
CAUTION: Final = 1.0

#: Maximum number of slots saved up, so that trials still come one by one after a long time without doubt.
MOST_SAVED: Final = 50.0

#: Minimum cost of a trial as a share of the task's duration, for choosing among trials that cost nothing.
_LEAST = 0.01


class Exploring(SchedulerWrapper):
    """Another scheduler's decisions, now and then with another size."""

    def __init__(self, scheduler: Scheduler, share: float = 0.05) -> None:
        """``share``: expected share of their running time that tasks may lose to trials."""
        if not 0.0 <= share <= 0.5:
            raise ConfigError(f"exploring: share = {share!r} must be from 0 to 0.5")
        super().__init__(scheduler)
        self._share = share
        #: Number of times another size was tried.
        self.trials = 0

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the inner scheduler, and the number of trials."""
        return {**super().counters, "trials": self.trials}

    def reset(self, context: SchedulerContext) -> None:
        """Begin a new run with nothing saved up."""
        self._seed = context.seed
        self._saved = 0.0
        self.trials = 0
        super().reset(context)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide as the inner scheduler does, except for the sizes of a few tasks that start."""
        decision = self.inner.decide(snapshot)
        if not decision.placements or not self._share:
            return decision
        rooms, known = _left(snapshot, decision)
        types = {task.id: task.type for task in snapshot.queue}
        chosen: list[Placement] = []
        for placement in decision.placements:
            there = types[placement.task].on(snapshot.clusters[placement.cluster].hardware)
            size = self._choose(there, placement, rooms[placement.cluster] if placement.cluster in known else None)
            if size != placement.allocation:
                self.trials += 1
                if placement.cluster in known:
                    rooms.take(placement.cluster, size - placement.allocation)
            chosen.append(replace(placement, allocation=size))
        return replace(decision, placements=tuple(chosen))

    def _choose(self, kind: TaskType, placement: Placement, room: Resources | None) -> Resources:
        """The size to give. ``room``: what the decision leaves free on the cluster; None if that is not known."""
        here = duration(kind, placement.allocation)
        self._saved = min(MOST_SAVED, self._saved + self._share * here)
        doubt = kind.profile.doubt
        if doubt is None or unit_uniform(self._seed, placement.task) >= OFTEN:
            return placement.allocation
        best, worth, price = placement.allocation, 0.0, 0.0
        for size in neighbours(kind, placement.allocation):
            unsure = doubt[kind.profile.index(size)]
            if unsure < KNOWN or not (size.fits(placement.allocation) or _fits(size, placement.allocation, room)):
                continue
            extra = max(0.0, duration(kind, size) * math.exp(CAUTION * unsure**2) - here)
            if extra <= self._saved and unsure / (extra + _LEAST * here) > worth:
                best, worth, price = size, unsure / (extra + _LEAST * here), extra
        self._saved -= price
        return best


def exploring(of: str = "greedy", share: float = 0.05) -> Exploring:
    """Another scheduler (of) that now and then tries other sizes, at the cost of a share of the running time."""
    return Exploring(create("scheduler", of, {}), share)


def neighbours(kind: TaskType, size: Resources) -> Iterator[Resources]:
    """Sizes with half or twice the amount of one resource or of all, within the type's bounds."""
    for change in (0.5, 2.0):
        whole = []
        for r, (amount, low, high) in enumerate(zip(size, kind.minimum, kind.maximum, strict=True)):
            other = min(high, max(low, round(change * amount)))
            whole.append(other)
            if other != amount:
                yield Resources([other if n == r else a for n, a in enumerate(size)])
        if sum(a != b for a, b in zip(whole, size, strict=True)) > 1:
            yield Resources(whole)


def _fits(size: Resources, instead: Resources, room: Resources | None) -> bool:
    return room is not None and size.fits(room + instead)


def _left(snapshot: Snapshot, decision: Decision) -> tuple[Rooms, set[int]]:
    """Free resources of each cluster after the decision, and on which clusters they are known.

    They are not where tasks are resized, nor on spans and their nodes, where others may take them in the same turn.
    """
    resized = {resize.task for resize in decision.resizes}
    after = snapshot.after(decision.placements)
    unknown = {n for span, nodes in after.spans.items() for n in (span, *nodes)}
    unknown |= {c.index for c in after.clusters if any(task.id in resized for task in (*c.running, *c.paused))}
    return Rooms(after.clusters), {c.index for c in after.clusters} - unknown
