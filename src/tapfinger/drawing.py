"""Shared by all plots: colours, figures and their files. Import this module late: matplotlib is slow to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tapfinger.errors import ConfigError

#: Okabe and Ito's colours, distinguishable with any colour vision; without yellow, which is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (1, 2.5)))
_WIDTH = 9.0


def look(place: int) -> dict[str, Any]:
    """Colour and dashes of a line by its number."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": _DASHES[place // len(COLOURS) % len(_DASHES)]}


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure as PDF if the path ends in .pdf, else as PNG.

    The file holds no date or version, so that the same numbers give the same file.
    """
    kind = "pdf" if path.suffix == ".pdf" else "png"
    left_out = {"Creator": None, "Producer": None, "CreationDate": None} if kind == "pdf" else {"Software": None}
    try:
        figure.savefig(path, dpi=dpi, metadata=left_out, format=kind)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another path") from None


def new_figure(height: float, width: float = _WIDTH, **grid: Any) -> tuple[Figure, Any]:
    """A figure, of the common width unless another is given, and its axes as a matrix."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(squeeze=False, **grid)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def add_legend(figure: Figure, axis: Axes, count: int) -> None:
    """Add a legend below all axes, in rows of equal length."""
    handles, labels = axis.get_legend_handles_labels()
    columns = -(-count // -(-count // 5))  # at most 5, and rows of equal length
    # The handles are long enough to tell dashes apart.
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False, handlelength=3.2
    )


def heat_map(
    axis: Axes, table: npt.NDArray[np.float64], texts: Sequence[Sequence[str]] | None, label: str = "", **how: Any
) -> None:
    """Draw seconds, or their doubt, as colours with a scale; ``texts``: what is written into the cells, if anything."""
    image = axis.imshow(table, aspect="auto", cmap="viridis_r", **how)
    axis.figure.colorbar(image, ax=axis, label=label)
    if texts is None:
        return
    middle = (np.nanmin(table) + np.nanmax(table)) / 2.0 if np.isfinite(table).any() else 0.0
    for (row, column), value in np.ndenumerate(table):
        colour = "white" if value > middle else "black"
        axis.text(column, row, texts[row][column], ha="center", va="center", fontsize=7, color=colour)
