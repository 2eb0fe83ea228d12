"""A Gantt chart of clusters over time, drawn from the events of one run."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from tapfinger.core.events import (
    ClusterJoined,
    ClusterLost,
    Event,
    OthersChanged,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskOutOfMemory,
    TaskResized,
    TaskStaging,
    TaskStarted,
)
from tapfinger.core.model import Cluster, TaskType
from tapfinger.core.spans import nodes_of
from tapfinger.drawing import COLOURS
from tapfinger.errors import ConfigError

#: Most slots of one chart; more could not be told apart.
MAX_SLOTS = 400
#: Most clusters or nodes of one chart; further ones are left out.
MAX_CLUSTERS = 24
#: Most slots with task ids.
_MAX_SLOTS_WITH_IDS = 70
#: Height of a row in inches, where a cluster has nodes: of the largest one, and the least. Others are in proportion.
_LARGEST_ROW, _LEAST_ROW = 1.1, 0.3
#: Height in inches of the name of a cluster above its nodes.
_NAME_HEIGHT = 0.25
#: What others use.
_OTHERS_COLOUR = "0.82"
#: What tasks hold while they wait for data, in place of the kind of a task.
_STAGING, _STAGING_COLOUR = -1, "0.55"


@dataclass(slots=True)
class _Bar:
    """A task on some units of a cluster, since a slot."""

    #: Row of the chart: the cluster's place among those that are no spans.
    row: int
    units: list[int]
    begin: int


class Gantt:
    """A sink of events that records which task held which units of one resource, and when."""

    def __init__(self, clusters: Sequence[Cluster], task_types: Sequence[TaskType], resource: int = -1) -> None:
        """``resource``: index of the resource to draw; the last one if left out."""
        self._clusters = tuple(cluster for cluster in clusters if not cluster.nodes)
        #: By index of a cluster the rows that show it: its own, or those of the nodes of a span.
        self._rows = {n: [row] for row, n in enumerate(n for n, c in enumerate(clusters) if not c.nodes)}
        self._rows |= {span: [self._rows[n][0] for n in nodes] for span, nodes in nodes_of(clusters).items()}
        #: Tasks arrive with a type of the scenario, never with a higher step of a ladder.
        own = [task_type for task_type in task_types if task_type.base is None]
        self._kinds = {task_type.name: index for index, task_type in enumerate(own)}
        self._resource = resource
        self._free = [list(range(cluster.capacity[resource])) for cluster in self._clusters]
        self._kind_of: dict[int, int] = {}
        self._bars: dict[int, list[_Bar]] = {}  # several on a span
        # A growing task may need units that another releases in the same slot, so all release first.
        self._resized: list[TaskResized] = []
        #: (task, kind, row, first unit, units, begin, end), end exclusive.
        self._drawn: list[tuple[int, int, int, int, int, int, int]] = []
        #: (row, begin, end) of the times a cluster was down.
        self._away: list[tuple[int, int, int]] = []
        self._lost: dict[int, int] = {}
        #: What others want of each cluster, and the units they have, each since which slot.
        self._wanted = [0] * len(self._clusters)
        self._taken: list[dict[int, int]] = [{} for _ in self._clusters]
        #: (row, unit, begin, end) of what others have had.
        self._others: list[tuple[int, int, int, int]] = []
        self.slots = 0

    def __call__(self, event: Event) -> None:
        """Process an event."""
        if not isinstance(event, TaskResized):
            for change in self._resized:
                self._hold(change)
            for change in self._resized:
                self._share_all(change.cluster, change.slot)
            self._resized.clear()
        if isinstance(event, TaskArrived):
            self._kind_of[event.task.id] = self._kinds[event.task.type.name]
        elif isinstance(event, TaskStarted) and event.task in self._bars:
            self._draw_bars(event.task, event.slot, _STAGING)
            for bar in self._bars[event.task]:
                bar.begin = event.slot
        elif isinstance(event, TaskStarted | TaskStaging):
            self._hold(event)
        elif isinstance(event, TaskResized):
            if self._places(event) != [(bar.row, len(bar.units)) for bar in self._bars[event.task]]:
                self._end(event.task, event.slot)
                self._resized.append(event)
        elif isinstance(event, TaskFinished | TaskFailed | TaskOutOfMemory):
            self._end(event.task, event.slot + 1)
            self._share_all(event.cluster, event.slot + 1)
            if not isinstance(event, TaskOutOfMemory):
                del self._kind_of[event.task]
        elif isinstance(event, OthersChanged):
            (row,) = self._rows[event.cluster]
            self._wanted[row] = event.amounts[self._resource]
            self._share(row, event.slot)
        elif isinstance(event, ClusterLost):
            rows = self._rows[event.cluster]
            for task in [task for task, bars in self._bars.items() if _touches(bars, rows)]:
                self._end(task, event.slot)
            self._share_all(event.cluster, event.slot)
            if len(rows) == 1:  # a span goes with its nodes
                self._lost[rows[0]] = event.slot
        elif isinstance(event, ClusterJoined) and len(rows := self._rows[event.cluster]) == 1:
            self._away.append((rows[0], self._lost.pop(rows[0]), event.slot))

    def _places(self, event: TaskStarted | TaskStaging | TaskResized) -> list[tuple[int, int]]:
        """Rows on which the task holds units, and how many."""
        rows = self._rows[event.cluster]
        if not event.parts:
            return [(rows[0], event.allocation[self._resource])]
        return [(row, part[self._resource]) for row, part in zip(rows, event.parts, strict=True)]

    def _hold(self, event: TaskStarted | TaskStaging | TaskResized) -> None:
        """Take the lowest adjacent units, or the lowest units if no range is free."""
        self._bars[event.task] = []
        for row, amount in self._places(event):
            free = self._free[row]
            starts = range(len(free) - amount + 1)
            first = next((i for i in starts if amount and free[i + amount - 1] == free[i] + amount - 1), 0)
            self._bars[event.task].append(_Bar(row, free[first : first + amount], event.slot))
            del free[first : first + amount]

    def _share_all(self, cluster: int, slot: int) -> None:
        for row in self._rows[cluster]:
            self._share(row, slot)

    def _share(self, row: int, slot: int) -> None:
        """Let others have what they want, as far as tasks leave it: the highest units, so that they form a band."""
        free, taken, wanted = self._free[row], self._taken[row], self._wanted[row]
        while free and len(taken) < wanted:
            taken[free.pop()] = slot
        while len(taken) > wanted:
            unit = min(taken)
            self._others.append((row, unit, taken.pop(unit), slot))
            insort(free, unit)

    def _end(self, task: int, slot: int) -> None:
        self._draw_bars(task, slot, self._kind_of[task])
        self.slots = max(self.slots, slot)
        for bar in self._bars.pop(task):
            for unit in bar.units:
                insort(self._free[bar.row], unit)

    def _draw_bars(self, task: int, slot: int, kind: int) -> None:
        """Draw what the task has held until ``slot``."""
        for bar in self._bars[task]:
            if bar.begin >= slot or bar.row >= MAX_CLUSTERS:
                continue
            first = 0
            for i in range(1, len(bar.units) + 1):
                if i == len(bar.units) or bar.units[i] != bar.units[i - 1] + 1:
                    place = (bar.row, bar.units[first], i - first, bar.begin, slot)
                    self._drawn.append((task, kind, *place))
                    first = i

    def busiest(self) -> range:
        """The ``MAX_SLOTS`` slots with the most units held; all slots if there are no more."""
        if self.slots <= MAX_SLOTS:
            return range(self.slots)
        change = np.zeros(self.slots + 1)
        for _, _, _, _, units, begin, end in self._drawn:
            change[begin] += units
            change[end] -= units
        held = np.concatenate(([0.0], np.cumsum(np.cumsum(change[:-1]))))  # units x slots before each slot
        begin = int(np.argmax(held[MAX_SLOTS:] - held[:-MAX_SLOTS]))
        return range(begin, begin + MAX_SLOTS)

    def draw(
        self, title: str, resource: str, slot_seconds: float, window: range | None = None, unit: float = 1.0
    ) -> Figure:
        """The chart: a strip per cluster, as high as its capacity; a bar per task, coloured by its type.

        ``window``: slots to draw, the busiest ones if left out; ``unit``: natural quantity of one unit.
        """
        shown, window = self._clusters[:MAX_CLUSTERS], window if window is not None else self.busiest()
        heights, extra = self._heights(shown)
        if window.start >= self.slots:
            raise ConfigError(f"--slots {window.start}:{window.stop}: the run has {self.slots} slots")
        window = range(window.start, min(window.stop, self.slots))
        slots = len(window)
        figure = Figure(
            figsize=(min(20.0, 7 + slots / 25), 1.4 + sum(heights) + extra),
            layout="constrained",
        )
        axes = figure.subplots(len(shown), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for index, (axis, cluster) in enumerate(zip(axes, shown, strict=True)):
            self._draw_cluster(axis, index, window, unit)
            axis.set_xlim(window.start, window.stop)
            capacity = cluster.capacity[self._resource]
            axis.set_ylim(0, unit * max(1, capacity))
            self._name(axis, index, resource)
            axis.tick_params(labelsize=7)
            axis.yaxis.set_major_locator(MaxNLocator(4, integer=unit == int(unit)))
            if not capacity or (extra and heights[index] <= 0.5 * _LARGEST_ROW):
                axis.set_yticks(sorted({0, unit * capacity}))
        figure.align_ylabels(axes)
        axes[-1].set_xlabel(f"time [slots of {slot_seconds:g} s]", fontsize=8)
        left_out = [f"slots {window.start} to {window.stop - 1} of {self.slots}"] if slots < self.slots else []
        left_out += (
            [f"first {len(shown)} of {len(self._clusters)} clusters"] if len(shown) < len(self._clusters) else []
        )
        figure.suptitle(f"{title}{': ' if left_out else ''}{', '.join(left_out)}", fontsize=10)
        handles = [Patch(color=COLOURS[i % len(COLOURS)], label=name) for name, i in self._kinds.items()]
        if any(kind == _STAGING for _, kind, *_ in self._drawn):
            handles.append(Patch(color=_STAGING_COLOUR, label="waits for data"))
        if self._others or any(self._taken):
            handles.append(Patch(color=_OTHERS_COLOUR, label="used by others"))
        figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
        return figure

    def _heights(self, shown: Sequence[Cluster]) -> tuple[list[float], float]:
        """Inches of each row, and of all names above nodes."""
        if not any(cluster.part_of for cluster in shown):
            return [max(0.5, 1.7 / len(shown) ** 0.25)] * len(shown), 0.0
        capacity = [cluster.capacity[self._resource] for cluster in shown]
        heights = [max(_LEAST_ROW, _LARGEST_ROW * amount / max(1, *capacity)) for amount in capacity]
        return heights, _NAME_HEIGHT * len({cluster.whole for cluster in shown})

    def _name(self, axis: Any, index: int, resource: str) -> None:
        """Label a row; above the first one of a cluster with nodes stands the whole cluster's name."""
        cluster, kind = self._clusters[index], self._clusters[index].hardware
        if not any(each.part_of for each in self._clusters):
            text = f"{cluster.name}, {kind}" if kind else cluster.name
            axis.set_ylabel(f"{text}\n[{resource}]", fontsize=8)
            return
        axis.set_ylabel(
            f"{cluster.name}\n{kind}".rstrip(), fontsize=8, rotation=0, ha="right", va="center", labelpad=12
        )
        if index == 0 or self._clusters[index - 1].whole != cluster.whole:
            mine = [each.capacity[self._resource] for each in self._clusters if each.whole == cluster.whole]
            nodes = f", {len(mine)} node{'s' * (len(mine) != 1)}" if cluster.part_of else ""
            axis.set_title(f"{cluster.whole}{nodes} [{resource}]", fontsize=8, fontweight="bold", loc="left", pad=3)

    def _draw_cluster(self, axis: Any, index: int, window: range, unit: float) -> None:
        mine = [bar for bar in self._drawn if bar[2] == index and bar[5] < window.stop and bar[6] > window.start]
        boxes = [
            Rectangle((begin, unit * low), end - begin, unit * height) for _, _, _, low, height, begin, end in mine
        ]
        colours = [_STAGING_COLOUR if bar[1] == _STAGING else COLOURS[bar[1] % len(COLOURS)] for bar in mine]
        axis.add_collection(PatchCollection(boxes, facecolor=colours, edgecolor="white", linewidth=0.6))
        taken = [(unit, begin, end) for where, unit, begin, end in self._others if where == index]
        taken += [(unit, begin, self.slots) for unit, begin in self._taken[index].items()]
        band = [
            Rectangle((begin, unit * low), end - begin, unit)
            for low, begin, end in taken
            if begin < min(end, window.stop) and end > window.start
        ]
        axis.add_collection(PatchCollection(band, facecolor=_OTHERS_COLOUR, linewidth=0, antialiased=False))
        gone = [*self._away, *((cluster, begin, self.slots) for cluster, begin in self._lost.items())]
        for _, begin, end in (away for away in gone if away[0] == index):
            axis.axvspan(begin, end, facecolor="none", edgecolor="grey", hatch="///", linewidth=0)
        if len(window) <= _MAX_SLOTS_WITH_IDS:
            for task, _, _, low, height, begin, end in mine:
                middle = ((max(begin, window.start) + min(end, window.stop)) / 2, unit * (low + height / 2))
                axis.text(*middle, str(task), fontsize=5, ha="center", va="center", color="white", clip_on=True)


def _touches(bars: Sequence[_Bar], rows: Sequence[int]) -> bool:
    """Whether the task of these bars is lost with these rows; with any, if it holds nothing of the resource."""
    some = [bar for bar in bars if bar.units] or bars
    return any(bar.row in rows for bar in some)
