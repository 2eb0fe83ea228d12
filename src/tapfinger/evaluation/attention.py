"""A picture of one decision: attention in the network's graph, and the probability of each task."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tapfinger.drawing import COLOURS
from tapfinger.policy.explain import AttentionView, Explanation, Numbers

#: Most clusters and tasks that can be read in one picture.
MAX_CLUSTERS = 12
MAX_TASKS = 24
#: Width of a line that stands for all of a cluster's attention.
_THICKEST = 16.0
#: Distance of void from the tasks, in columns.
_GAP = 0.3
#: Colours of task types: quieter than the clusters' colours, and different from them.
_SHADES = ("#333333", "#8c6d31", "#7f7f7f", "#5254a3", "#843c39")
#: Line styles around a task that a cluster wanted: granted, and not granted.
_GOT: Any = "-"
_NOT_GOT: Any = (0, (2, 1.2))


def draw(explanation: Explanation, attention: AttentionView, title: str) -> Figure:
    """The graph of clusters and tasks above, the numbers as tables below, each column under its task.

    Attention is the mean over heads. If there are too many, clusters that get nothing and the youngest
    tasks are left out.
    """
    return _Picture(explanation, attention).draw(title)


class _Picture:
    def __init__(self, explanation: Explanation, attention: AttentionView) -> None:
        self._agents, self._attention = explanation.agents, attention
        self._when = f"slot {explanation.slot}, turn {explanation.turn}"
        started = {(p.cluster, p.task) for p in explanation.decision.placements}
        got = {n for n, _ in started}
        ranked = sorted(self._agents, key=lambda a: (a.cluster not in got, a.wants is None, not a.options, a.cluster))
        #: Clusters and tasks shown, as indices of the attention's axes.
        self._rows = sorted(agent.cluster for agent in ranked[:MAX_CLUSTERS])
        wants = {n: agent.wants.task for n in self._rows if (agent := self._agents[n]).wants is not None}
        self._option = [{option.task: option for option in self._agents[n].options} for n in self._rows]
        here = [m for m, task in enumerate(attention.tasks) if any(task in options for options in self._option)]
        by_rank = sorted(here, key=lambda m: (attention.tasks[m] not in wants.values(), m))
        self._columns = sorted(by_rank[:MAX_TASKS])
        self._tasks = [attention.tasks[m] for m in self._columns]
        self._kinds = sorted({option.type for options in self._option for option in options.values()})
        #: (row, column) -> whether the cluster got the task it wants.
        self._wanted = {
            (row, self._tasks.index(wants[n])): (n, wants[n]) in started
            for row, n in enumerate(self._rows)
            if n in wants
        }

    def draw(self, title: str) -> Figure:
        look, layers = self._attention, len(self._attention.of_clusters)
        tables = [("probability of each task, Pr(task | cluster)", self._probabilities())]
        tables += [
            (f"attention of each cluster to its tasks, layer {layer + 1} of {layers}", self._part(weights))
            for layer, weights in enumerate(look.of_clusters)
        ]
        tables.append(("attention of each task to its clusters, last layer", self._part(look.of_tasks[-1])))
        height = 0.4 + 0.22 * len(self._rows)
        figure = Figure(figsize=(9.0, 3.7 + height * len(tables)), layout="constrained")
        ratios = [2.5, *[height] * len(tables)]
        axes: Any = figure.subplots(len(ratios), height_ratios=ratios, sharex=True)
        self._graph(axes[0])
        for axis, (name, values) in zip(axes[1:], tables, strict=True):
            self._table(axis, name, values)
        axes[-1].set_xlabel("task", fontsize=8)
        shown = [(len(self._rows), len(self._agents), "clusters"), (len(self._tasks), len(look.tasks), "tasks")]
        some = [f"{few} of {all_} {what}" for few, all_, what in shown if few < all_]
        figure.suptitle(", ".join([f"Who looks at whom: {title}", self._when, *some]), fontsize=10)
        figure.legend(handles=self._legend(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
        return figure

    def _legend(self) -> list[Line2D]:
        types = [
            Line2D([], [], marker="o", linestyle="none", markersize=8, color=_shade(kind), label=name)
            for kind, name in enumerate(self._kinds)
        ]
        frames = [
            Line2D([], [], color="black", linewidth=1.6, linestyle=style, label=name)
            for style, name in ((_GOT, "wants it and gets it"), (_NOT_GOT, "wants it, does not get it"))
        ]
        return [*types, *frames]

    def _part(self, weights: Numbers) -> Numbers:
        """(heads, N, tasks) -> (rows, columns), in percent."""
        return np.asarray(100.0 * weights.mean(axis=0)[np.ix_(self._rows, self._columns)])

    def _probabilities(self) -> Numbers:
        """(rows, columns + 1) in percent: tasks, then void."""
        tasks = [[o[t].probability if t in o else 0.0 for t in self._tasks] for o in self._option]
        void = [[self._agents[n].void] for n in self._rows]
        return 100.0 * np.concatenate([np.array(tasks).reshape(len(void), -1), np.array(void)], axis=1)

    def _graph(self, axis: Axes) -> None:
        """Clusters above, tasks below."""
        count = len(self._tasks)
        places = np.linspace(-0.5, count - 0.5, 2 * len(self._rows) + 1)[1::2]
        weights = self._attention.of_clusters.mean(axis=(0, 1))[np.ix_(self._rows, self._columns)]
        for row, place in enumerate(places.tolist()):
            for column, task in enumerate(self._tasks):
                if task in self._option[row]:
                    share = float(weights[row, column])
                    look: dict[str, Any] = {"linewidth": 0.4 + _THICKEST * share, "alpha": 0.3 + 0.6 * share**0.5}
                    axis.plot([place, column], [1.0, 0.0], color=_colour(row), solid_capstyle="butt", **look)
            box = {"boxstyle": "round,pad=0.4", "facecolor": _colour(row), "edgecolor": "none"}
            name = self._agents[self._rows[row]].name
            size = 8 if len(self._rows) <= MAX_CLUSTERS // 2 else 6
            axis.text(place, 1.0, name, ha="center", va="center", fontsize=size, color="white", bbox=box, zorder=4)
        for column, task in enumerate(self._tasks):
            self._task(axis, column, task)
        axis.text(-0.6, -0.22, "waited", ha="right", va="top", fontsize=7)
        axis.set_ylim(-0.4, 1.15)
        axis.axis("off")
        axis.set_title(
            "the thicker a line, the more the cluster looks at the task: mean over layers and heads\n"
            "a task's ring has the colour of the cluster that gets it",
            fontsize=8,
        )

    def _task(self, axis: Axes, column: int, task: int) -> None:
        option = next(options[task] for options in self._option if task in options)
        winner = [row for (row, wanted), got in self._wanted.items() if wanted == column and got]
        size = 17 if len(self._tasks) <= MAX_TASKS // 2 else 13
        if winner:
            axis.plot(column, 0.0, "o", markersize=size + 7, color=_colour(winner[0]), zorder=4)
        face = _shade(self._kinds.index(option.type))
        axis.plot(column, 0.0, "o", markersize=size, color=face, markeredgecolor="white", zorder=5)
        style: dict[str, Any] = {"ha": "center", "fontsize": 6.5}
        axis.text(column, 0.0, str(task), va="center_baseline", color="white", zorder=6, **style)
        axis.text(column, -0.22, str(option.waited), va="top", **style)

    def _table(self, axis: Axes, name: str, values: Numbers) -> None:
        """Percentages per cluster and task; blank where the task is not in the cluster's pending set."""
        for (row, column), value in np.ndenumerate(values):
            void = column == len(self._tasks)
            if void or self._tasks[column] in self._option[row]:
                depth = (value / 100.0) ** 0.6  # makes small shares visible
                corner = (column + _GAP * void - 0.46, row - 0.43)
                axis.add_patch(Rectangle(corner, 0.92, 0.86, facecolor=colormaps["Blues"](depth), edgecolor="none"))
                style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 6.5}
                axis.text(column + _GAP * void, row, _number(value), color="white" if depth > 0.6 else "black", **style)
        for (row, column), got in self._wanted.items():
            frame: dict[str, Any] = {"linewidth": 1.6, "linestyle": _GOT if got else _NOT_GOT, "edgecolor": "black"}
            axis.add_patch(Rectangle((column - 0.46, row - 0.43), 0.92, 0.86, facecolor="none", zorder=3, **frame))
        if values.shape[1] > len(self._tasks):
            axis.text(len(self._tasks) + _GAP, -0.55, "void", ha="center", va="bottom", fontsize=7)
        axis.set_title(f"{name} [%]", fontsize=8, loc="left")
        axis.set_xlim(-0.55, len(self._tasks) + 0.5 + _GAP)
        axis.set_ylim(len(self._rows) - 0.5, -0.5)
        axis.set_yticks(range(len(self._rows)), [self._agents[n].name for n in self._rows], fontsize=7)
        for row, label in enumerate(axis.get_yticklabels()):
            label.set_color(_colour(row))
        axis.set_xticks(range(len(self._tasks)), list(map(str, self._tasks)), fontsize=7)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)


def _colour(row: int) -> str:
    return COLOURS[row % len(COLOURS)]


def _shade(kind: int) -> str:
    return _SHADES[kind % len(_SHADES)]


def _number(percent: float) -> str:
    return f"{percent:.0f}" if percent >= 0.5 or percent == 0.0 else "<1"
