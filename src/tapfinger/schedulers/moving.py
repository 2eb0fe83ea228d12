"""A start moves to the cluster that loses least by it, among those that could run the task at that size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tapfinger.core.contract import Placement, Snapshot, book
from tapfinger.core.feasibility import may_start
from tapfinger.core.model import Resources
from tapfinger.core.spans import Rooms
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.counters import Counting

#: Maximum number of free amounts whose worth is cached.
_MOST_ROOMS = 100_000


class Moving(Counting):
    """Moves a start, at the same size, to another cluster that loses less of the worth of its room.

    Clusters choose at the same time. A small cluster may take a task while a large one, which has room for both, takes
    another first; then a task that can only run on the small cluster waits. The worth of free resources is measured as
    by Greedy's ``room_price``: by the shortest durations of all task types in them.
    """

    def __init__(self, site: SiteTables, counters: dict[str, int] | None = None) -> None:
        """Ready for a run."""
        super().__init__(counters)
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        self._options = site.sizes
        self._worth: dict[tuple[Resources, str], float] = {}

    def move(self, placements: Sequence[Placement], snapshot: Snapshot) -> tuple[Placement, ...]:
        """The same starts on the clusters that lose least. ``snapshot``: the one the placements were decided on."""
        if not placements:
            return ()
        free = Rooms(snapshot.clusters)
        parts = book(free, placements)
        busy = {placement.cluster for placement in placements}
        wanted = {placement.task for placement in placements}
        tasks = {task.id: task for task in snapshot.queue if task.id in wanted}
        result = []
        for placement in placements:
            here, size = placement.cluster, placement.allocation
            free.give(here, size, parts.get(placement.task, ()))
            hardware = snapshot.clusters[here].hardware
            there, least = here, self._loss(free[here], size, hardware)
            staging = snapshot.staging_of(tasks[placement.task])
            for n in tasks[placement.task].eligible if least > 0.0 else ():
                cluster = snapshot.clusters[n]
                # In single-task mode a cluster that starts something has no start left for another.
                if n == here or not may_start(cluster) or (n in busy and cluster.starts_left is not None):
                    continue
                if cluster.hardware != hardware:  # the size was chosen for the speed here
                    continue
                if staging and staging[n] > staging[here]:
                    continue
                if size.fits(free[n]) and (loss := self._loss(free[n], size, hardware)) < least:  # ties go to the first
                    there, least = n, loss
            free.take(there, size)
            if there != here:
                busy = busy - {here} | {there}
                self.counters["moved"] += 1
                placement = replace(placement, cluster=there)
            result.append(placement)
        return tuple(result)

    def _loss(self, room: Resources, size: Resources, hardware: str) -> float:
        """Slots by which the shortest durations of all types, in total, grow when ``size`` is taken from the room."""
        return self._durations(room - size, hardware) - self._durations(room, hardware)

    def _durations(self, room: Resources, hardware: str) -> float:
        key = room, hardware
        if key not in self._worth:
            if len(self._worth) >= _MOST_ROOMS:
                self._worth.clear()
            self._worth[key] = self._options.durations(room, hardware)
        return self._worth[key]
