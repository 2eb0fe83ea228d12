"""Compiled lending, for rollouts: resources that are spare in a slot speed up running tasks.

If resizing is free, lending for one slot changes only the progress made in it: allocations and free resources stay as
they are. (The readable simulator may afterwards split a task on a span otherwise among its nodes; here it is not.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapfinger.core.model import DONE
from tapfinger.sim.compiled import compiled, inlined
from tapfinger.sim.kernels import rate_of

Record = Any

#: Maximum number of tasks of a world that can be lent something: one bit each.
_MOST = 62


@inlined
def lend_round(b: int, tables: Record, sizes: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.schedulers.lending.Lending._give`: the progress that lending adds, without noise."""
    clusters, amounts = tables.capacity.shape
    # Tasks that more would help. A task that is only just starting, or waits for its data, cannot be resized.
    wanting, one = np.int64(0), np.int64(1)
    for i in range(min(_MOST, worlds.running_count[b])):
        j = worlds.running[b, i]
        kind = worlds.kind[b, j]
        fastest = sizes.rate[sizes.first[tables.speed[kind, worlds.cluster[b, j]]]]
        if worlds.elapsed[b, j] > 0 and rate_of(b, j, kind, tables, worlds) < fastest:
            wanting |= one << i
    for n in range(clusters):
        if wanting == 0:
            break
        spare = 0
        for r in range(amounts):
            worlds.room[b, r] = max(0, worlds.free[b, n, r])
            if worlds.spare.shape[1] > 0 and tables.node_first[n] < tables.node_first[n + 1]:
                worlds.room[b, r] = 0  # what its nodes, which come before it, have left
                for k in range(tables.node_first[n], tables.node_first[n + 1]):
                    worlds.room[b, r] += worlds.spare[b, tables.node[k], r]
            spare += worlds.room[b, r]
        while spare > 0:
            best, most, option = -1, 0, -1
            for i in range(min(_MOST, worlds.running_count[b])):
                if not wanting >> i & one:
                    continue
                j = worlds.running[b, i]
                if worlds.cluster[b, j] != n:
                    continue
                kind = worlds.kind[b, j]
                o = _fastest(b, j, kind, tables, sizes, worlds)
                held = rate_of(b, j, kind, tables, worlds)
                saved = 0
                if o >= 0 and sizes.rate[o] > held:
                    offset, progress = tables.shape_offset[tables.speed[kind, n]], worlds.progress[b, j]
                    saved = _slots(held, offset, progress) - _slots(sizes.rate[o], offset, progress)
                if saved <= 0:
                    wanting &= ~(one << i)  # even less will be free later
                elif saved > most:
                    best, most, option = i, saved, o
            if best < 0:
                break
            wanting &= ~(one << best)
            j = worlds.running[b, best]
            kind = worlds.kind[b, j]
            held = rate_of(b, j, kind, tables, worlds)
            offset = tables.shape_offset[tables.speed[kind, n]]
            worlds.progress[b, j] = _before(held, sizes.rate[option], offset, worlds.progress[b, j])
            spare = 0
            for r in range(amounts):
                worlds.room[b, r] += worlds.allocation[b, j, r] - sizes.allocation[option, r]
                spare += worlds.room[b, r]
        if worlds.spare.shape[1] > 0:
            for r in range(amounts):
                worlds.spare[b, n, r] = worlds.room[b, r]


@inlined
def _fastest(b: int, j: int, kind: int, tables: Record, sizes: Record, worlds: Record) -> Any:
    """The fastest option that fits the room left plus what task j holds, or -1."""
    position = 0
    for r in range(tables.extent.shape[1]):
        have = min(worlds.room[b, r] + worlds.allocation[b, j, r], tables.maximum[kind, r])
        position = position * tables.extent[kind, r] + have - tables.minimum[kind, r]
    return sizes.fastest[tables.first_rate[tables.speed[kind, worlds.cluster[b, j]]] + position]


@compiled
def _slots(rate: float, offset: float, progress: float) -> int:
    """Mirror of `tapfinger.core.model.SpeedProfile.slots`; ``offset`` is 0 where the speed is constant."""
    if offset == 0.0:
        return max(1, math.ceil((DONE - progress) / rate))
    count = 0
    while progress < DONE or count == 0:
        progress += rate * math.sqrt(max(0.0, offset - progress))
        count += 1
    return count


@compiled
def _before(held: float, lent: float, offset: float, progress: float) -> float:
    """The progress from which a slot at the rate ``held`` leads as far as one at ``lent`` does from ``progress``."""
    if offset == 0.0:
        return min(1.0, progress + lent - held)
    end = progress + lent * math.sqrt(offset - progress)
    if end >= DONE:
        return 1.0
    root = 0.5 * (held + math.sqrt(held * held + 4.0 * (offset - end)))
    return offset - root * root
