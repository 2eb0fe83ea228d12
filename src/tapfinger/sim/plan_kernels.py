"""Compiled greedy rounds and rollouts, for lookahead: plans are played in sampled futures.

The kernels of the batched simulator carry everything out; only the choices are made here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapfinger.core.estimates import LONGEST_STAGING
from tapfinger.profiles.efficient_sizes import WORST_STRETCH
from tapfinger.sim.compiled import allocating, compiled, inlined
from tapfinger.sim.kernels import end_slot, observe, play_turn, rate_of, reset, start, unit_uniform
from tapfinger.sim.layout import GreedyPlan
from tapfinger.sim.lend_kernels import lend_round
from tapfinger.sim.staging_kernels import wait_for_data

Array = Any
Record = Any

# A literal 0 as an argument would make numba compile the called function once more, for that literal.
_ZERO: Any = np.int64(0)


@inlined
def greedy_round(
    d: int, b: int, tables: Record, sizes: Record, plan: Record, key: Any, draws: Record, worlds: Record
) -> None:
    """Mirror of `tapfinger.schedulers.greedy.Greedy.decide`, on world b with workload d.

    ``key``: seed of the draws by which the plan jitters scores and holds tasks back; 0 for plans without these.
    """
    clusters = tables.capacity.shape[0]
    if worlds.queue_length[b] == 0:
        return
    count = _order(d, b, sizes, plan, draws, worlds)
    calm = plan.calm * tables.wholes
    price = plan.queue_price * max(0.0, _carried_over(d, b, draws, worlds) / clusters - calm)
    for i in range(count):
        j = worlds.order[b, i]
        option, n = _choose(d, b, j, worlds.kind[b, j], tables, sizes, plan, price, key, draws, worlds)
        if option >= 0:
            start(d, b, j, n, sizes.allocation, option, tables, draws, worlds)


@compiled
def _carried_over(d: int, b: int, draws: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.schedulers.greedy.carried_over`."""
    count = worlds.queue_length[b]
    while count > 0 and draws.arrival[d, worlds.queue[b, count - 1]] == worlds.slot[b]:
        count -= 1
    return count


@compiled
def _order(d: int, b: int, sizes: Record, plan: Record, draws: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.schedulers.greedy.Greedy._rank`: sort the queue by it.

    Insertion sort: most tasks are nearly in order of arrival already.
    """
    length = worlds.queue_length[b]
    for i in range(length):
        j = worlds.queue[b, i]
        choosy = 0
        for n in range(draws.eligible.shape[2]):
            choosy += draws.eligible[d, j, n]
        waited = worlds.slot[b] - draws.arrival[d, j]
        rank = plan.short_first * sizes.least_slots[worlds.kind[b, j]] + plan.choosy_first * choosy - waited
        place = i
        while place > 0 and rank < worlds.rank[b, place - 1]:
            worlds.rank[b, place] = worlds.rank[b, place - 1]
            worlds.order[b, place] = worlds.order[b, place - 1]
            place -= 1
        worlds.rank[b, place] = rank
        worlds.order[b, place] = j
    return length


@inlined
def _choose(
    d: int,
    b: int,
    j: int,
    kind: int,
    tables: Record,
    sizes: Record,
    plan: Record,
    price: float,
    key: Any,
    draws: Record,
    worlds: Record,
) -> Any:
    """Best (option, cluster) for task j now, or (-1, -1): the inner loop of Greedy.decide."""
    clusters, amounts = tables.capacity.shape
    data = draws.data_gb.shape[1] > 0
    ideal, soonest = math.inf, math.inf
    for n in range(clusters):
        if draws.eligible[d, j, n]:
            ideal = min(ideal, sizes.ideal[kind, n])
            if data:
                worlds.wait[b, n] = wait_for_data(d, b, kind, n, tables, draws, worlds)
                soonest = min(soonest, worlds.wait[b, n])
    waited = worlds.slot[b] - draws.arrival[d, j]
    limit = math.inf if waited >= plan.max_wait * ideal else plan.patience * ideal
    best_score, best_share, best_option, best_cluster = math.inf, 0.0, -1, -1
    for n in range(clusters):
        if not draws.eligible[d, j, n] or worlds.starts[b, n] >= tables.max_starts:
            continue
        score, option = math.inf, -1
        crowd = plan.crowd_price * (worlds.waiting[b, n] / clusters)
        before = _durations(b, n, -1, tables, sizes, worlds) if plan.room_price > 0.0 else 0.0
        speed = tables.speed[kind, n]
        wait = worlds.wait[b, n] if data else 0.0
        if wait > 0.0 and not staging_pays(wait - soonest, ideal, waited):
            continue
        slowest = limit * sizes.pace[kind, n]
        for o in range(sizes.first[speed], sizes.first[speed + 1]):
            if sizes.slots[o] > slowest:
                break
            roomy = True
            for r in range(amounts):
                if sizes.allocation[o, r] > max(0, worlds.free[b, n, r]):
                    roomy = False
                    break
            if roomy:
                this = sizes.slots[o] + price * sizes.cost[o]
                if wait > 0.0:
                    this += wait + price * sizes.cost[o] * (wait / sizes.slots[o])
                if plan.jitter > 0.0:
                    u = unit_uniform(key, (j * clusters + n) * sizes.slots.shape[0] + o)
                    this *= 1.0 + plan.jitter * (2.0 * u - 1.0)
                if plan.room_price > 0.0 and this < score and this + crowd <= best_score:
                    this += plan.room_price * (_durations(b, n, o, tables, sizes, worlds) - before)
                if this < score:
                    score, option = this, o
        if option < 0:
            continue
        score += crowd
        share = 0.0
        for r in range(amounts):
            if sizes.mean_capacity[r] > 0.0:
                share += max(0, worlds.free[b, n, r]) / sizes.mean_capacity[r]
        share *= plan.emptiest * tables.emptier[n]
        if score < best_score or (score == best_score and share > best_share):
            best_score, best_share, best_option, best_cluster = score, share, option, n
    if plan.hold > 0.0 and unit_uniform(key, -2 - j) < plan.hold:
        return -1, -1
    return best_option, best_cluster


@compiled
def staging_pays(later: float, shortest: float, waited: float) -> bool:
    """Mirror of `tapfinger.core.estimates.staging_pays`."""
    return later <= max(LONGEST_STAGING * shortest, waited)


@inlined
def _durations(b: int, n: int, taken: int, tables: Record, sizes: Record, worlds: Record) -> Any:
    """Mirror of `tapfinger.profiles.efficient_sizes.EfficientSizes.durations`, on cluster n.

    ``taken``: an option that is placed on the cluster first; -1 for none.
    """
    total = 0.0
    for kind in range(tables.minimum.shape[0]):
        position, roomy = 0, True
        for r in range(tables.minimum.shape[1]):
            free = max(0, worlds.free[b, n, r]) - (sizes.allocation[taken, r] if taken >= 0 else 0)
            if free < tables.minimum[kind, r]:
                roomy = False
                break
            place = min(free, tables.maximum[kind, r]) - tables.minimum[kind, r]
            position = position * tables.extent[kind, r] + place
        speed = tables.speed[kind, n]
        total += (
            sizes.shortest[tables.first_rate[speed] + position] if roomy else WORST_STRETCH * sizes.speed_slots[speed]
        )
    return total


@compiled
def play_greedy(tables: Record, sizes: Record, plan: Record, draws: Record, worlds: Record) -> None:
    """Play every world to its end with one greedy: for tuning, and to compare it with Greedy."""
    for b in range(worlds.slot.shape[0]):
        reset(b, tables, draws, worlds)
        while worlds.next_arrival[b] < draws.tasks[b] or worlds.queue_length[b] + worlds.running_count[b] > 0:
            greedy_round(b, b, tables, sizes, plan, np.uint64(0), draws, worlds)
            end_slot(b, b, tables, draws, worlds)


@compiled
def play_on(
    tables: Record, sizes: Record, plan: Record, draws: Record, worlds: Record, until: Array, most: int, done: Array
) -> None:
    """Play each world on with one greedy up to slot ``until[b]``, or until more than ``most`` tasks wait."""
    for b in range(worlds.slot.shape[0]):
        while not done[b] and worlds.slot[b] < until[b] and worlds.queue_length[b] <= most:
            greedy_round(b, b, tables, sizes, plan, np.uint64(0), draws, worlds)
            end_slot(b, b, tables, draws, worlds)
            done[b] = worlds.next_arrival[b] == draws.tasks[b] and (
                worlds.queue_length[b] + worlds.running_count[b] == 0
            )


@compiled
def copy_world(source: Record, p: int, target: Record, b: int) -> None:
    """World p of ``source`` -> world b of ``target``, which may have room for more tasks.

    Copies only what greedy rounds and ``end_slot`` need.
    """
    target.slot[b] = source.slot[p]
    target.turn[b] = 0
    target.next_arrival[b] = source.next_arrival[p]
    target.queue_length[b] = source.queue_length[p]
    target.running_count[b] = source.running_count[p]
    for i in range(source.queue_length[p]):
        j = source.queue[p, i]
        target.queue[b, i] = j
        target.kind[b, j] = source.kind[p, j]
    for i in range(source.running_count[p]):
        j = source.running[p, i]
        target.running[b, i] = j
        target.kind[b, j] = source.kind[p, j]
        target.cluster[b, j] = source.cluster[p, j]
        target.progress[b, j] = source.progress[p, j]
        target.elapsed[b, j] = source.elapsed[p, j]
        for r in range(source.free.shape[2]):
            target.allocation[b, j, r] = source.allocation[p, j, r]
            for k in range(source.part.shape[2]):
                target.part[b, j, k, r] = source.part[p, j, k, r]
    for n in range(source.free.shape[1]):
        target.starts[b, n] = source.starts[p, n]
        target.waiting[b, n] = source.waiting[p, n]
        target.others_next[b, n] = source.others_next[p, n]
        target.others_due[b, n] = source.others_due[p, n]
        for r in range(source.free.shape[2]):
            target.free[b, n, r] = source.free[p, n, r]
            target.others[b, n, r] = source.others[p, n, r]
    for kind in range(source.now.shape[1]):
        target.now[b, kind] = source.now[p, kind]
    if source.ready.shape[2] > 0:
        _copy_staging(source, p, target, b)


@compiled
def _copy_staging(source: Record, p: int, target: Record, b: int) -> None:
    for i in range(source.running_count[p]):
        target.runs_from[b, source.running[p, i]] = source.runs_from[p, source.running[p, i]]
    for place in range(source.ready.shape[1]):
        for s in range(source.ready.shape[2]):
            target.ready[b, place, s] = source.ready[p, place, s]
        for n in range(source.busy.shape[2]):
            target.busy[b, place, n] = source.busy[p, place, n]
    for n in range(source.used.shape[1]):
        for s in range(source.used.shape[2]):
            target.used[b, n, s] = source.used[p, n, s]
            target.users[b, n, s] = source.users[p, n, s]


@compiled
def plan_of(row: Array) -> GreedyPlan:
    """A row of floats as a GreedyPlan."""
    # numba does not accept GreedyPlan(*row)
    return GreedyPlan(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10])


@compiled
def advise(
    tables: Record,
    sizes: Record,
    plans: Array,
    draws: Record,
    worlds: Record,
    scratch: Record,
    live: Array,
    places: Array,
) -> None:
    """Mirror of `tapfinger.policy.encoding.by_profile.ProfileEncoder.encode`: fill ``worlds.advised``.

    ``places`` (O,): the place on the menu of every option.
    """
    for b in live:
        _advise(b, tables, sizes, plans, draws, worlds, scratch, places)


@compiled
def _advise(
    b: int,
    tables: Record,
    sizes: Record,
    plans: Array,
    draws: Record,
    worlds: Record,
    scratch: Record,
    places: Array,
) -> None:
    for i in range(worlds.queue_length[b]):
        worlds.advised[b, worlds.queue[b, i]] = -1
    for a in range(plans.shape[0]):
        copy_world(worlds, b, scratch, b)
        greedy_round(b, b, tables, sizes, plan_of(plans[a]), np.uint64(0), draws, scratch)
        for place in range(worlds.running_count[b], scratch.running_count[b]):
            j = scratch.running[b, place]
            worlds.advised[b, j, a] = scratch.cluster[b, j]
            speed = tables.speed[scratch.kind[b, j], scratch.cluster[b, j]]
            worlds.advised_size[b, j, a] = _place_of(speed, scratch.allocation[b, j], sizes, places)


@compiled
def skip_idle(
    tables: Record,
    sizes: Record,
    plans: Array,
    draws: Record,
    worlds: Record,
    scratch: Record,
    places: Array,
    obs: Record,
    done: Array,
    last: Array,
) -> None:
    """Each world goes on, with all clusters void, until some cluster can start a task; up to slot ``last[b]``."""
    for b in range(worlds.slot.shape[0]):
        while not done[b] and worlds.slot[b] < last[b] and not obs.startable[b].any():
            end_slot(b, b, tables, draws, worlds)
            if worlds.next_arrival[b] == draws.tasks[b] and worlds.queue_length[b] + worlds.running_count[b] == 0:
                done[b] = True
            elif worlds.queue_length[b] > 0:
                _advise(b, tables, sizes, plans, draws, worlds, scratch, places)
                observe(b, tables, draws, worlds, obs)


@compiled
def _place_of(speed: int, allocation: Array, sizes: Record, places: Array) -> int:
    """Mirror of `tapfinger.profiles.size_menus.Menus.place_of`."""
    for o in range(sizes.first[speed], sizes.first[speed + 1]):
        same = True
        for r in range(allocation.shape[0]):
            same = same and sizes.allocation[o, r] == allocation[r]
        if same:
            return int(places[o])
    return -1


@compiled
def roll_out(
    tables: Record,
    sizes: Record,
    base: Array,
    horizon: int,
    after: Record,
    chosen: Array,
    first: int,
    last: int,
    draws: Record,
    worlds: Record,
    cost: Array,
    lends: bool,
) -> None:
    """Cost of the chosen plans in futures first..last: tasks in the system over the horizon, plus what is left then.

    ``after`` holds, per plan, the state after its round; the greedy ``base`` plays on from there in
    world 0 of ``worlds``. ``cost`` is (plans, futures). ``lends``: whether spare resources are lent.
    """
    greedy = plan_of(base)
    for future in range(first, last):
        for p in chosen:
            copy_world(after, p, worlds, _ZERO)
            total = 0.0
            for step in range(horizon):
                if step > 0:
                    greedy_round(future, _ZERO, tables, sizes, greedy, np.uint64(0), draws, worlds)
                if lends:
                    lend_round(_ZERO, tables, sizes, worlds)
                total += end_slot(future, _ZERO, tables, draws, worlds)
            cost[p, future] = total + _still_to_run(_ZERO, tables, sizes, worlds)


@compiled
def _still_to_run(b: int, tables: Record, sizes: Record, worlds: Record) -> float:
    """Slots that the tasks left in world b will still spend in the system if no more tasks arrive.

    Mirror of `tapfinger.core.estimates.work`, summed over running tasks, and of least durations of waiting ones.
    Placed tasks wait for their data before.

    Without it a long task would seem as well off waiting as running.
    """
    left = 0.0
    for i in range(worlds.running_count[b]):
        j = worlds.running[b, i]
        kind = worlds.kind[b, j]
        if worlds.runs_from.shape[1] > 0:
            left += max(0.0, worlds.runs_from[b, j] - worlds.slot[b])
        rate = rate_of(b, j, kind, tables, worlds)
        progress = worlds.progress[b, j]
        offset = tables.shape_offset[tables.speed[kind, worlds.cluster[b, j]]]
        if offset > 0.0:
            left += 2.0 * (math.sqrt(offset - progress) - math.sqrt(offset - 1.0)) / rate
        else:
            left += (1.0 - progress) / rate
    for i in range(worlds.queue_length[b]):
        left += 1.0 + sizes.least_slots[worlds.kind[b, worlds.queue[b, i]]]
    return left


@allocating
def judge_deviations(
    tables: Record,
    sizes: Record,
    base: Array,
    horizon: int,
    draws: Record,
    worlds: Record,
    scratch: Record,
    live: Array,
    turns: Record,
    cost: Array,
    granted: Array,
) -> None:
    """Cost of each cluster's other actions, with greedy ``base[b]`` playing on in world b's own future.

    ``live`` (L,) are worlds before a turn, ``turns`` a DeviatedTurns for them; a cluster takes its first action while
    another one deviates. ``cost`` (L, N, A) and ``granted`` (L, N, A) are filled, the former with
    tasks in the system over the horizon; ``scratch`` has the shape of ``worlds``.
    """
    clusters, actions = turns.task.shape[1:]
    task = np.empty(clusters, dtype=np.int64)
    score = np.empty(clusters)
    allocation = np.empty((clusters, tables.capacity.shape[1]), dtype=np.int64)
    for i in range(live.shape[0]):
        b, greedy = live[i], plan_of(base[live[i]])
        for n in range(clusters):
            task[n], score[n] = turns.task[i, n, 0], turns.score[i, n, 0]
            allocation[n] = turns.allocation[i, n, 0]
        plain = _deviated(b, tables, sizes, greedy, horizon, draws, worlds, scratch, task, allocation, score)
        for n in range(clusters):
            cost[i, n, 0] = plain
            granted[i, n, 0] = scratch.granted[b, n]
        for n in range(clusters):
            for a in range(1, actions):
                same = _same_action(turns, i, n, a)
                if same >= 0:
                    cost[i, n, a] = cost[i, n, same]
                    granted[i, n, a] = granted[i, n, same]
                    continue
                task[n], score[n] = turns.task[i, n, a], turns.score[i, n, a]
                allocation[n] = turns.allocation[i, n, a]
                cost[i, n, a] = _deviated(
                    b, tables, sizes, greedy, horizon, draws, worlds, scratch, task, allocation, score
                )
                granted[i, n, a] = scratch.granted[b, n]
            task[n], score[n] = turns.task[i, n, 0], turns.score[i, n, 0]
            allocation[n] = turns.allocation[i, n, 0]


@compiled
def _same_action(turns: Record, i: int, n: int, a: int) -> int:
    """An earlier action of the cluster that is the same as its action a, or -1."""
    for other in range(a):
        if turns.task[i, n, other] == turns.task[i, n, a]:
            same = True
            for r in range(turns.allocation.shape[3]):
                same = same and turns.allocation[i, n, other, r] == turns.allocation[i, n, a, r]
            if same:
                return other
    return -1


@compiled
def _deviated(
    b: int,
    tables: Record,
    sizes: Record,
    greedy: Record,
    horizon: int,
    draws: Record,
    worlds: Record,
    scratch: Record,
    task: Array,
    allocation: Array,
    score: Array,
) -> Any:
    """Cost of world b if this turn is played and the greedy goes on; ``scratch.granted[b]`` says who got its task."""
    copy_world(worlds, b, scratch, b)
    settled = play_turn(b, tables, draws, scratch, task, allocation, score)
    if not settled:
        # A cluster that starts nothing now starts nothing later in this slot; the greedy must not start a task there.
        for n in range(task.shape[0]):
            if task[n] < 0:
                scratch.starts[b, n] = tables.max_starts
        greedy_round(b, b, tables, sizes, greedy, np.uint64(0), draws, scratch)
    total = float(end_slot(b, b, tables, draws, scratch))
    for _ in range(horizon - 1):
        greedy_round(b, b, tables, sizes, greedy, np.uint64(0), draws, scratch)
        total += end_slot(b, b, tables, draws, scratch)
    return total + _still_to_run(b, tables, sizes, scratch) + _still_to_wait(b, tables, scratch)


@compiled
def _still_to_wait(b: int, tables: Record, worlds: Record) -> Any:
    """Slots that waiting tasks will wait for the tasks ahead of them, if starts are all that is scarce.

    At full load a missed start delays every later task, long after the horizon.
    """
    ahead = worlds.queue_length[b]
    return 0.5 * ahead * ahead / (tables.capacity.shape[0] * tables.max_starts)
