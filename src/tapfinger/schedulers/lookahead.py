"""Lookahead: plays many plans for this slot in sampled futures and takes the best.

Plans come from variants of Greedy, from a proposer if there is one (``learned_lookahead.py``: the network), and from
changing one task of the best plan. Futures are sampled from observed arrivals: their rate, types and eligible clusters.
All plans face the same futures. A time budget and a fixed nominal speed determine how much is simulated. The clock is
not read, so the same seed gives the same decisions on any machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import VOID, Decision, Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.core.estimates import progress_of
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources
from tapfinger.core.staging import DataLayout, Staging
from tapfinger.errors import ConfigError
from tapfinger.profiles.greedy_options import GREEDY_DEFAULTS
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.arrival_model import ArrivalModel
from tapfinger.schedulers.lending import Lending
from tapfinger.sim import move_kernels, plan_kernels
from tapfinger.sim.layout import (
    Draws,
    GreedyPlan,
    Moves,
    Sizes,
    Tables,
    Worlds,
    data_arrays,
    empty_moves,
    empty_worlds,
    fill_staging,
    make_sizes,
    make_tables,
    nobody_else,
)

#: The greedy that plays on after the first slot. Unlike the baseline, it leaves resources to tasks that need them more.
BASE = GreedyPlan(**{**GREEDY_DEFAULTS, "queue_price": 12.0, "short_first": 1.0})._replace(
    choosy_first=1.0, room_price=0.06, crowd_price=2.0
)

#: Other greedies for the first slot, each with different options.
VARIANTS = (
    GreedyPlan(**GREEDY_DEFAULTS),
    BASE._replace(emptiest=-1.0),
    BASE._replace(short_first=0.0),
    BASE._replace(short_first=8.0),
    BASE._replace(short_first=-2.0),
    BASE._replace(patience=1.2),
    BASE._replace(patience=1.6),
    BASE._replace(patience=4.0),
    BASE._replace(patience=8.0),
    BASE._replace(queue_price=0.0),
    BASE._replace(queue_price=8.0, calm=0.0),
    BASE._replace(patience=1.2, emptiest=-1.0),
    BASE._replace(patience=0.0),  # start nothing
)

#: Randomised greedies: scores are jittered, and now and then a task is held back.
RANDOMISED = (
    BASE._replace(jitter=0.3),
    BASE._replace(jitter=0.6),
    BASE._replace(jitter=0.2, hold=0.2),
    BASE._replace(jitter=0.3, hold=0.4, patience=1.6),
    BASE._replace(hold=0.5),
    BASE._replace(jitter=0.6, emptiest=-1.0, patience=4.0),
)

#: A greedy that starts nothing: it ends a plan that consists of its moves only.
NOTHING_MORE = BASE._replace(hold=1.0)

#: What is seen before the first slot.
_NOTHING = Snapshot(0, 0, (), ())

#: Nominal cost of simulation in microseconds: per slot of a rollout, per task-cluster pair, and per size tried for it.
_MICROSECONDS_PER_SLOT = 0.5
_MICROSECONDS_PER_PAIR = 0.015
_MICROSECONDS_PER_SIZE = 0.002

#: Factor by which lending slows simulation down.
_LENDING_FACTOR = 1.5

#: Nominal milliseconds of a decision apart from simulation; and minimum share of the budget for simulation.
_OVERHEAD_MS = 3.0
_LEAST_SHARE = 0.25

#: Maximum horizon in slots; a longer one would leave too few futures within any budget.
_LONGEST_HORIZON = 400

#: Minimum number of futures; fewer would tell nothing. With two plans, this is the least that is ever simulated.
_LEAST_FUTURES = 8

#: Stages of the comparison: share of the futures that plans are played in, and number of plans kept for the next stage.
_ROUNDS = ((0.25, 8), (0.5, 4))

#: Randomised plans tried for each one wanted, since many turn out alike.
_TRIES = 2

#: Times the budget that the least that is ever simulated may take at the nominal speed. Beyond that (many clusters and
#: a long queue), nothing is simulated, and the first plan is taken.
_MOST_OVER = 250.0

#: Maximum number of plans made by changing one task of another plan.
_CHANGES = 256


class Proposer(Protocol):
    """A source of further plans for a slot."""

    #: Nominal milliseconds per decision.
    cost_ms: float

    def reset(self, site: SiteTables) -> None:
        """Forget everything and get ready for a new run."""
        ...

    def learn(self, site: SiteTables) -> None:
        """Use new profiles from now on."""
        ...

    def propose(self, snapshot: Snapshot) -> Sequence[Sequence[Placement]]:
        """Plans for the whole slot: legal placements, each task at most once per plan."""
        ...


class Lookahead:
    """Plays plans in sampled futures and takes the best."""

    one_shot = True

    def __init__(
        self,
        budget_ms: float = 20.0,
        plans: int = 48,
        futures: int = 128,
        horizon: int | None = None,
        caution: float = 1.5,
        lend: bool = False,
    ) -> None:
        """``budget_ms``: nominal milliseconds per decision; bounds the number of plans and futures.

        ``horizon``: slots to look ahead; derived from the durations of the task types if left out.
        ``caution``: standard errors by which a plan must beat the first one: the proposer's, or the plain greedy's.
        ``lend``: lend spare resources to running tasks; otherwise a task keeps the size it was started with.
        """
        if not (math.isfinite(budget_ms) and budget_ms > 0):
            raise ConfigError(f"lookahead: budget_ms = {budget_ms} must be a number above 0")
        if not math.isfinite(caution):
            raise ConfigError(f"lookahead: caution = {caution} must be a number")
        counts = [("plans", plans, 1), ("futures", futures, _LEAST_FUTURES)]
        counts += [("horizon", horizon, 1)] if horizon is not None else []
        for name, value, least in counts:
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"lookahead: {name} = {value} must be a whole number of at least {least}")
        if not isinstance(lend, bool):
            raise ConfigError(f"lookahead: lend = {lend!r} must be true or false")
        self._lend = lend
        self._lending: Lending | None = None
        self._budget = budget_ms
        self._most_plans = plans
        self._most_futures = futures
        self._fixed_horizon = horizon
        self._caution = caution
        #: The data sets and links last seen, and their arrays.
        self._known_layout: tuple[DataLayout | None, dict[str, Any]] | None = None
        #: Source of plans besides those of the greedies.
        self.proposer: Proposer | None = None
        #: How many plans of each origin were taken in this run.
        self.taken: Counter[str] = Counter()

    def reset(self, context: SchedulerContext) -> None:
        """Prepare arrays; forget all arrivals."""
        self._type_index = {t.name: i for i, t in enumerate(context.task_types)}
        self._clusters = len(context.clusters)
        self.taken = Counter()
        site = SiteTables(context)
        self._make_arrays(site)
        self._arrivals = ArrivalModel(site)
        self._lends = self._lend and not context.switching_cost
        self._lending = Lending(site) if self._lend else None
        if self.proposer is not None:
            self.proposer.reset(site)
        self._warm_up()
        self._rng = np.random.default_rng(context.seed)

    def learn(self, context: SchedulerContext) -> None:
        """Use new profiles from now on; observed arrivals are kept."""
        site = SiteTables(context)
        self._make_arrays(site)
        self._arrivals.learn(site)
        if self._lending is not None:
            self._lending.learn(site)
        if self.proposer is not None:
            self.proposer.learn(site)

    def _make_arrays(self, site: SiteTables) -> None:
        """Make the arrays that hold speeds, and set the horizon by the durations."""
        context = site.context
        self._tables = make_tables(context.clusters, context.task_types, context.noise, context.mode)
        self._sizes = make_sizes(site.sizes, context.task_types)
        self._horizon = self._fixed_horizon if self._fixed_horizon is not None else horizon_for(self._sizes.least_slots)

    def _warm_up(self) -> None:
        """Compile (or load) the kernels now, so that the first decision is not slow."""
        self._rng = np.random.default_rng(0)
        nobody = self._draw(_NOTHING, [], 0)
        now = empty_worlds(1, nobody, self._tables)
        gathered = _Gathered(self._tables, self._sizes, nobody, now, 1)
        gathered.add("greedy", [BASE], empty_moves(1, 1, self._tables), self._rng)
        gathered.changes([0], 1)
        self._play(gathered.after, np.zeros(1, dtype=np.int64), 0, 1, self._draw(_NOTHING, [], 1), np.zeros((1, 1)))

    # ------------------------------------------------------------------ deciding

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide what to start and what to lend."""
        if self._lending is None:
            return self._start(snapshot)
        return self._lending.lend(snapshot, self._start(self._lending.returned(snapshot)))

    def _start(self, snapshot: Snapshot) -> Decision:
        """Gather plans, play them, take the best."""
        self._arrivals.update(snapshot)
        kinds = {(task.type.name, task.eligible): task for task in snapshot.queue}.values()
        if not any(can_start(task, snapshot.clusters[n]) for task in kinds for n in task.eligible):
            return VOID
        running = list(snapshot.running())
        known = [*running, *snapshot.queue]
        too_many = self._least_ms(len(known), len(snapshot.queue)) > _MOST_OVER * self._budget
        gathered = self._gather(snapshot, running, known, variants=not too_many)
        best = 0
        if self._most_plans > 1 and not too_many:
            expected = len(gathered.different) + gathered.count_changes([0])
            plans, futures = self._effort(len(known), expected)
            best = self._best(gathered, plans, self._draw(snapshot, known, futures))
        self.taken[gathered.origin[best]] += 1
        return _read(gathered.after, best, known, len(running))

    def _gather(self, snapshot: Snapshot, running: list[TaskView], known: list[TaskView], variants: bool) -> _Gathered:
        """Plans of all kinds, played for this slot; the most important come first."""
        most = self._most_plans
        proposed = [] if self.proposer is None else self.proposer.propose(snapshot)
        draws = self._draw(snapshot, known, 0)
        now = empty_worlds(1, draws, self._tables)
        _fill(now, snapshot, running, draws)
        gathered = _Gathered(
            self._tables,
            self._sizes,
            draws,
            now,
            1 + 2 * len(proposed) + len(VARIANTS) + _CHANGES + _TRIES * most,
        )
        nothing = empty_moves(len(VARIANTS), 1, self._tables)
        if proposed:
            place = {task.id: i for i, task in enumerate(known)}
            moves = _moves([plan for plan in proposed for _ in range(2)], place, self._tables)
            gathered.add("proposed", [NOTHING_MORE, BASE] * len(proposed), moves, self._rng)
        gathered.add("greedy", [BASE], nothing, self._rng)
        if variants:
            gathered.add("variant", VARIANTS, nothing, self._rng)
        return gathered

    def _slot_cost(self, known: int) -> float:
        """Nominal microseconds for one slot of a rollout."""
        cost = _MICROSECONDS_PER_SLOT + self._pair_cost * (self._arrivals.rate + 0.25 * known) * self._clusters
        return cost * (_LENDING_FACTOR if self._lends else 1.0)

    @property
    def _pair_cost(self) -> float:
        """Nominal microseconds for one task on one cluster."""
        return _MICROSECONDS_PER_PAIR + _MICROSECONDS_PER_SIZE * len(self._sizes.slots) / len(self._sizes.least_slots)

    def _least_ms(self, known: int, waiting: int) -> float:
        """Nominal milliseconds for all plans of this slot, and for the least number of rollouts."""
        plans = len(VARIANTS) + _CHANGES + _TRIES * self._most_plans
        rollouts = _rollouts(2, _LEAST_FUTURES) * self._horizon
        return (plans * self._pair_cost * waiting * self._clusters + rollouts * self._slot_cost(known)) / 1000.0

    def _effort(self, known: int, plans: int) -> tuple[int, int]:
        """Number of plans and futures that the budget allows at the nominal speed."""
        slot = self._slot_cost(known)
        left = self._budget - _OVERHEAD_MS - (self.proposer.cost_ms if self.proposer is not None else 0.0)
        rollouts = 1000.0 * max(left, _LEAST_SHARE * self._budget) / (slot * self._horizon)
        plans, futures = min(plans, self._most_plans), self._most_futures
        while futures >= 2 * _LEAST_FUTURES and _rollouts(plans, futures) > rollouts:
            futures -= 4
        while plans > 2 and _rollouts(plans, futures) > rollouts:
            plans -= 1
        return plans, futures

    def _best(self, gathered: _Gathered, most: int, draws: Draws) -> int:
        """Play all plans in some of the futures, then fewer plans in more of them; the first plan is always kept."""
        futures = len(draws.tasks)
        cost = np.zeros((len(gathered.after.slot), futures))
        plans, first = gathered.different[:most], 0
        for share, survivors in (*_ROUNDS, (1.0, 1)):
            last = int(share * futures)
            self._play(gathered.after, plans, first, last, draws, cost)
            if first == 0:
                more = self._more(gathered, int(plans[np.argmin(self._worth(cost, plans, last))]), most)
                self._play(gathered.after, more, first, last, draws, cost)
                plans = np.concatenate([plans, more])
                if len(plans) == 1:
                    return 0
            worth = self._worth(cost, plans, last)
            first = last
            if survivors > 1:
                plans = plans[[0, *(np.argsort(worth[1:], kind="stable")[: survivors - 1] + 1)]]
        return int(plans[np.argmin(worth)])

    def _worth(self, cost: npt.NDArray[np.float64], plans: npt.NDArray[np.int64], last: int) -> npt.NDArray[np.float64]:
        """Extra cost of each plan compared with the first, plus ``caution`` standard errors; the least is the best."""
        gap = cost[plans, :last] - cost[plans[0], :last]
        return np.asarray(gap.mean(axis=1) + self._caution * gap.std(axis=1, ddof=1) / np.sqrt(last))

    def _more(self, gathered: _Gathered, leader: int, most: int) -> npt.NDArray[np.int64]:
        """Plans made after a first comparison: changes of the leading plan and of the first two, and random plans."""
        known = len(gathered.different)
        gathered.add_changes(list(dict.fromkeys([leader, 0, 1])), self._rng)
        tries = _TRIES * self._most_plans
        nothing = empty_moves(tries, 1, self._tables)
        gathered.add("random", [RANDOMISED[i % len(RANDOMISED)] for i in range(tries)], nothing, self._rng)
        return gathered.different[known:most]

    def _play(
        self,
        after: Worlds,
        plans: npt.NDArray[np.int64],
        first: int,
        last: int,
        draws: Draws,
        cost: npt.NDArray[np.float64],
    ) -> None:
        worlds = empty_worlds(1, draws, self._tables)
        base = np.array(BASE, dtype=np.float64)
        plan_kernels.roll_out(
            self._tables, self._sizes, base, self._horizon, after, plans, first, last, draws, worlds, cost, self._lends
        )

    def _draw(self, snapshot: Snapshot, known: list[TaskView], futures: int) -> Draws:
        """Known tasks and then sampled arrivals, slots counted from now; with 0 futures, only the known tasks."""
        come = self._arrivals.draw(futures, self._horizon, self._rng) if futures else None
        rows, k = max(1, futures), len(known)
        total = max(1, k + (come.slot.shape[1] if come is not None else 0))
        draws = Draws(
            tasks=np.full(rows, k) if come is None else come.tasks + k,
            arrival=np.zeros((rows, total), dtype=np.int64),
            type=np.zeros((rows, total), dtype=np.int64),
            eligible=np.zeros((rows, total, self._clusters), dtype=np.bool_),
            noise_key=self._rng.integers(0, 2**64, size=(rows, total), dtype=np.uint64),
            # What others use is held at what it is now: it is not known what they will do.
            **nobody_else(rows, self._clusters, self._tables.capacity.shape[1]),
            **self._data_arrays(snapshot.data, rows),
        )
        draws.arrival[:, :k] = [task.arrival - snapshot.slot for task in known]
        draws.type[:, :k] = [self._type_index[task.type.name] for task in known]
        for i, task in enumerate(known):
            draws.eligible[:, i, list(task.eligible)] = True
        if come is not None:
            draws.arrival[:, k:] = come.slot
            draws.type[:, k:] = come.type
            draws.eligible[:, k:] = come.eligible
        return draws

    def _data_arrays(self, data: Staging | None, rows: int) -> dict[str, Any]:
        """The fields of Draws about data sets; all futures have the same links."""
        layout = None if data is None else data.layout
        if self._known_layout is None or self._known_layout[0] is not layout:
            self._known_layout = layout, data_arrays([layout])
        return {**self._known_layout[1], "layout": np.zeros(rows, dtype=np.int64)}


class _Gathered:
    """Plans for one slot, and the world after each of them."""

    def __init__(self, tables: Tables, sizes: Sizes, known: Draws, now: Worlds, room: int) -> None:
        self._tables, self._sizes, self._known, self._now = tables, sizes, known, now
        self.after = empty_worlds(room, known, tables)
        self._digest = np.zeros(room, dtype=np.uint64)
        #: Origin of each plan.
        self.origin: list[str] = []

    @property
    def different(self) -> npt.NDArray[np.int64]:
        """Indices of distinct plans, the first of each: many turn out alike."""
        _, first = np.unique(self._digest[: len(self.origin)], return_index=True)
        return np.sort(first)

    def add(self, origin: str, plans: Sequence[GreedyPlan], moves: Moves, rng: np.random.Generator) -> None:
        table = np.array(plans, dtype=np.float64)
        keys = rng.integers(0, 2**64, size=len(plans), dtype=np.uint64)
        first = len(self.origin)
        move_kernels.first_moves(
            self._tables, self._sizes, table, keys, moves, self._known, self._now, self.after, first, self._digest
        )
        self.origin += [origin] * len(plans)

    def changes(self, plans: Sequence[int], most: int) -> Moves:
        moves = empty_moves(most, self.after.queue.shape[1], self._tables)
        chosen = np.array(plans, dtype=np.int64)
        count = move_kernels.neighbours(self._tables, self._sizes, chosen, self._known, self._now, self.after, moves)
        return Moves(moves.length[:count], moves.task[:count], moves.cluster[:count], moves.allocation)

    def count_changes(self, plans: Sequence[int]) -> int:
        return len(self.changes(plans, _CHANGES).length)

    def add_changes(self, plans: Sequence[int], rng: np.random.Generator) -> None:
        moves = self.changes(plans, _CHANGES)
        if len(moves.length):
            self.add("changed", [NOTHING_MORE] * len(moves.length), moves, rng)


def _rollouts(plans: int, futures: int) -> float:
    total, last = 0.0, 0.0
    for share, survivors in (*_ROUNDS, (1.0, 1)):
        total += plans * futures * (share - last)
        plans, last = min(plans, survivors), share
    return total


def _moves(plans: Sequence[Sequence[Placement]], place: dict[int, int], tables: Tables) -> Moves:
    """Placements -> arrays; ``place`` is each task's index."""
    most = max(1, *(len(plan) for plan in plans))
    moves = empty_moves(len(plans), most, tables)
    for p, plan in enumerate(plans):
        moves.length[p] = len(plan)
        for i, placement in enumerate(plan):
            moves.task[p, i] = place[placement.task]
            moves.cluster[p, i] = placement.cluster
            moves.allocation[p * most + i] = placement.allocation
    return moves


def _fill(now: Worlds, snapshot: Snapshot, running: list[TaskView], draws: Draws) -> None:
    """The present state as world 0."""
    now.kind[0] = draws.type[0]
    if snapshot.data is not None:
        fill_staging(now, 0, snapshot.data, snapshot.slot)
        now.runs_from[0, : len(running)] = [task.staging for task in running]
    for n, cluster in enumerate(snapshot.clusters):
        now.free[0, n] = cluster.free if cluster.up else 0
        now.starts[0, n] = 0 if cluster.starts_left is None else 1 - cluster.starts_left
    for i, task in enumerate(running):
        now.running[0, i] = i
        now.cluster[0, i] = -1 if task.cluster is None else task.cluster
        now.allocation[0, i] = task.allocation or task.type.minimum
        now.elapsed[0, i] = task.elapsed
        now.progress[0, i] = progress_of(task)
        if task.parts:
            now.part[0, i, : len(task.parts)] = task.parts
    k, waiting = len(running), len(snapshot.queue)
    now.running_count[0] = k
    now.queue[0, :waiting] = np.arange(k, k + waiting)
    now.queue_length[0] = waiting
    for task in snapshot.queue:
        now.waiting[0, list(task.eligible)] += 1
    now.next_arrival[0] = k + waiting


def horizon_for(least_slots: npt.NDArray[np.float64]) -> int:
    """Slots to look ahead: several durations of a mean task, and several of the longest one.

    The second bound matters: if a long task could be held back until the waits it causes fall beyond the horizon, that
    would always look better than starting it.
    """
    slots = max(5.0 * least_slots.mean(), 3.5 * least_slots.max(), 8.0)
    return int(min(round(slots), _LONGEST_HORIZON))


def _read(after: Worlds, plan: int, known: list[TaskView], running: int) -> Decision:
    """The placements a plan made, in the order it made them."""
    placements = []
    for j in after.running[plan, running : after.running_count[plan]]:
        allocation = Resources(after.allocation[plan, j].tolist())
        placements.append(Placement(known[j].id, int(after.cluster[plan, j]), allocation))
    return Decision(tuple(placements))
