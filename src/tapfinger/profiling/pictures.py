"""A profile as pictures: a heat map of seconds, and seconds over each resource while the others stay fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tapfinger.drawing import heat_map, new_figure, save
from tapfinger.profiles.surface import Surface, fit_surface
from tapfinger.profiling.campaign import Findings
from tapfinger.profiling.grid import Cell

#: Most cells of a heat map with numbers.
MOST_NUMBERS = 200

#: Most amounts labelled on an axis.
MOST_TICKS = 17

#: Most curves in a panel.
MOST_CURVES = 5


def draw(findings: Findings, task_type: str, heatmap: Path, curves: Path) -> None:
    """Write both pictures; unmeasured cells are drawn from the speed model, and marked as such."""
    surface = fit_surface(findings.grid.resources, findings.counted)
    save(_heatmap(findings, surface, task_type), heatmap, dpi=120)
    save(_curves(findings, surface, task_type), curves, dpi=120)


def _heatmap(findings: Findings, surface: Surface, task_type: str) -> Figure:
    """Heat map over the first two resources, with any further one at its largest amount."""
    grid, counted = findings.grid, findings.counted
    names, axes = grid.resources[:2], list(grid.amounts.values())
    rows, columns = axes[0], axes[1] if len(axes) > 1 else (0.0,)
    rest = tuple(axis[-1] for axis in axes[2:])
    cells = [[((row, column) if len(axes) > 1 else (row,)) + rest for column in columns] for row in rows]
    flat: list[Cell] = [cell for line in cells for cell in line]
    modelled = np.exp(surface.predict(flat)[0])
    measured = [float(np.mean(counted[cell])) if cell in counted else None for cell in flat]
    shown = np.array([m if m is not None else s for m, s in zip(measured, modelled, strict=True)])
    shown[[cell in findings.failed for cell in flat]] = np.nan

    figure, grid_of_axes = new_figure(max(3.0, 1.4 + 0.42 * len(rows)), max(4.0, 1.6 + 0.75 * len(columns)))
    ax = grid_of_axes[0, 0]
    texts = [
        "failed" if cell in findings.failed else f"{seconds:.3g}" if known is not None else f"({seconds:.3g})"
        for cell, seconds, known in zip(flat, shown, measured, strict=True)
    ]
    shape = (len(rows), len(columns))
    written = np.reshape(texts, shape).tolist() if len(flat) <= MOST_NUMBERS else None
    heat_map(ax, shown.reshape(shape), written, "seconds")
    ax.set_yticks(range(len(rows)), [f"{a:g}" for a in rows])
    ax.set_xticks(range(len(columns)), [f"{a:g}" for a in columns] if len(axes) > 1 else [""])
    ax.set(ylabel=names[0], xlabel=names[1] if len(names) > 1 else "")
    more = "".join(f", {a:g} {n}" for n, a in zip(grid.resources[2:], rest, strict=True))
    guessed = any(m is None and cell not in findings.failed for m, cell in zip(measured, flat, strict=True))
    ax.set_title(f"{task_type}{more}" + ("; in brackets: not measured" if guessed else ""))
    return figure


def _curves(findings: Findings, surface: Surface, task_type: str) -> Figure:
    """A panel per resource: seconds over its amounts, with a curve for each of some amounts of another resource."""
    grid = findings.grid
    panels = [r for r, axis in enumerate(grid.amounts.values()) if len(axis) > 1] or [0]
    figure, axes = new_figure(3.8, 5.2 * len(panels), ncols=len(panels))
    for ax, r in zip(axes.flat, panels, strict=True):
        _panel(ax, findings, surface, r)
    figure.suptitle(f"{task_type}: points were measured, lines are the speed model with its doubt")
    return figure


def _panel(ax: Axes, findings: Findings, surface: Surface, r: int) -> None:
    grid, axes = findings.grid, list(findings.grid.amounts.values())
    other = next((o for o, axis in enumerate(axes) if o != r and len(axis) > 1), None)
    held = [axis[-1] for axis in axes]
    for i, amount in enumerate(_some(axes[other]) if other is not None else (None,)):
        if other is not None and amount is not None:
            held[other] = amount
        line = [tuple(a if o == r else held[o] for o in range(len(axes))) for a in axes[r]]
        mean, doubt = surface.predict(line)
        label = "" if other is None else f"{amount:g} {grid.resources[other]}"
        ax.plot(axes[r], np.exp(mean), color=f"C{i}", linewidth=1.2, label=label)
        ax.fill_between(axes[r], np.exp(mean - doubt), np.exp(mean + doubt), color=f"C{i}", alpha=0.15, linewidth=0)
        points = [(cell[r], s) for cell in line for s in findings.counted.get(cell, ())]
        if points:
            ax.plot(*zip(*points, strict=True), "o", color=f"C{i}", markersize=3.5)
    ax.set(xlabel=grid.resources[r], ylabel="seconds")
    ax.set_ylim(bottom=0.0)
    if len(axes[r]) <= MOST_TICKS:
        ax.set_xticks(axes[r], [f"{a:g}" for a in axes[r]])
    if other is not None:
        ax.legend(fontsize=8)


def _some(axis: tuple[float, ...]) -> list[float]:
    """A few amounts, including both ends."""
    positions = np.unique(np.linspace(0, len(axis) - 1, min(len(axis), MOST_CURVES)).round().astype(int))
    return [axis[i] for i in positions.tolist()]
