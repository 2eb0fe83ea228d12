"""Lookahead: varied greedy plans for this slot, each played into sampled futures; the best is taken.

Futures are sampled from what has been seen: arrival rate, types and eligible clusters. All plans
face the same futures. How much is simulated follows from a time budget by a fixed nominal speed,
not by the clock, so that the same seed gives the same decisions on any machine.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import VOID, Decision, Placement, SchedulerContext, Snapshot, TaskView
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources
from tapfinger.errors import ConfigError
from tapfinger.profiles.options import Options
from tapfinger.schedulers.greedy import GREEDY_DEFAULTS
from tapfinger.sim import plan_kernels
from tapfinger.sim.layout import Draws, Plan, Worlds, empty_worlds, make_sizes, make_tables

#: The greedy that plays on after the first slot.
BASE = Plan(**GREEDY_DEFAULTS)

#: Other greedies for the first slot, each with a character of its own.
VARIANTS = (
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

#: Randomised greedies: scores jittered, and now and then a task held back.
RANDOMISED = (
    BASE._replace(jitter=0.3),
    BASE._replace(jitter=0.6),
    BASE._replace(jitter=0.2, hold=0.2),
    BASE._replace(jitter=0.3, hold=0.4, patience=1.6),
    BASE._replace(hold=0.5),
    BASE._replace(jitter=0.6, emptiest=-1.0, patience=4.0),
)

#: Nominal cost of simulation, in microseconds: a slot of a rollout, and each task-cluster pair in it.
_MICROSECONDS_PER_SLOT = 0.6
_MICROSECONDS_PER_PAIR = 0.05

#: How many recent arrivals futures are drawn from, and how fast the arrival rate forgets, per slot.
_POOL = 512
_RATE_MEMORY = 0.99

#: A longer look ahead would leave too few futures within any budget.
_LONGEST_HORIZON = 400

#: Many plans turn out alike: this many times as many are tried as are wanted.
_TRIES = 4

#: Fewer futures would tell nothing; with two plans, this is the least that is ever simulated.
_LEAST_FUTURES = 8

#: Plans that survive the first quarter of the futures.
_FINALISTS = 4


class Lookahead:
    """Plays varied greedy plans into sampled futures and takes the best."""

    one_shot = True

    def __init__(
        self,
        budget_ms: float = 20.0,
        plans: int = 80,
        futures: int = 32,
        horizon: int | None = None,
        caution: float = 1.0,
    ) -> None:
        """``budget_ms``: nominal milliseconds per decision; bounds the number of plans and futures.

        ``horizon``: slots to look ahead; by the durations of the task types if left out.
        ``caution``: standard errors by which a plan must beat the plain greedy.
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
        self._budget = budget_ms
        self._most_plans = plans
        self._most_futures = futures
        self._fixed_horizon = horizon
        self._caution = caution

    def reset(self, context: SchedulerContext) -> None:
        """Prepare arrays; forget what was seen."""
        self._type_index = {t.name: i for i, t in enumerate(context.task_types)}
        self._clusters = len(context.clusters)
        self._rng = np.random.default_rng(context.seed)
        self._seen = _Seen(len(context.task_types), self._clusters)
        self.learn(context)
        self._warm_up()

    def learn(self, context: SchedulerContext) -> None:
        """Make the arrays that hold speeds, and look ahead as far as these ask for."""
        types = context.task_types
        self._tables = make_tables(context.clusters, types, context.noise, context.mode)
        self._sizes = make_sizes(Options(context), types)
        self._horizon = self._fixed_horizon if self._fixed_horizon is not None else horizon_for(self._sizes.least_slots)

    def _warm_up(self) -> None:
        """Compile (or load) the kernels now: the first decision must not pay for it."""
        row = np.zeros((1, 1), dtype=np.int64)
        nowhere = np.zeros((1, 1, self._clusters), dtype=np.bool_)
        draws = Draws(row[0], row, row, nowhere, np.zeros((1, 1), dtype=np.uint64))
        now, after = self._arrays(1, 1), self._arrays(1, 1)
        table, keys = np.array([BASE], dtype=np.float64), np.zeros(1, dtype=np.uint64)
        plan_kernels.first_moves(self._tables, self._sizes, table, keys, draws, now, after)
        first = np.zeros(1, dtype=np.int64)
        plan_kernels.roll_out(self._tables, self._sizes, table[0], 1, after, first, 0, 1, draws, now, np.zeros((1, 1)))

    # ------------------------------------------------------------------ deciding

    def decide(self, snapshot: Snapshot) -> Decision:
        """Propose plans, play them, take the best."""
        self._seen.update(snapshot, self._type_index)
        if not any(can_start(task, snapshot.clusters[n]) for task in snapshot.queue for n in task.eligible):
            return VOID
        running = [task for cluster in snapshot.clusters for task in cluster.running]
        known = [*running, *snapshot.queue]
        plans, futures = self._effort(len(known))
        draws = self._draw_futures(snapshot, known, futures)
        now = self._arrays(1, len(known))
        self._fill(now, snapshot, running)
        after = self._play_first_moves(plans, draws, now, len(known))
        unique = _first_of_each(after, len(known))[:plans]
        best = self._best(unique, after, draws, futures) if len(unique) > 1 else 0
        return _read(after, best, known, len(running))

    def _effort(self, known: int) -> tuple[int, int]:
        """Plans and futures that the budget allows, by the nominal speed."""
        pairs = (self._seen.rate + 0.25 * known) * self._clusters
        slot = _MICROSECONDS_PER_SLOT + _MICROSECONDS_PER_PAIR * pairs
        slots = 1000.0 * self._budget / (slot * self._horizon)  # whole rollouts
        # A quarter of the futures for every plan, the rest for the finalists.
        futures = self._most_futures
        while futures >= 2 * _LEAST_FUTURES and self._rollouts(16, futures) > slots:
            futures //= 2
        plans = self._most_plans
        while plans > 2 and self._rollouts(plans, futures) > slots:
            plans -= 1
        return plans, futures

    def _rollouts(self, plans: int, futures: int) -> float:
        return plans * futures / 4 + min(plans, _FINALISTS) * futures * 3 / 4

    def _play_first_moves(self, plans: int, draws: Draws, now: Worlds, known: int) -> Worlds:
        """Every plan's round, played from the present state."""
        chosen = [BASE, *VARIANTS]
        tries = plans if plans <= len(chosen) else _TRIES * plans
        while len(chosen) < tries:
            chosen.append(RANDOMISED[len(chosen) % len(RANDOMISED)])
        table = np.array(chosen[:tries], dtype=np.float64)
        keys = self._rng.integers(0, 2**64, size=tries, dtype=np.uint64)
        after = self._arrays(tries, known)
        plan_kernels.first_moves(self._tables, self._sizes, table, keys, draws, now, after)
        return after

    def _best(self, unique: npt.NDArray[np.int64], after: Worlds, draws: Draws, futures: int) -> int:
        """Two rounds: all plans on a quarter of the futures, then the finalists on all."""
        cost = np.zeros((len(after.slot), futures))
        worlds = self._arrays(1, draws.arrival.shape[1])
        quarter = futures // 4
        base = np.array(BASE, dtype=np.float64)

        def play(plans: npt.NDArray[np.int64], first: int, last: int) -> npt.NDArray[np.float64]:
            plan_kernels.roll_out(
                self._tables, self._sizes, base, self._horizon, after, plans, first, last, draws, worlds, cost
            )
            gap = cost[plans, :last] - cost[0, :last]  # plan 0 is the plain greedy, always among them
            spread = gap.std(axis=1, ddof=1) / np.sqrt(last)
            return np.asarray(gap.mean(axis=1) + self._caution * spread)

        worth = play(unique, 0, quarter)
        finalists = unique[np.argsort(worth[1:], kind="stable")[: _FINALISTS - 1] + 1]
        finalists = np.concatenate([unique[:1], finalists])
        worth = play(finalists, quarter, futures)
        return int(finalists[np.argmin(worth)])

    # -------------------------------------------------------------------- arrays

    def _arrays(self, batch: int, tasks: int) -> Worlds:
        return empty_worlds(batch, tasks, self._tables)

    def _draw_futures(self, snapshot: Snapshot, known: list[TaskView], futures: int) -> Draws:
        """The known tasks, then sampled arrivals over the horizon; slots count from now."""
        counts = self._rng.poisson(self._seen.rate, size=(futures, self._horizon))
        per_future = counts.sum(axis=1)
        k, total = len(known), len(known) + int(per_future.max())
        draws = Draws(
            tasks=per_future + k,
            arrival=np.zeros((futures, total), dtype=np.int64),
            type=np.zeros((futures, total), dtype=np.int64),
            eligible=np.zeros((futures, total, self._clusters), dtype=np.bool_),
            noise_key=self._rng.integers(0, 2**64, size=(futures, total), dtype=np.uint64),
        )
        draws.arrival[:, :k] = [task.arrival - snapshot.slot for task in known]
        draws.type[:, :k] = [self._type_index[task.type.name] for task in known]
        for i, task in enumerate(known):
            draws.eligible[:, i, list(task.eligible)] = True
        slots = np.arange(1, self._horizon + 1)
        for f in range(futures):
            draws.arrival[f, k : k + per_future[f]] = np.repeat(slots, counts[f])
        picks = self._rng.integers(0, len(self._seen.types), size=(futures, total - k))
        draws.type[:, k:] = np.array(self._seen.types)[picks]
        draws.eligible[:, k:] = np.array(self._seen.eligible)[picks]
        return draws

    def _fill(self, now: Worlds, snapshot: Snapshot, running: list[TaskView]) -> None:
        """The present state as world 0."""
        for n, cluster in enumerate(snapshot.clusters):
            now.free[0, n] = cluster.free if cluster.up else 0
            now.starts[0, n] = 0 if cluster.starts_left is None else 1 - cluster.starts_left
        for i, task in enumerate(running):
            now.running[0, i] = i
            now.cluster[0, i] = -1 if task.cluster is None else task.cluster
            now.allocation[0, i] = task.allocation or task.type.minimum
            now.elapsed[0, i] = task.elapsed
            now.progress[0, i] = task.progress if task.progress is not None else _guess_progress(task)
        k, waiting = len(running), len(snapshot.queue)
        now.running_count[0] = k
        now.queue[0, :waiting] = np.arange(k, k + waiting)
        now.queue_length[0] = waiting
        now.next_arrival[0] = k + waiting


def horizon_for(least_slots: npt.NDArray[np.float64]) -> int:
    """Slots to look ahead: several generations of the usual task, and several of the longest one.

    The second matters: what a long task makes others wait must fall within the horizon, or holding
    it back always looks better than starting it.
    """
    slots = max(5.0 * least_slots.mean(), 3.5 * least_slots.max(), 8.0)
    return int(min(round(slots), _LONGEST_HORIZON))


class _Seen:
    """What has arrived so far: a rate, and a pool of (type, eligible clusters) to draw from."""

    def __init__(self, types: int, clusters: int) -> None:
        # One imaginary task per type, so that the first futures are not all alike.
        self.types: deque[int] = deque(range(types), maxlen=_POOL)
        self.eligible: deque[list[bool]] = deque([[True] * clusters for _ in range(types)], maxlen=_POOL)
        self._clusters = clusters
        self._tasks = 0.0
        self._slots = 0.0

    @property
    def rate(self) -> float:
        """Tasks per slot."""
        return self._tasks / self._slots

    def update(self, snapshot: Snapshot, type_index: dict[str, int]) -> None:
        arrived = 0
        for task in reversed(snapshot.queue):
            if task.arrival < snapshot.slot:
                break
            arrived += 1
            self.types.append(type_index[task.type.name])
            self.eligible.append([n in task.eligible for n in range(self._clusters)])
        self._tasks = _RATE_MEMORY * self._tasks + arrived
        self._slots = _RATE_MEMORY * self._slots + 1.0


def _guess_progress(task: TaskView) -> float:
    """Progress of a task that does not report it: as far as its profile says after the slots it has run."""
    profile, progress = task.type.profile, 0.0
    for _ in range(task.elapsed):
        progress = min(0.99, progress + profile.gain(task.allocation or task.type.minimum, progress))
    return progress


def _first_of_each(after: Worlds, known: int) -> npt.NDArray[np.int64]:
    """Plans whose moves differ, the first of each kind; plan 0 is always among them."""
    moves = np.concatenate([after.cluster[:, :known, None], after.allocation[:, :known]], axis=2)
    _, first = np.unique(moves.reshape(len(moves), -1), axis=0, return_index=True)
    return np.sort(first)


def _read(after: Worlds, plan: int, known: list[TaskView], running: int) -> Decision:
    """The placements a plan made, in the order it made them."""
    placements = []
    for j in after.running[plan, running : after.running_count[plan]]:
        allocation = Resources(after.allocation[plan, j].tolist())
        placements.append(Placement(known[j].id, int(after.cluster[plan, j]), allocation))
    return Decision(tuple(placements))
