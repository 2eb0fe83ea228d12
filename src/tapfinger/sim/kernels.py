"""Compiled loops over arrays: the readable simulator, for many worlds at once.

No classes, no randomness. Each function's docstring names what it mirrors; tests/equivalence
demands the same event log from both. ``b`` is the index of a world in the batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapfinger.core.model import DONE
from tapfinger.core.state import OTHERS_WEIGHT
from tapfinger.sim.compiled import compiled, inlined
from tapfinger.sim.needs_kernels import is_short, run_out
from tapfinger.sim.span_kernels import drop_crowded, give_to_span, share_span, take_from_span
from tapfinger.sim.staging_kernels import ask_for_data, release_data, reset_staging, wait_for_data

# numba compiles by argument type; the named tuples of sim/layout.py are passed as they are.
Array = Any
Record = Any

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@compiled
def mixed(z: Any) -> Any:
    """A 64-bit number in which every bit depends on every bit of z (the end of splitmix64)."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@compiled
def unit_uniform(key: Any, counter: Any) -> Any:
    """Mirror of `tapfinger.core.model.unit_uniform`."""
    return float(mixed(key + np.uint64(counter + 1) * _GOLDEN) >> np.uint64(11)) * 2.0**-53


@compiled
def rate_of(b: int, j: int, kind: int, tables: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.core.model.SpeedProfile.rate`, for what task j holds."""
    # By index: a slice of an array costs more than everything else here.
    position = 0
    for r in range(tables.extent.shape[1]):
        position = position * tables.extent[kind, r] + worlds.allocation[b, j, r] - tables.minimum[kind, r]
    return tables.rates[tables.first_rate[tables.speed[kind, worlds.cluster[b, j]]] + position]


@compiled
def gain_of(d: int, b: int, j: int, tables: Record, draws: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.core.model.SpeedProfile.gain` and `tapfinger.core.model.Noise.apply`."""
    kind = worlds.kind[b, j]
    gain = rate_of(b, j, kind, tables, worlds)
    offset = tables.shape_offset[tables.speed[kind, worlds.cluster[b, j]]]
    if offset > 0.0:
        gain = gain * math.sqrt(offset - worlds.progress[b, j])
    if tables.noise_kind == 0:
        return gain
    u = tables.noise_amplitude * (2.0 * unit_uniform(draws.noise_key[d, j], worlds.elapsed[b, j]) - 1.0)
    if tables.noise_kind == 1:
        return max(0.0, gain + u)
    return gain * (1.0 + u)


@compiled
def arrive(d: int, b: int, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.sim.executor.SimExecutor._arrivals` and `tapfinger.core.state.EdgeState._arrive`."""
    j = worlds.next_arrival[b]
    while j < draws.tasks[d] and draws.arrival[d, j] <= worlds.slot[b]:
        worlds.queue[b, worlds.queue_length[b]] = j
        worlds.queue_length[b] += 1
        worlds.kind[b, j] = draws.type[d, j]
        if worlds.now.shape[1] > 0:
            worlds.kind[b, j] = worlds.now[b, draws.type[d, j]]
            worlds.came[b, j] = worlds.kind[b, j]
        for n in range(worlds.waiting.shape[1]):
            worlds.waiting[b, n] += draws.eligible[d, j, n]
        j += 1
    worlds.next_arrival[b] = j


@compiled
def change_others(d: int, b: int, tables: Record, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.sim.executor.SimExecutor._others` and `tapfinger.core.state.EdgeState._share`."""
    if draws.others_slot.shape[2] == 0:
        return
    for n in range(worlds.free.shape[1]):
        count = draws.others_count[d, n]
        while count > 0 and worlds.others_due[b, n] <= worlds.slot[b]:
            i = worlds.others_next[b, n]
            for r in range(worlds.free.shape[2]):
                amount = draws.others_amounts[d, n, i, r]
                worlds.free[b, n, r] += worlds.others[b, n, r] - amount
                worlds.others[b, n, r] = amount
            if tables.node.shape[0] > 0 and tables.span[n] >= 0:
                share_span(b, tables.span[n], tables, worlds)
            after = i + 1 if i + 1 < count else 0
            worlds.others_due[b, n] += draws.others_slot[d, n, after] - draws.others_slot[d, n, i]
            if after == 0:
                worlds.others_due[b, n] += draws.others_period[d, n]
            worlds.others_next[b, n] = after


@compiled
def remember_others(b: int, draws: Record, worlds: Record) -> None:
    """Mirror of `tapfinger.core.state.EdgeState.end_slot`, of what others used lately."""
    if draws.others_slot.shape[2] == 0:
        return
    for n in range(worlds.free.shape[1]):
        for r in range(worlds.free.shape[2]):
            mean = worlds.others_lately[b, n, r]
            worlds.others_lately[b, n, r] = mean + OTHERS_WEIGHT * (worlds.others[b, n, r] - mean)


@compiled
def reset(b: int, tables: Record, draws: Record, worlds: Record) -> None:
    """Empty world b and let slot 0's tasks arrive (Session.__init__)."""
    worlds.slot[b] = 0
    worlds.turn[b] = 0
    worlds.next_arrival[b] = 0
    worlds.queue_length[b] = 0
    worlds.running_count[b] = 0
    worlds.total[b] = 0
    worlds.conflicts[b] = 0
    for n in range(tables.capacity.shape[0]):
        worlds.starts[b, n] = 0
        worlds.waiting[b, n] = 0
        for r in range(tables.capacity.shape[1]):
            worlds.free[b, n, r] = tables.capacity[n, r]
            worlds.others[b, n, r] = 0
        worlds.others_next[b, n] = 0
        worlds.others_due[b, n] = 0
    for j in range(draws.tasks[b]):
        worlds.advised[b, j] = -1
        worlds.cluster[b, j] = -1
        worlds.started[b, j] = -1
        worlds.finished[b, j] = -1
    if draws.data_gb.shape[1] > 0:
        reset_staging(b, draws, worlds)
    for kind in range(worlds.now.shape[1]):
        worlds.now[b, kind] = kind
    for j in range(worlds.attempts.shape[1]):
        worlds.attempts[b, j] = 0
    change_others(b, b, tables, draws, worlds)
    for n in range(tables.capacity.shape[0]):
        for r in range(tables.capacity.shape[1]):
            worlds.others_lately[b, n, r] = worlds.others[b, n, r]
    arrive(b, b, draws, worlds)


@inlined
def start(
    d: int, b: int, j: int, n: int, allocations: Array, row: int, tables: Record, draws: Record, worlds: Record
) -> None:
    """Mirror of `tapfinger.core.state.EdgeState.commit`, for one legal placement with the size in ``row``."""
    length = worlds.queue_length[b]
    place = 0
    while worlds.queue[b, place] != j:
        place += 1
    for i in range(place, length - 1):
        worlds.queue[b, i] = worlds.queue[b, i + 1]
    worlds.queue_length[b] = length - 1
    for m in range(worlds.waiting.shape[1]):
        worlds.waiting[b, m] -= draws.eligible[d, j, m]
    worlds.running[b, worlds.running_count[b]] = j
    worlds.running_count[b] += 1
    worlds.cluster[b, j] = n
    worlds.started[b, j] = worlds.slot[b]
    worlds.progress[b, j] = 0.0
    worlds.elapsed[b, j] = 0
    worlds.starts[b, n] += 1
    for r in range(allocations.shape[1]):
        worlds.allocation[b, j, r] = allocations[row, r]
        worlds.free[b, n, r] -= allocations[row, r]
    if tables.node.shape[0] > 0:
        take_from_span(b, j, n, tables, worlds)
    if draws.data_gb.shape[1] > 0:
        ask_for_data(d, b, j, tables, draws, worlds)


@inlined
def end_slot(d: int, b: int, tables: Record, draws: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.core.session.Session.end_slot` and `tapfinger.sim.executor.SimExecutor.run_slot`.

    Returns the tasks that were in the system.

    World b plays workload d; the two differ only in lookahead.
    """
    count = worlds.queue_length[b] + worlds.running_count[b]
    worlds.total[b] += count
    data, ladders = draws.data_gb.shape[1] > 0, tables.need.shape[0] > 0
    kept, ended = 0, 0
    for i in range(worlds.running_count[b]):
        j = worlds.running[b, i]
        if data and worlds.runs_from[b, j] > worlds.slot[b]:
            worlds.running[b, kept] = j
            kept += 1
            continue
        worlds.progress[b, j] += gain_of(d, b, j, tables, draws, worlds)
        worlds.elapsed[b, j] += 1
        short = ladders and is_short(b, j, tables, worlds)
        if short or worlds.progress[b, j] >= DONE:
            if not short:
                worlds.finished[b, j] = worlds.slot[b]
            n = worlds.cluster[b, j]
            for r in range(tables.capacity.shape[1]):
                worlds.free[b, n, r] += worlds.allocation[b, j, r]
            if tables.node.shape[0] > 0:
                give_to_span(b, j, tables, worlds)
            if data or short:
                _note_end(b, j, short, ended, worlds)
                ended += 1
        else:
            worlds.running[b, kept] = j
            kept += 1
    worlds.running_count[b] = kept
    if ended > 0:
        _settle(d, b, ended, tables, draws, worlds)
    worlds.slot[b] += 1
    worlds.turn[b] = 0
    for n in range(tables.capacity.shape[0]):
        worlds.starts[b, n] = 0
    remember_others(b, draws, worlds)
    change_others(d, b, tables, draws, worlds)
    arrive(d, b, draws, worlds)
    return count


@compiled
def _note_end(b: int, j: int, short: bool, ended: int, worlds: Record) -> None:
    """Insert task j into those that ended in this slot, by id: first all that finished, then all that ran short."""
    key = j + worlds.queue.shape[1] if short else j
    place = ended
    while place > 0 and key < worlds.order[b, place - 1]:
        worlds.order[b, place] = worlds.order[b, place - 1]
        place -= 1
    worlds.order[b, place] = key


@compiled
def _settle(d: int, b: int, ended: int, tables: Record, draws: Record, worlds: Record) -> None:
    """Release the data of tasks that ended, in the order of their events, and put back those that ran short."""
    tasks = worlds.queue.shape[1]
    for i in range(ended):
        j = worlds.order[b, i] % tasks
        if draws.data_gb.shape[1] > 0:
            release_data(d, b, j, tables, draws, worlds)
        if worlds.order[b, i] >= tasks:
            run_out(d, b, j, tables, draws, worlds)


@compiled
def fits(tables: Record, worlds: Record, b: int, kind: int, n: int) -> bool:
    """Mirror of `tapfinger.core.feasibility.can_start`, but for eligibility."""
    if worlds.starts[b, n] >= tables.max_starts:
        return False
    for r in range(tables.capacity.shape[1]):  # noqa: SIM110 - compiled
        if tables.minimum[kind, r] > max(0, worlds.free[b, n, r]):
            return False
    return True


@compiled
def copies_of_minimum(tables: Record, worlds: Record, b: int, kind: int, n: int) -> int:
    """Mirror of `tapfinger.core.model.Resources.copies_of`."""
    best = -1
    for r in range(tables.capacity.shape[1]):
        if tables.minimum[kind, r] > 0:
            copies = max(0, worlds.free[b, n, r]) // tables.minimum[kind, r]
            if best < 0 or copies < best:
                best = copies
    return max(0, best)


@compiled
def play_turn(
    b: int, tables: Record, draws: Record, worlds: Record, task: Array, allocation: Array, score: Array
) -> bool:
    """Mirror of `tapfinger.core.conflict.resolve` and `tapfinger.core.session.Session.turn`.

    True when the round is settled.

    ``task`` (clusters,) is the wanted task's id or -1. ``worlds.granted`` says which clusters got their task.
    """
    clusters = task.shape[0]
    void = True
    # All winners are found before any placement changes what is free.
    for n in range(clusters):
        worlds.granted[b, n] = task[n] >= 0 and _wins(b, n, tables, worlds, task, score)
        if task[n] >= 0:
            void = False
            if not worlds.granted[b, n]:
                worlds.conflicts[b] += 1
    if tables.node.shape[0] > 0:
        drop_crowded(b, tables, worlds, allocation)
    for n in range(clusters):
        if worlds.granted[b, n]:
            start(b, b, task[n], n, allocation, n, tables, draws, worlds)
    worlds.turn[b] += 1
    return void or tables.max_starts == 1


@compiled
def _wins(b: int, n: int, tables: Record, worlds: Record, task: Array, score: Array) -> bool:
    """Mirror of `tapfinger.core.conflict.resolve`: the largest weight wins, and ties go to the lowest index."""
    kind = worlds.kind[b, task[n]]
    mine = score[n] * copies_of_minimum(tables, worlds, b, kind, n)
    for m in range(task.shape[0]):
        if m != n and task[m] == task[n]:
            other = score[m] * copies_of_minimum(tables, worlds, b, kind, m)
            if other > mine or (other == mine and m < n):
                return False
    return True


# ------------------------------------------------------------------------------- observation


@compiled
def observe(b: int, tables: Record, draws: Record, worlds: Record, obs: Record) -> None:
    """Mirror of `tapfinger.observation.Observer.observe`: write world b's arrays into the batch of observations.

    A cluster's pending set holds what advisers would start there, then its oldest tasks.
    """
    clusters, amounts = tables.capacity.shape
    kinds = tables.minimum.shape[0]
    size = obs.task.shape[2]
    obs.pending_features[b] = 0.0
    obs.task[b] = -1
    obs.node[b] = -1
    obs.startable[b] = False
    obs.largest[b] = 0
    if draws.data_gb.shape[1] > 0:
        obs.staging[b] = 0
    nodes = 0
    filled = 0  # places filled in all pending sets together
    wanted = 0
    for n in range(clusters):
        obs.waiting[b, n] = 0
        wanted += min(size, worlds.waiting[b, n])
    for i in range(worlds.queue_length[b]):
        worlds.order[b, worlds.queue[b, i]] = -1  # scratch: the node of each waiting task
    advisers = worlds.advised.shape[2]
    if advisers > 0:
        for i in range(worlds.queue_length[b]):
            j = worlds.queue[b, i]
            for a in range(advisers):
                n = worlds.advised[b, j, a]
                if n >= 0 and obs.waiting[b, n] < size and _first_adviser(b, j, n, worlds) == a:
                    nodes = _show(b, n, j, nodes, tables, draws, worlds, obs)
                    filled += 1
    for i in range(worlds.queue_length[b]):
        if filled == wanted:
            break
        j = worlds.queue[b, i]
        for n in range(clusters):
            if obs.waiting[b, n] >= size or not draws.eligible[b, j, n] or _first_adviser(b, j, n, worlds) >= 0:
                continue
            nodes = _show(b, n, j, nodes, tables, draws, worlds, obs)
            filled += 1
    for node in range(nodes, obs.pending_features.shape[1]):
        obs.pending_features[b, node, amounts + kinds] = 1.0  # dummy bit
        obs.age[b, node] = 0
    for n in range(clusters):
        for r in range(amounts):
            obs.cluster_features[b, n, r] = max(0, worlds.free[b, n, r])
            obs.others[b, n, r] = worlds.others[b, n, r]
            obs.others_lately[b, n, r] = worlds.others_lately[b, n, r]
        obs.waiting[b, n] = worlds.waiting[b, n]
        obs.cluster_features[b, n, amounts] = max(0, worlds.waiting[b, n] - size)
    _observe_running(b, tables, worlds, obs)


@compiled
def _first_adviser(b: int, j: int, n: int, worlds: Record) -> int:
    """The first adviser that would start task j on cluster n, or -1."""
    for a in range(worlds.advised.shape[2]):
        if worlds.advised[b, j, a] == n:
            return a
    return -1


@compiled
def _show(b: int, n: int, j: int, nodes: int, tables: Record, draws: Record, worlds: Record, obs: Record) -> int:
    """Put task j into cluster n's pending set; returns the new number of nodes. ``obs.waiting`` counts the places."""
    amounts = tables.capacity.shape[1]
    kind = worlds.kind[b, j]
    node = worlds.order[b, j]
    if node < 0:
        node = nodes
        nodes += 1
        worlds.order[b, j] = node
        for r in range(amounts):
            obs.pending_features[b, node, r] = tables.minimum[kind, r]
        obs.pending_features[b, node, amounts + kind] = 1.0
        obs.age[b, node] = worlds.slot[b] - draws.arrival[b, j]
    place = obs.waiting[b, n]
    obs.waiting[b, n] += 1
    obs.task[b, n, place] = j
    obs.node[b, n, place] = node
    if draws.data_gb.shape[1] > 0:
        obs.staging[b, n, place] = wait_for_data(b, b, kind, n, tables, draws, worlds)
    if fits(tables, worlds, b, kind, n):
        obs.startable[b, n, place] = True
        for r in range(amounts):
            obs.largest[b, n, place, r] = min(tables.maximum[kind, r], max(0, worlds.free[b, n, r]))
    return nodes


@compiled
def _observe_running(b: int, tables: Record, worlds: Record, obs: Record) -> None:
    """Running tasks in order of placement, per cluster."""
    amounts = tables.capacity.shape[1]
    kinds = tables.minimum.shape[0]
    obs.running_count[b] = 0
    for i in range(worlds.running_count[b]):
        j = worlds.running[b, i]
        n = worlds.cluster[b, j]
        place = obs.running_count[b, n]
        obs.running_count[b, n] += 1
        for r in range(amounts):
            obs.running_features[b, n, place, r] = worlds.allocation[b, j, r]
        for t in range(kinds):
            obs.running_features[b, n, place, amounts + t] = 0.0
        obs.running_features[b, n, place, amounts + worlds.kind[b, j]] = 1.0
        obs.running_features[b, n, place, amounts + kinds] = worlds.elapsed[b, j]
        # A task reports at the end of a slot, so a task started in this slot has not reported yet.
        told = tables.reports and worlds.elapsed[b, j] > 0
        obs.running_progress[b, n, place] = worlds.progress[b, j] if told else -1.0
    for n in range(obs.running_count.shape[1]):
        for place in range(obs.running_count[b, n], obs.running_features.shape[2]):
            obs.running_features[b, n, place] = 0.0
            obs.running_progress[b, n, place] = -1.0


# ------------------------------------------------------------------------------ whole batches


@compiled
def reset_all(tables: Record, draws: Record, worlds: Record, obs: Record) -> None:
    """Reset and observe every world."""
    for b in range(worlds.slot.shape[0]):
        reset(b, tables, draws, worlds)
        observe(b, tables, draws, worlds, obs)


@compiled
def observe_some(live: Array, tables: Record, draws: Record, worlds: Record, obs: Record) -> None:
    """Observe these worlds."""
    for b in live:
        observe(b, tables, draws, worlds, obs)


@compiled
def first_illegal(
    tables: Record, worlds: Record, obs: Record, choice: Array, allocation: Array, score: Array, done: Array
) -> int:
    """Mirror of `tapfinger.core.feasibility.check_decision`: the first world with an illegal choice, or -1."""
    for b in range(choice.shape[0]):
        if done[b]:
            continue
        for n in range(choice.shape[1]):
            place = choice[b, n]
            if place < 0:
                continue
            if place >= obs.task.shape[2] or not obs.startable[b, n, place]:
                return b
            if not (score[b, n] >= 0.0 and score[b, n] < math.inf):
                return b
            kind = worlds.kind[b, obs.task[b, n, place]]
            for r in range(allocation.shape[2]):
                amount = allocation[b, n, r]
                if amount < tables.minimum[kind, r] or amount > obs.largest[b, n, place, r]:
                    return b
    return -1


@compiled
def step_all(
    tables: Record,
    draws: Record,
    worlds: Record,
    obs: Record,
    choice: Array,
    allocation: Array,
    score: Array,
    task: Array,
    cost: Array,
    settled: Array,
    done: Array,
) -> Any:
    """One turn of every world that is not done; where the round is settled, the slot ends.

    ``choice`` (worlds, clusters) is a place in the pending set or -1; ``cost`` gets the tasks in the
    system where a slot ended and 0 elsewhere. If any choice is illegal nothing happens anywhere and
    that world's index is returned, otherwise -1.
    """
    bad = first_illegal(tables, worlds, obs, choice, allocation, score, done)
    if bad >= 0:
        return bad
    for b in range(worlds.slot.shape[0]):
        cost[b] = 0
        settled[b] = False
        if done[b]:
            continue
        for n in range(choice.shape[1]):
            task[n] = obs.task[b, n, choice[b, n]] if choice[b, n] >= 0 else -1
        if play_turn(b, tables, draws, worlds, task, allocation[b], score[b]):
            cost[b] = end_slot(b, b, tables, draws, worlds)
            settled[b] = True
            if worlds.next_arrival[b] == draws.tasks[b] and worlds.queue_length[b] + worlds.running_count[b] == 0:
                done[b] = True
        observe(b, tables, draws, worlds, obs)
    return -1
