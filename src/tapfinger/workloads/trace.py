"""Arrivals from a workload file: the same tasks for every seed, or a random window of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tapfinger.errors import ConfigError, DataError, UnknownNameError
from tapfinger.workloads.base import Arrivals, WorkloadContext
from tapfinger.workloads.files import ALL_CLUSTERS, SEPARATOR, WorkloadFile, read_workload

#: A last arrival beyond this slot is treated as a calendar time that was not made relative.
MAX_SLOT = 10_000_000


class Trace:
    """Tasks of a workload file (docs/workloads.md), in slots of the scenario."""

    def __init__(
        self,
        file: str,
        time_scale: float = 1.0,
        start: float = 0.0,
        end: float | None = None,
        window: int | None = None,
        sort: bool = False,
    ) -> None:
        """Options of ``[arrivals]``.

        ``file``: relative to the scenario. ``start``, ``end``: only tasks that arrive in start <= seconds < end,
        counted from start. ``time_scale``: multiplies times, so 0.5 doubles the rate. ``window``: play this many
        consecutive tasks, drawn for each seed, from the arrival of the first one on. ``sort``: accept a file whose
        times go backwards.
        """
        if not isinstance(file, str) or not file:
            raise ConfigError(f"arrivals.file = {file!r} must be the path of a workload file")
        self._file = file
        self._time_scale = _number("time_scale", time_scale)
        self._start = _number("start", start, zero=True)
        self._end = math.inf if end is None else _number("end", end)
        if self._end <= self._start:
            raise ConfigError(f"arrivals.end = {end} must come after arrivals.start = {start}")
        if window is not None and (not isinstance(window, int) or window < 1):
            raise ConfigError(f"arrivals.window = {window!r} must be a number of tasks, 1 or more")
        self._window = window
        self._sort = sort

    def arrivals(self, context: WorkloadContext, rng: np.random.Generator) -> Arrivals:
        """Read the file, choose its tasks and translate names to indices."""
        path = Path(context.directory) / self._file
        trace = read_workload(path, self._sort)
        chosen = np.flatnonzero((trace.arrival >= self._start) & (trace.arrival < self._end))
        if len(chosen) == 0:
            raise DataError(
                f"{path}: none of its {len(trace)} tasks arrives between start {self._start:g} and end {self._end:g} s "
                f"(they arrive from {trace.arrival.min():g} to {trace.arrival.max():g} s)"
            )
        begin = self._start
        if self._window is not None and self._window < len(chosen):
            first = int(rng.integers(len(chosen) - self._window + 1))
            chosen = chosen[first : first + self._window]
            begin = float(trace.arrival[chosen[0]])
        chosen = chosen[: context.tasks]
        return Arrivals(
            slot=self._slots(trace, chosen, begin, context.slot_seconds),
            type=_types(trace, chosen, context.type_names),
            eligible=_eligible(trace, chosen, context.cluster_names),
            where=lambda task: trace.where(int(chosen[task])),
        )

    def _slots(
        self, trace: WorkloadFile, chosen: npt.NDArray[np.intp], begin: float, slot_seconds: float
    ) -> npt.NDArray[np.int64]:
        # The small addition keeps 0.3 s in slot 3 of 0.1 s each, although 0.3 / 0.1 is below 3 in floating point.
        slots = np.floor((trace.arrival[chosen] - begin) * self._time_scale / slot_seconds + 1e-9)
        if slots[-1] > MAX_SLOT:
            late = int(chosen[-1])
            raise DataError(
                f"{trace.where(late)}: arrival {trace.arrival[late]:.10g} s = slot {slots[-1]:.0f}, over {MAX_SLOT:,}; "
                "count seconds from the start of the workload (set arrivals.start to the first time), or use a "
                "larger slot_seconds"
            )
        return slots.astype(np.int64)


def _number(name: str, value: float, zero: bool = False) -> float:
    good = isinstance(value, int | float) and math.isfinite(value) and (value > 0 or (zero and value == 0))
    if not good:
        raise ConfigError(f"arrivals.{name} = {value!r} must be a number {'of 0 or more' if zero else 'above 0'}")
    return float(value)


def _types(trace: WorkloadFile, chosen: npt.NDArray[np.intp], names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    index = {name: i for i, name in enumerate(names)}
    for task in chosen:
        if trace.type[task] not in index:
            raise DataError(f"{trace.where(task)}: {UnknownNameError('task type', trace.type[task], names)}")
    return np.array([index[trace.type[task]] for task in chosen], dtype=np.int64)


def _eligible(
    trace: WorkloadFile, chosen: npt.NDArray[np.intp], names: tuple[str, ...]
) -> npt.NDArray[np.bool_] | None:
    """(tasks, clusters), or None if no row says where its task may run."""
    given = [task for task in chosen if trace.eligible[task]]
    if not given:
        return None
    if len(given) < len(chosen):
        empty = next(task for task in chosen if not trace.eligible[task])
        raise DataError(
            f"{trace.where(empty)}: eligible is empty, but {trace.where(given[0])} has {trace.eligible[given[0]]!r}; "
            f"fill it in every row ({ALL_CLUSTERS} for all clusters) or in none, to have it drawn"
        )
    rows: dict[str, npt.NDArray[np.bool_]] = {}
    for task in chosen:
        text = trace.eligible[task]
        if text not in rows:
            rows[text] = _clusters(trace.where(task), text, names)
    return np.stack([rows[trace.eligible[task]] for task in chosen])


def _clusters(where: str, text: str, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    if text == ALL_CLUSTERS:
        return np.ones(len(names), dtype=np.bool_)
    row = np.zeros(len(names), dtype=np.bool_)
    for name in (part.strip() for part in text.split(SEPARATOR)):
        if name not in names:
            raise DataError(f"{where}: eligible = {text!r}: {UnknownNameError('cluster', name, names)}")
        row[names.index(name)] = True
    return row
