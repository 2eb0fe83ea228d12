"""Generated arrival processes: Poisson, bursty, day-night."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tapfinger.errors import ConfigError
from tapfinger.workloads.base import Arrivals, WorkloadContext


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

    def _rates(self, first_slot: int, slots: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        raise NotImplementedError

    def arrivals(self, context: WorkloadContext, rng: np.random.Generator) -> Arrivals:
        """Draw slot by slot, in chunks, until there are enough tasks."""
        wanted = _count(context)
        chunks: list[npt.NDArray[np.int64]] = []
        have, slot, size = 0, 0, 4096
        while have < wanted:
            chunk = _fill(rng.poisson(self._rates(slot, size, rng)), slot)
            chunks.append(chunk)
            have += len(chunk)
            slot += size
        return Arrivals(slot=np.concatenate(chunks)[:wanted])


class Poisson(_Modulated):
    """Independent arrivals at a constant rate."""

    def __init__(self, rate: float) -> None:
        """``rate``: mean tasks per slot."""
        self._rate = _positive("rate", rate)

    def _rates(self, first_slot: int, slots: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:  # noqa: ARG002
        return np.full(slots, self._rate)


class Bursty(_Modulated):
    """Calm and burst phases of random length (a two-state Markov-modulated Poisson process)."""

    def __init__(
        self, rate: float, burst_factor: float = 4.0, burst_share: float = 0.2, burst_slots: float = 10.0
    ) -> None:
        """``rate`` is the overall mean; bursts have ``burst_factor`` times the calm rate.

        ``burst_share`` of the time is burst, each burst ``burst_slots`` long on average.
        """
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
        self._calm = _positive("rate", rate) / (1.0 - share + share * factor)
        self._burst = self._calm * factor
        self._share = share

    def _rates(self, first_slot: int, slots: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:  # noqa: ARG002
        rates = np.empty(slots)
        draws = rng.random(slots)
        burst = bool(rng.random() < self._share)
        for i in range(slots):
            rates[i] = self._burst if burst else self._calm
            burst = draws[i] >= self._end_burst if burst else draws[i] < self._begin_burst
        return rates


class DayNight(_Modulated):
    """A rate that swings like day and night: rate * (1 + swing * sin(2 pi slot / period))."""

    def __init__(self, rate: float, swing: float = 0.8, period: float = 8640.0) -> None:
        """``period`` in slots (8,640 slots of 10 s are a day); ``swing`` at most 1."""
        self._rate = _positive("rate", rate)
        self._swing = _positive("swing", swing, zero=True)
        if self._swing > 1:
            raise ConfigError(f"arrivals.swing = {self._swing:g} must be at most 1")
        self._period = _positive("period", period)

    def _rates(self, first_slot: int, slots: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:  # noqa: ARG002
        slot = np.arange(first_slot, first_slot + slots)
        swing: npt.NDArray[np.float64] = np.sin(2.0 * np.pi * slot / self._period)
        return self._rate * (1.0 + self._swing * swing)
