"""Compiled spans, for the batched simulator: what a task on several nodes takes from each, and gives back."""

from __future__ import annotations

from typing import Any

from tapfinger.sim.compiled import compiled

Array = Any
Record = Any


@compiled
def take_from_span(b: int, j: int, n: int, tables: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.spans.Rooms.take`: task j has got its allocation of cluster n."""
    if tables.node_first[n] == tables.node_first[n + 1]:
        if tables.span[n] >= 0:
            follow_nodes(b, tables.span[n], tables, worlds)
        return
    split(b, j, n, tables, worlds)
    for k in range(tables.node_first[n + 1] - tables.node_first[n]):
        node = tables.node[tables.node_first[n] + k]
        for r in range(tables.capacity.shape[1]):
            worlds.free[b, node, r] -= worlds.part[b, j, k, r]
    follow_nodes(b, n, tables, worlds)


@compiled
def give_to_span(b: int, j: int, tables: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.spans.Rooms.give`: task j has given back its allocation."""
    n = worlds.cluster[b, j]
    if tables.node_first[n] == tables.node_first[n + 1]:
        if tables.span[n] >= 0:
            follow_nodes(b, tables.span[n], tables, worlds)
        return
    for k in range(tables.node_first[n + 1] - tables.node_first[n]):
        node = tables.node[tables.node_first[n] + k]
        for r in range(tables.capacity.shape[1]):
            worlds.free[b, node, r] += worlds.part[b, j, k, r]
    follow_nodes(b, n, tables, worlds)


@compiled
def follow_nodes(b: int, span: int, tables: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.spans.pooled`: what is free on a span."""
    for r in range(tables.capacity.shape[1]):
        total = 0
        for k in range(tables.node_first[span], tables.node_first[span + 1]):
            total += max(0, worlds.free[b, tables.node[k], r])
        worlds.free[b, span, r] = total


@compiled
def split(b: int, j: int, span: int, tables: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.spans.split`: fill the parts of task j."""
    amounts, first = tables.capacity.shape[1], tables.node_first[span]
    count = tables.node_first[span + 1] - first
    for k in range(count):
        for r in range(amounts):
            worlds.part[b, j, k, r] = 0
    while True:
        best, most, fullest = -1, 0.0, 0.0
        for k in range(count):
            node = tables.node[first + k]
            used = 0
            for r in range(amounts):
                used += worlds.part[b, j, k, r]
            if used > 0:
                continue
            gives, free = 0.0, 0.0
            for r in range(amounts):
                whole = tables.capacity[span, r]
                if whole > 0:
                    have = max(0, worlds.free[b, node, r])
                    gives += min(_left(b, j, count, r, worlds), have) / whole
                    free += have / whole
            if gives > most or (gives == most and most > 0.0 and free < fullest):
                best, most, fullest = k, gives, free
        if best < 0:
            return
        for r in range(amounts):
            have = max(0, worlds.free[b, tables.node[first + best], r])
            worlds.part[b, j, best, r] = min(_left(b, j, count, r, worlds), have)


@compiled
def _left(b: int, j: int, count: int, r: int, worlds: Record) -> int:
    """How much of a resource of task j no node gives yet."""
    left = worlds.allocation[b, j, r]
    for k in range(count):
        left -= worlds.part[b, j, k, r]
    return int(left)


@compiled
def share_span(b: int, span: int, tables: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.state.EdgeState._share_span`."""
    for r in range(tables.capacity.shape[1]):
        total = 0
        for k in range(tables.node_first[span], tables.node_first[span + 1]):
            total += worlds.others[b, tables.node[k], r]
        worlds.others[b, span, r] = total
    follow_nodes(b, span, tables, worlds)


@compiled
def drop_crowded(b: int, tables: Record, worlds: Record, allocation: Array) -> None:
    """Mirror of `tapfinger.core.conflict.resolve`: a span is void if what its nodes start leaves too little."""
    for n in range(tables.capacity.shape[0]):
        if not worlds.granted[b, n]:
            continue
        for r in range(tables.capacity.shape[1]):
            left = 0
            for k in range(tables.node_first[n], tables.node_first[n + 1]):
                node = tables.node[k]
                takes = allocation[node, r] if worlds.granted[b, node] else 0
                left += max(0, max(0, worlds.free[b, node, r]) - takes)
            if tables.node_first[n] < tables.node_first[n + 1] and allocation[n, r] > left:
                worlds.granted[b, n] = False
                worlds.conflicts[b] += 1
                break
