"""Which cells to measure next: corners first, then the least known cells relative to the time they take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from tapfinger.profiles.surface import Surface
from tapfinger.profiling.grid import Cell, Grid

#: Cells measured between two fits: this keeps their repeats apart in time, and fitting takes time.
BATCH: Final = 4

#: Power of the seconds that doubt is weighed against. 1 would measure only the quickest cells, 0 would ignore time.
PRICE: Final = 0.5

#: Distance in log amounts within which cells of one batch would tell much the same.
APART: Final = 0.7


def next_batch(grid: Grid, surface: Surface | None, closed: Collection[Cell], most: int = BATCH) -> list[Cell]:
    """The cells most worth measuring, best first, without ``closed`` ones, which are measured or have failed.

    Corners always come first: the rest is interpolated between them, and nothing is extrapolated beyond them.
    """
    corners = [cell for cell in grid.corners() if cell not in closed]
    if corners:
        return corners[:most]
    open_cells = [cell for cell in grid.cells() if cell not in closed]
    if surface is None or not open_cells:
        return sorted(open_cells, key=lambda cell: _from_middle(grid, cell))[:most]
    log_seconds, doubt = surface.predict(open_cells)
    worth = doubt * np.exp(-PRICE * log_seconds)
    at = np.log(np.maximum(np.array(open_cells), _floors(grid)))
    chosen: list[int] = []
    while len(chosen) < min(most, len(open_cells)):
        best = int(np.argmax(worth))
        chosen.append(best)
        near = np.square(at - at[best]).sum(axis=1)
        worth = worth * (1.0 - np.exp(-near / (2.0 * APART**2)))
        worth[chosen] = -1.0
    return [open_cells[i] for i in chosen]


def _from_middle(grid: Grid, cell: Cell) -> float:
    """Distance of a cell from the middle of the grid, in amounts; used if nothing is known because corners failed."""
    places = ((axis.index(a), len(axis) - 1) for axis, a in zip(grid.amounts.values(), cell, strict=True))
    return sum(abs(place - 0.5 * last) for place, last in places)


def _floors(grid: Grid) -> Sequence[float]:
    """Half of the smallest amount above 0, by resource, used in place of 0."""
    return [0.5 * min((a for a in axis if a > 0.0), default=1.0) for axis in grid.amounts.values()]
