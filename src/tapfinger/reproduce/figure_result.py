"""A finished figure: what was measured, what it shows, and its files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tapfinger.drawing import save
from tapfinger.evaluation.report import Table
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.drawings import draw
from tapfinger.reproduce.figure_data import FigureData
from tapfinger.reproduce.sentences import sentences
from tapfinger.reproduce.tables import claims_table, main_table, numbers
from tapfinger.reproduce.verdicts import Judged, judge_all


@dataclass(frozen=True)
class FigureResult:
    """One figure as the report shows it."""

    measured: FigureData
    judged: list[Judged]
    sentences: list[str]
    table: Table
    #: Name of the drawing -> PNG; each has a PDF next to it.
    pictures: dict[str, Path]

    @property
    def figure(self) -> Figure:
        """The figure as declared."""
        return self.measured.figure

    @property
    def meta(self) -> str:
        """Its figure in the paper, and how much was measured."""
        where = f"In the paper: {self.figure.paper}" if self.figure.paper else "Not in the paper"
        all_runs = self.measured.runs.values()
        if not all_runs:
            return where
        seeds = _span(runs.seeds for runs in all_runs)
        tasks = _span(int(runs.summaries[runs.reference]["tasks"]) for runs in all_runs)
        return f"{where}. {seeds} seed{'s' * (seeds != '1')}, {tasks} tasks per run"


def _span(counts: Iterable[int]) -> str:
    """Smallest and largest count, or the only one."""
    found = sorted(set(counts))
    return " to ".join(f"{count:,}" for count in dict.fromkeys((found[0], found[-1])))


def make(measured: FigureData, folder: Path) -> FigureResult:
    """Judge, draw and write the files of one figure below a directory."""
    figure, judged = measured.figure, judge_all(measured)
    for below in ("figures", "tables"):
        (folder / below).mkdir(parents=True, exist_ok=True)
    pictures = {}
    for name in figure.pictures if not measured.missing else ():
        picture = draw(name, measured)
        pictures[name] = folder / "figures" / f"{figure.name}-{name}.png"
        for path in (pictures[name], pictures[name].with_suffix(".pdf")):
            save(picture, path)
    if not measured.missing:
        _write(folder / "tables" / f"{figure.name}.csv", numbers(measured))
    if judged:
        _write(folder / "tables" / f"{figure.name}-claims.csv", claims_table(judged))
    table = main_table(measured) if not measured.missing else Table((), ())
    return FigureResult(measured, judged, sentences(measured, judged), table, pictures)


def _write(path: Path, table: Table) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.head)
        writer.writerows(table.rows)
