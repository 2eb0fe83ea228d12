"""Sums over a run that need little memory: series over slots, and starts by slot of arrival."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tapfinger.records import FloatArray, IntArray, RunRecord

#: Most bins of a series; a longer series uses bins of 2, 4, 8 ... slots. Powers of two nest, so series of
#: different length can still be averaged exactly.
MAX_BINS = 1024

#: Slots per block of ``StartCounts``.
_BLOCK = 64


class SlotSeries:
    """Sums of several quantities per bin of slots; bins double in width when there would be too many."""

    def __init__(self, columns: int) -> None:
        """Start with all sums at zero."""
        self.width = 1
        self.sums = np.zeros((MAX_BINS, columns), dtype=np.int64)

    def add(self, slots: IntArray, lengths: IntArray, levels: IntArray) -> None:
        """Add rows of ``levels``; each row held for ``lengths`` slots, starting at ``slots``."""
        while (slots[-1] + lengths[-1] - 1) // self.width >= MAX_BINS:
            half = MAX_BINS // 2
            self.sums[:half] = self.sums[0::2] + self.sums[1::2]
            self.sums[half:] = 0
            self.width *= 2
        whole = slots // self.width == (slots + lengths - 1) // self.width
        np.add.at(self.sums, slots[whole] // self.width, levels[whole] * lengths[whole, None])
        for row in np.flatnonzero(~whole):
            self._spread(int(slots[row]), int(lengths[row]), levels[row])

    def _spread(self, slot: int, length: int, level: IntArray) -> None:
        end = slot + length
        while slot < end:
            index = slot // self.width
            upto = min(end, (index + 1) * self.width)
            self.sums[index] += level * (upto - slot)
            slot = upto


class StartCounts:
    """Number of tasks started on each cluster, by slot of arrival, back to the oldest waiting task.

    Kept in rows of single slots and of blocks of slots, so that a long wait is counted in few additions.
    """

    def __init__(self, clusters: int) -> None:
        """Start with no starts."""
        #: Slot of the first row; None before the first start that may overtake a waiting task.
        self._base: int | None = None
        self._latest = 0
        self._rows = np.zeros((4 * _BLOCK, clusters), dtype=np.int32)
        self._blocks = np.zeros((4, clusters), dtype=np.int32)

    def add(self, arrival: int, cluster: int, oldest_waiting: int) -> None:
        """Record the start of a task that arrived then; no waiting task arrived before ``oldest_waiting``."""
        if arrival <= oldest_waiting:
            return  # overtakes no waiting task
        if self._base is None:
            # Below zero if tasks waited before the run began, as in what-if.
            self._base, self._latest = oldest_waiting // _BLOCK * _BLOCK, arrival
        if arrival - self._base >= len(self._rows):
            self._base = self._make_room(self._base, arrival, oldest_waiting)
        self._rows[arrival - self._base, cluster] += 1
        self._blocks[(arrival - self._base) // _BLOCK, cluster] += 1
        self._latest = max(self._latest, arrival)

    def _make_room(self, before: int, arrival: int, oldest_waiting: int) -> int:
        base = oldest_waiting // _BLOCK * _BLOCK
        kept = self._rows[max(0, base - before) :]
        blocks = (arrival - base) // _BLOCK + 1
        rows = np.zeros((2 * blocks * _BLOCK, kept.shape[1]), dtype=np.int32)
        rows[: len(kept)] = kept[: len(rows)]
        self._rows = rows
        self._blocks = rows.reshape(-1, _BLOCK, rows.shape[1]).sum(axis=1, dtype=np.int32)
        return base

    def later_than(self, arrival: int, clusters: list[int]) -> int:
        """Number of starts on these clusters of tasks that arrived after that slot."""
        if self._base is None or arrival >= self._latest:
            return 0
        first = max(0, arrival + 1 - self._base)
        block = -(-first // _BLOCK)
        singles = self._rows[first : block * _BLOCK, clusters].sum()
        return int(singles + self._blocks[block:, clusters].sum())


def align(runs: Sequence[RunRecord], series: str) -> tuple[int, FloatArray]:
    """Slots per bin, and (runs, bins, ...) one series of several runs on common bins; zero after a run has ended."""
    width = max(run.bin_slots for run in runs)
    bins = max(-(-run.slots // width) for run in runs)
    first: FloatArray = getattr(runs[0], series)
    aligned = np.zeros((len(runs), bins, *first.shape[1:]))
    for run, row in zip(runs, aligned, strict=True):
        sums = getattr(run, series) * run.bin_lengths.reshape(-1, *[1] * (first.ndim - 1))
        np.add.at(row, np.arange(len(sums)) * run.bin_slots // width, sums)
    return width, aligned / width
