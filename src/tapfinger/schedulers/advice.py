"""What greedies would do, as inputs of a profile-aware network: it learns when to follow them and when not."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

import numpy as np

from tapfinger.core.contract import SchedulerContext, Snapshot
from tapfinger.observation import GraphObs
from tapfinger.policy.profile_inputs import Advice
from tapfinger.profiles.menus import Menus
from tapfinger.schedulers.greedy import GREEDY_DEFAULTS, Greedy

#: The greedies that are asked: one that waits for good sizes, and one for times when starts are scarce.
ADVISERS: Final = (GREEDY_DEFAULTS, {**GREEDY_DEFAULTS, "queue_price": 20.0, "calm": 0.0, "patience": 5.0})

#: Slots over which the arrival of work is averaged.
WINDOW = 100


class Advisers:
    """Asks the greedies about snapshots, and keeps count of the work that arrives."""

    def __init__(self, context: SchedulerContext, menus: Menus) -> None:
        """Nothing has arrived yet."""
        self._menus = menus
        self._greedies = [Greedy(**options) for options in ADVISERS]
        for greedy in self._greedies:
            greedy.reset(context)
        self._arrived: deque[tuple[int, float]] = deque()  # slot and work, of the window
        self._first = -1  # the slot of the first snapshot
        self._last = -1  # the latest slot whose arrivals are counted

    def advise(self, snapshot: Snapshot, obs: GraphObs) -> Advice:
        """For a batch of one; ``obs`` is made of the snapshot."""
        place = np.full((1, *obs.task.shape, len(self._greedies)), -1, dtype=np.int64)
        visible = set(obs.task.reshape(-1).tolist())  # advice on other tasks could not be followed
        seen = replace(snapshot, queue=tuple(task for task in snapshot.queue if task.id in visible))
        kind = {task.id: self._menus.kind[task.type.name] for task in seen.queue}
        for a, greedy in enumerate(self._greedies):
            for placement in greedy.decide(seen).placements:
                here = np.flatnonzero(obs.task[placement.cluster] == placement.task)
                if len(here):
                    size = self._menus.nearest(kind[placement.task], placement.allocation)
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
            self._arrived.append((task.arrival, float(self._menus.least_cost[self._menus.kind[task.type.name]])))
        self._last = snapshot.slot
        while self._arrived and self._arrived[0][0] <= snapshot.slot - WINDOW:
            self._arrived.popleft()

    def _load(self, slot: int) -> float:
        """Work that arrived per slot, as a share of what all clusters together can do."""
        slots = min(slot - self._first + 1, WINDOW)
        return sum(work for _, work in self._arrived) / slots / len(self._menus.capacity)
