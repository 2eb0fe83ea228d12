"""Compiled first slots of plans, for lookahead: what a plan starts now, and plans that differ from it in one task."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapfinger.sim.compiled import compiled
from tapfinger.sim.kernels import mixed, start
from tapfinger.sim.plan_kernels import copy_world, greedy_round, plan_of

Array = Any
Record = Any

# A literal 0 as an argument would make numba compile the called function once more, for that literal.
_ZERO: Any = np.int64(0)

#: Maximum number of sizes tried for a changed task on a cluster.
NEIGHBOUR_SIZES = 3


@compiled
def first_moves(
    tables: Record,
    sizes: Record,
    plans: Array,
    keys: Array,
    moves: Record,
    draws: Record,
    now: Record,
    after: Record,
    first: int,
    digest: Array,
) -> None:
    """World first+p of ``after`` gets the state once plan p has been played in world 0 of ``now``.

    A plan is its moves, and then a greedy round. Plans that start the same tasks on the same clusters at the same sizes
    have the same ``digest``.
    """
    for p in range(plans.shape[0]):
        b = first + p
        copy_world(now, _ZERO, after, b)
        for i in range(moves.length[p]):
            row = p * moves.task.shape[1] + i
            if _legal(b, moves.task[p, i], moves.cluster[p, i], moves.allocation, row, tables, draws, after):
                start(_ZERO, b, moves.task[p, i], moves.cluster[p, i], moves.allocation, row, tables, draws, after)
        greedy_round(_ZERO, b, tables, sizes, plan_of(plans[p]), keys[p], draws, after)
        digest[b] = _digest(b, now.running_count[0], after)


@compiled
def _legal(b: int, j: int, n: int, allocations: Array, row: int, tables: Record, draws: Record, worlds: Record) -> bool:
    """Mirror of `tapfinger.core.feasibility.can_start_with`: may waiting task j start on cluster n with that size?"""
    if not draws.eligible[0, j, n] or worlds.starts[b, n] >= tables.max_starts:
        return False
    kind = worlds.kind[b, j]
    for r in range(allocations.shape[1]):
        amount = allocations[row, r]
        most = min(tables.maximum[kind, r], max(0, worlds.free[b, n, r]))
        if amount < tables.minimum[kind, r] or amount > most:
            return False
    return True


@compiled
def _digest(b: int, known: int, worlds: Record) -> Any:
    """A number for the tasks started in world b, their clusters and sizes, whatever their order."""
    total = np.uint64(0)
    for i in range(known, worlds.running_count[b]):
        j = worlds.running[b, i]
        one = np.uint64(j * worlds.free.shape[1] + worlds.cluster[b, j] + 1)
        for r in range(worlds.free.shape[2]):
            one = mixed(one + np.uint64(worlds.allocation[b, j, r]))
        total += mixed(one)
    return total


@compiled
def neighbours(
    tables: Record, sizes: Record, chosen: Array, draws: Record, now: Record, after: Record, moves: Record
) -> int:
    """Plans that differ from a chosen one in one task: other size, other cluster, not started, or started as well.

    Fills ``moves`` and returns how many there are, at most as many as it has room for.
    """
    clusters, amounts = after.free.shape[1:]
    count, most = 0, moves.task.shape[1]
    for p in chosen:
        begin, end = now.running_count[0], after.running_count[p]
        # Tasks that the plan starts, and then those that it leaves waiting.
        for t in range(end - begin + after.queue_length[p]):
            j = after.running[p, begin + t] if begin + t < end else after.queue[p, begin + t - end]
            started = begin + t < end
            kind = after.kind[p, j]
            for n in range(clusters):
                if not draws.eligible[0, j, n]:
                    continue
                tried = 0
                speed = tables.speed[kind, n]
                for o in range(sizes.first[speed], sizes.first[speed + 1]):
                    same = started and after.cluster[p, j] == n
                    roomy = True
                    for r in range(amounts):
                        back = after.allocation[p, j, r] if same else 0
                        if sizes.allocation[o, r] > max(0, after.free[p, n, r] + back):
                            roomy = False
                    if not roomy:
                        continue
                    if tried == NEIGHBOUR_SIZES or count == moves.length.shape[0]:
                        break
                    tried += 1
                    m = 0
                    for i in range(begin, end):
                        k = after.running[p, i]
                        if k != j and m < most - 1:
                            moves.task[count, m] = k
                            moves.cluster[count, m] = after.cluster[p, k]
                            for r in range(amounts):
                                moves.allocation[count * most + m, r] = after.allocation[p, k, r]
                            m += 1
                    moves.task[count, m] = j
                    moves.cluster[count, m] = n
                    for r in range(amounts):
                        moves.allocation[count * most + m, r] = sizes.allocation[o, r]
                    moves.length[count] = m + 1
                    count += 1
            if started and count < moves.length.shape[0]:
                m = 0
                for i in range(begin, end):
                    k = after.running[p, i]
                    if k != j and m < most:
                        moves.task[count, m] = k
                        moves.cluster[count, m] = after.cluster[p, k]
                        for r in range(amounts):
                            moves.allocation[count * most + m, r] = after.allocation[p, k, r]
                        m += 1
                moves.length[count] = m
                count += 1
    return count
