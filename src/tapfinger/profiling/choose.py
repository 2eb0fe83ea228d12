"""Which cells to measure next: corners first, then those about which least is known for the time they take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from tapfinger.profiles.surface import Surface
from tapfinger.profiling.grid import Cell, Grid

#: Cells measured between two looks at all that is known: their repeats lie some time apart, and fitting takes time.
BATCH: Final = 4

#: Doubt counts against seconds to this power. 1 would measure only the quickest cells, 0 ignore what time is worth.
PRICE: Final = 0.5

#: Cells of one batch that lie within this distance in log amounts would tell much the same.
APART: Final = 0.7


def next_batch(grid: Grid, surface: Surface | None, closed: Collection[Cell], most: int = BATCH) -> list[Cell]:
    """Cells worth measuring most, best first; none of ``closed``, which are measured or have failed.

    Corners come first whatever is expected of them: between them the rest is interpolated, beyond them nothing.
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
    """How far it lies from the middle, counted in amounts: where to look if nothing is known, as corners failed."""
    places = ((axis.index(a), len(axis) - 1) for axis, a in zip(grid.amounts.values(), cell, strict=True))
    return sum(abs(place - 0.5 * last) for place, last in places)


def _floors(grid: Grid) -> Sequence[float]:
    """By resource: half of the least amount above 0, for 0."""
    return [0.5 * min((a for a in axis if a > 0.0), default=1.0) for axis in grid.amounts.values()]
