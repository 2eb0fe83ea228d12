"""Plots of one speed profile: seconds at every size, and how certain they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tapfinger.drawing import heat_map, new_figure


def draw_profile(name: str, cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A map over the two resources that vary most, the others at their minimum; a curve if only one varies."""
    names = list(cells[0]["allocation"])
    amounts = {n: sorted({cell["allocation"][n] for cell in cells}) for n in names}
    axes = sorted((n for n in names if len(amounts[n]) > 1), key=lambda n: -len(amounts[n]))[:2] or names[:1]
    rest = [n for n in names if n not in axes]
    shown = [cell for cell in cells if all(cell["allocation"][n] == amounts[n][0] for n in rest)]
    if len(axes) == 1:
        figure, only = new_figure(4.0, 6.0)
        _curve(only[0, 0], axes[0], shown)
    else:
        figure, two = new_figure(4.5, 11.0, ncols=2)
        axes.sort(key=names.index)
        _map(two[0, 0], "seconds", axes, amounts, shown, [cell["seconds"] for cell in shown], ".3g")
        _map(two[0, 1], "doubt, %", axes, amounts, shown, [100.0 * np.expm1(cell["doubt"]) for cell in shown], ".2g")
    at = "".join(f", {amounts[n][0]:g} {n}" for n in rest if amounts[n][0])
    figure.suptitle(f"{name}{at}")
    figure.savefig(path, dpi=120)  # the path's suffix gives the format


def _curve(axes: Axes, resource: str, cells: Sequence[Mapping[str, Any]]) -> None:
    x = np.array([cell["allocation"][resource] for cell in cells])
    order = np.argsort(x)
    seconds, doubt = (np.array([cell[key] for cell in cells])[order] for key in ("seconds", "doubt"))
    axes.plot(x[order], seconds, marker="o", markersize=3)
    axes.fill_between(x[order], seconds * np.exp(-doubt), seconds * np.exp(doubt), alpha=0.25, label="doubt")
    if cells[0]["configured_seconds"] is not None:
        configured = np.array([cell["configured_seconds"] for cell in cells])[order]
        axes.plot(x[order], configured, linestyle="--", color="grey", label="configured")
    axes.set_xlabel(resource)
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0.0)
    axes.legend()


def _map(
    axes: Axes,
    title: str,
    resources: Sequence[str],
    amounts: Mapping[str, Sequence[float]],
    cells: Sequence[Mapping[str, Any]],
    values: Sequence[float],
    form: str,
) -> None:
    first, second = resources
    table = np.full((len(amounts[second]), len(amounts[first])), np.nan)
    for cell, value in zip(cells, values, strict=True):
        size = cell["allocation"]
        table[amounts[second].index(size[second]), amounts[first].index(size[first])] = value
    numbers = table.size <= 150
    texts = [[f"{value:{form}}" if np.isfinite(value) else "" for value in row] for row in table]
    heat_map(axes, table, texts if numbers else None, origin="lower")
    for axis, resource, ticks in ((axes.xaxis, first, axes.set_xticks), (axes.yaxis, second, axes.set_yticks)):
        some = range(0, len(amounts[resource]), max(1, len(amounts[resource]) // 16))
        ticks(list(some), [f"{amounts[resource][n]:g}" for n in some])
        axis.set_label_text(resource)
    axes.set_title(title)
    seen = [cell["allocation"] for cell in cells if cell["runs"]]
    x = [amounts[first].index(size[first]) for size in seen]
    y = [amounts[second].index(size[second]) for size in seen]
    # Next to a number, the circle is drawn below it.
    axes.scatter(x, np.array(y) - (0.28 if numbers else 0.0), s=12, facecolors="white", edgecolors="black")
