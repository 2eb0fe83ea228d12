"""Generated arrival processes: Poisson, bursty, day-night."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tapfinger.errors import ConfigError
from tapfinger.workloads.base import Arrivals, WorkloadContext

#: Slots drawn at a time.
CHUNK = 4096

#: Maximum length of a workload in slots. A longer one is treated as a typing error: no run would ever end.
MAX_SLOTS = 10_000_000

#: Maximum mean tasks in one slot; more are treated as a typing error, too.
MAX_RATE = 1e9


def _positive(name: str, value: float, zero: bool = False) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ConfigError(f"arrivals.{name} = {value!r} must be a number {'at least' if zero else 'above'} 0")
    return float(value)


def _count(context: WorkloadContext) -> int:
    if context.tasks is None:
        raise ConfigError("generated arrivals need the number of tasks: set tasks in the scenario")
    return context.tasks


def _fill(counts: npt.NDArray[np.int64], first_slot: int) -> npt.NDArray[np.int64]:
    """Tasks per slot -> slot per task."""
    return np.repeat(np.arange(first_slot, first_slot + len(counts)), counts)


class _Modulated:
    """Poisson arrivals whose rate may change from slot to slot."""

    def __init__(self, rate: float) -> None:
        self._rate = _positive("rate", rate)
        if self._rate > MAX_RATE:
            raise ConfigError(f"arrivals.rate = {rate:g} must be at most {MAX_RATE:g} tasks per slot; lower it")

    def _rates(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        """(CHUNK,) expected tasks in each slot, chunk after chunk without end; their mean is ``rate``."""
        raise NotImplementedError

    def arrivals(self, context: WorkloadContext, rng: np.random.Generator) -> Arrivals:
        """Draw slot by slot, in chunks, until there are enough tasks."""
        wanted = _count(context)
        if wanted / self._rate > MAX_SLOTS:
            raise ConfigError(
                f"arrivals.rate = {self._rate:g}: {wanted:,} tasks would take about {wanted / self._rate:,.0f} slots, "
                f"over {MAX_SLOTS:,}; raise the rate (tasks per slot) or lower tasks"
            )
        chunks: list[npt.NDArray[np.int64]] = []
        have, rates = 0, self._rates(rng)
        while have < wanted:
            if len(chunks) * CHUNK > MAX_SLOTS:
                raise ConfigError(
                    f"arrivals: only {have:,} of {wanted:,} tasks came in {MAX_SLOTS:,} slots; raise the rate, or make "
                    "bursts less rare"
                )
            counts = rng.poisson(next(rates))
            # No more than are wanted: at a high rate a whole chunk of tasks would fill the memory.
            counts = np.diff(np.minimum(np.cumsum(counts), wanted - have), prepend=0)
            chunks.append(_fill(counts, len(chunks) * CHUNK))
            have += len(chunks[-1])
        return Arrivals(slot=np.concatenate(chunks))


class Poisson(_Modulated):
    """Independent arrivals at a constant rate."""

    def __init__(self, rate: float) -> None:
        """``rate``: mean tasks per slot."""
        super().__init__(rate)

    def _rates(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:  # noqa: ARG002
        while True:
            yield np.full(CHUNK, self._rate)


class Bursty(_Modulated):
    """Calm and burst phases of random length (a two-state Markov-modulated Poisson process)."""

    def __init__(
        self, rate: float, burst_factor: float = 4.0, burst_share: float = 0.2, burst_slots: float = 10.0
    ) -> None:
        """``rate`` is the overall mean; bursts have ``burst_factor`` times the calm rate.

        ``burst_share`` of the time is burst, each burst ``burst_slots`` long on average.
        """
        super().__init__(rate)
        factor = _positive("burst_factor", burst_factor)
        share = _positive("burst_share", burst_share)
        if share >= 1:
            raise ConfigError(f"arrivals.burst_share = {share:g} must be below 1")
        self._end_burst = 1.0 / max(1.0, _positive("burst_slots", burst_slots))
        self._begin_burst = self._end_burst * share / (1.0 - share)
        if self._begin_burst > 1:
            raise ConfigError(
                f"arrivals.burst_share = {share:g} cannot be reached with bursts of burst_slots = {burst_slots:g}: "
                "calm phases would be shorter than a slot; make bursts longer or their share smaller"
            )
        self._calm = self._rate / (1.0 - share + share * factor)
        self._burst = self._calm * factor
        if self._burst > MAX_RATE:
            raise ConfigError(
                f"arrivals.burst_factor = {factor:g} gives bursts of {self._burst:g} tasks per slot, over "
                f"{MAX_RATE:g}; lower it or the rate"
            )
        self._share = share

    def _rates(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        burst = rng.random() < self._share
        while True:
            rates = []
            for draw in rng.random(CHUNK).tolist():
                rates.append(self._burst if burst else self._calm)
                burst = draw >= self._end_burst if burst else draw < self._begin_burst
            yield np.array(rates)


class DayNight(_Modulated):
    """A rate that swings like day and night: rate * (1 + swing * sin(2 pi slot / period))."""

    def __init__(self, rate: float, swing: float = 0.8, period: float = 8640.0) -> None:
        """``period`` in slots (8,640 slots of 10 s are a day); ``swing`` at most 1."""
        super().__init__(rate)
        self._swing = _positive("swing", swing, zero=True)
        if self._swing > 1:
            raise ConfigError(f"arrivals.swing = {self._swing:g} must be at most 1")
        self._period = _positive("period", period)

    def _rates(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:  # noqa: ARG002
        for first_slot in itertools.count(0, CHUNK):
            slot = np.arange(first_slot, first_slot + CHUNK)
            yield self._rate * (1.0 + self._swing * np.sin(2.0 * np.pi * slot / self._period))
