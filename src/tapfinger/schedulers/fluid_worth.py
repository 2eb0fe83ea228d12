"""The best plan for a backlog on one cluster, if resources and time were a fluid.

Every slot with k tasks on a cluster adds k to the sum of completion times. So along the best plan, what its tasks gain
per slot is k: sum of worth / duration at each one's size = k, where the worth of a task is the slots of that sum which
its whole work stands for. The longest task has the cluster to itself in the end: its worth is its shortest duration.
Of the next shorter one, with k tasks then: the least over its sizes of

    duration x (k - most that the longer ones gain in what the size leaves)

So the worth of every task follows from those of the longer ones, and with it the best sizes for any number of units:
the shorter a task, the more of the cluster it gets, as long as its speed-up is worth it.
"""

from __future__ import annotations

import numpy as np

from tapfinger.schedulers.fluid_sizes import FloatArray, IntArray

#: Gain of what cannot be, such as a running task in no units.
IMPOSSIBLE = -1e18


class FluidWorth:
    """For every cluster: how many tasks it has, and the most that these gain per slot in any number of units."""

    def __init__(self, room: IntArray, most: int, beyond: float) -> None:
        """``room``: (clusters,) units available. ``beyond``: waiting tasks per cluster that are not looked at.

        They are long, and many: they gain in proportion to what they get.
        """
        self._room = room
        self._most = most
        #: Waiting tasks per cluster that are not looked at.
        self.beyond = beyond
        self._grid = np.arange(most + 1)
        #: (clusters, most + 1 + most + 1) gain by units, with a margin of impossible ones below none.
        self._gain = np.full((len(room), 2 * (most + 1)), IMPOSSIBLE)
        self._gain[:, most + 1 :] = beyond * self._grid / room[:, None]
        self.tasks = np.full(len(room), beyond)
        self._before = self._gain.copy()

    def clear(self, cluster: int) -> None:
        """Take all tasks from the cluster again."""
        self._gain[cluster] = self._before[cluster]
        self.tasks[cluster] = self.beyond

    def worth(self, cluster: int, slots: FloatArray, units: IntArray) -> float:
        """Worth of a task that is shorter than those there. ``slots``, ``units``: (sizes,)."""
        return float(self._costs(cluster, slots, units).min())

    def best(self, cluster: int, slots: FloatArray, units: IntArray) -> int:
        """Position of the size at which such a task costs least if it keeps it until its end."""
        return int(self._costs(cluster, slots, units).argmin())

    def _costs(self, cluster: int, slots: FloatArray, units: IntArray) -> FloatArray:
        left = np.maximum(self._room[cluster] - units, -1)
        others = np.maximum(self._gain[cluster, self._most + 1 + left], 0.0)
        return np.asarray(slots * (self.tasks[cluster] + 1.0 - others))

    def costs(self, clusters: IntArray, slots: FloatArray, units: IntArray, overlap: FloatArray) -> FloatArray:
        """(clusters,) what a task adds to the sum of completion times on each of these clusters; infinite without room.

        ``slots``, ``units``: (clusters, sizes). ``overlap``: share of the task's time for which those there are there.
        """
        left = self._room[clusters][:, None] - units
        gains = self._gain[clusters[:, None], self._most + 1 + np.maximum(left, -1)]
        lost = self.tasks[clusters][:, None] - np.maximum(gains, 0.0)
        costs = np.where(left >= 0, slots * (1.0 + overlap[:, None] * lost), np.inf)
        return np.asarray(costs.min(axis=1))

    def add(self, cluster: int, worth: float, slots: FloatArray, units: IntArray, must: bool) -> IntArray:
        """Add a task; returns its best size for any number of units, as a position, -1 for none.

        ``must``: it runs, so that none is not a choice.
        """
        gain = self._gain[cluster]
        options = (worth / slots)[:, None] + gain[self._most + 1 + self._grid - units[:, None]]  # (sizes, units)
        choice = options.argmax(axis=0)
        best = options[choice, self._grid]
        now = gain[self._most + 1 :]
        if not must:
            better = best > now + 1e-12
            choice, best = np.where(better, choice, -1), np.where(better, best, now)
        gain[self._most + 1 :] = best
        self.tasks[cluster] += 1.0
        return np.asarray(choice)
