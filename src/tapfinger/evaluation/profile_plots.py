"""Pictures of one speed profile: seconds of every size, and how certain they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes


def draw_profile(name: str, cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A map over the two resources that vary most, the others at their least; a curve if only one varies."""
    names = list(cells[0]["allocation"])
    amounts = {n: sorted({cell["allocation"][n] for cell in cells}) for n in names}
    axes = sorted((n for n in names if len(amounts[n]) > 1), key=lambda n: -len(amounts[n]))[:2] or names[:1]
    rest = [n for n in names if n not in axes]
    shown = [cell for cell in cells if all(cell["allocation"][n] == amounts[n][0] for n in rest)]
    if len(axes) == 1:
        figure, only = plt.subplots(figsize=(6, 4), layout="constrained")
        _curve(only, axes[0], shown)
    else:
        figure, two = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
        axes.sort(key=names.index)
        _map(two[0], "seconds", axes, amounts, shown, [cell["seconds"] for cell in shown], ".3g")
        _map(two[1], "doubt, %", axes, amounts, shown, [100.0 * np.expm1(cell["doubt"]) for cell in shown], ".2g")
    at = "".join(f", {amounts[n][0]:g} {n}" for n in rest if amounts[n][0])
    figure.suptitle(f"{name}{at}")
    try:
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)


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
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis_r")
    axes.figure.colorbar(image, ax=axes)
    for axis, resource, ticks in ((axes.xaxis, first, axes.set_xticks), (axes.yaxis, second, axes.set_yticks)):
        some = range(0, len(amounts[resource]), max(1, len(amounts[resource]) // 16))
        ticks(list(some), [f"{amounts[resource][n]:g}" for n in some])
        axis.set_label_text(resource)
    axes.set_title(title)
    seen = [cell["allocation"] for cell in cells if cell["runs"]]
    x = [amounts[first].index(size[first]) for size in seen]
    y = [amounts[second].index(size[second]) for size in seen]
    numbers = table.size <= 150
    # Beside a number the circle stands below it.
    axes.scatter(x, np.array(y) - (0.28 if numbers else 0.0), s=12, facecolors="white", edgecolors="black")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2.0
    for (row, column), value in np.ndenumerate(table) if numbers else ():
        if np.isfinite(value):
            colour = "white" if value > middle else "black"
            axes.text(column, row, f"{value:{form}}", ha="center", va="center", fontsize=7, color=colour)
