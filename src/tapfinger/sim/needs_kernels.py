"""Compiled ladders, for the batched simulator: tasks that need more memory than anybody knows."""

from __future__ import annotations

from typing import Any

from tapfinger.sim.compiled import compiled

Record = Any


@compiled
def is_short(b: int, j: int, tables: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.workloads.needs.Ladder.enough`: whether running task j holds too little."""
    kind = worlds.kind[b, j]
    return tables.ladder[kind] >= 0 and worlds.allocation[b, j, tables.ladder[kind]] < tables.need[kind]


@compiled
def run_out(d: int, b: int, j: int, tables: Record, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.state.EdgeState._raise` and `tapfinger.workloads.needs.Ladder.above`."""
    count, r = worlds.attempts[b, j], tables.ladder[worlds.kind[b, j]]
    if count < worlds.attempt.shape[2]:  # copies of worlds do not know of earlier attempts
        worlds.attempt[b, j, count, 0] = worlds.started[b, j]
        worlds.attempt[b, j, count, 1] = worlds.started[b, j]
        if draws.data_gb.shape[1] > 0:
            worlds.attempt[b, j, count, 1] = int(worlds.runs_from[b, j])
        worlds.attempt[b, j, count, 2] = worlds.slot[b]
        worlds.attempt[b, j, count, 3] = worlds.cluster[b, j]
        resources = worlds.allocation.shape[2]
        for s in range(resources):
            worlds.attempt[b, j, count, 4 + s] = worlds.allocation[b, j, s]
            for k in range(worlds.part.shape[2]):
                worlds.attempt[b, j, count, 4 + (1 + k) * resources + s] = worlds.part[b, j, k, s]
    worlds.attempts[b, j] = count + 1
    worlds.started[b, j] = -1
    worlds.cluster[b, j] = -1
    place = worlds.queue_length[b]
    while place > 0 and j < worlds.queue[b, place - 1]:
        worlds.queue[b, place] = worlds.queue[b, place - 1]
        place -= 1
    worlds.queue[b, place] = j
    worlds.queue_length[b] += 1
    for n in range(worlds.waiting.shape[1]):
        worlds.waiting[b, n] += draws.eligible[d, j, n]
    family = draws.type[d, j]
    kind = family
    while tables.minimum[kind, r] <= worlds.allocation[b, j, r]:
        kind = tables.above[kind]
    worlds.kind[b, j] = worlds.now[b, family]
    if tables.minimum[kind, r] > tables.minimum[worlds.now[b, family], r]:
        worlds.now[b, family] = kind
        for i in range(worlds.queue_length[b]):
            if draws.type[d, worlds.queue[b, i]] == family:
                worlds.kind[b, worlds.queue[b, i]] = kind
