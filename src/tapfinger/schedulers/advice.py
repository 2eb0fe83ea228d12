"""What greedies would do, as inputs of a profile-aware network: it learns when to follow them and when not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from tapfinger.core.contract import Placement, SchedulerContext, Snapshot
from tapfinger.observation import GraphObs
from tapfinger.policy.profile_inputs import Advice
from tapfinger.profiles.menus import Menus
from tapfinger.schedulers.greedy import GREEDY_DEFAULTS, Greedy

#: The greedies that are asked: the one tuned for short queues; one that saves resources as soon as anything waits;
#: and one that takes slower sizes as well, for long tasks.
ADVISERS: Final = (
    GREEDY_DEFAULTS,
    {**GREEDY_DEFAULTS, "calm": 0.0},
    {**GREEDY_DEFAULTS, "calm": 0.0, "patience": 5.0},
)

#: Slots over which the arrival of work is averaged.
WINDOW = 100

#: What one adviser would start now.
Opinion = tuple[Placement, ...]


class Advisers:
    """Asks the greedies about snapshots, and keeps count of what arrives."""

    def __init__(self) -> None:
        """Nothing has arrived yet."""
        self._greedies = [Greedy(**options) for options in ADVISERS]  # type: ignore[arg-type]
        self._arrived: deque[tuple[int, str]] = deque()  # slot and type, of the window
        self._first = -1  # the slot of the first snapshot
        self._last = -1  # the latest slot whose arrivals are counted

    def learn(self, context: SchedulerContext, menus: Menus) -> None:
        """Take these profiles from now on; must be called before anything is asked."""
        self._menus = menus
        for greedy in self._greedies:
            greedy.learn(context)

    def ask(self, snapshot: Snapshot) -> list[Opinion]:
        """What each would start now."""
        return [greedy.decide(snapshot).placements for greedy in self._greedies]

    def advice(self, snapshot: Snapshot, obs: GraphObs, opinions: Sequence[Opinion]) -> Advice:
        """The opinions as inputs, for a batch of one; ``obs`` is made of the snapshot."""
        place = np.full((1, *obs.task.shape, len(opinions)), -1, dtype=np.int64)
        kind = {task.id: self._menus.kind[task.type.name] for task in snapshot.queue}
        for a, opinion in enumerate(opinions):
            for placement in opinion:
                here = np.flatnonzero(obs.task[placement.cluster] == placement.task)
                if len(here):
                    size = self._menus.place_of(kind[placement.task], placement.allocation)
                    place[0, placement.cluster, here[0], a] = size
        return Advice(place, np.array([self._load(snapshot.slot)]))

    def count(self, snapshot: Snapshot) -> None:
        """Take note of what arrived in this slot; call it at least once per slot."""
        if snapshot.slot == self._last:
            return
        if self._first < 0:
            self._first = snapshot.slot
        for task in reversed(snapshot.queue):
            if task.arrival <= self._last:
                break
            self._arrived.append((task.arrival, task.type.name))
        self._last = snapshot.slot
        while self._arrived and self._arrived[0][0] <= snapshot.slot - WINDOW:
            self._arrived.popleft()

    def _load(self, slot: int) -> float:
        """Work that arrived per slot, as a share of what all clusters together can do."""
        slots = min(slot - self._first + 1, WINDOW)
        work = sum(float(self._menus.least_cost[self._menus.kind[name]]) for _, name in self._arrived)
        return work / slots / len(self._menus.capacity)
