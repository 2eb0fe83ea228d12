"""Optimus (Peng et al., EuroSys 2018): a fitted speed model; single units go to the largest marginal gain.

The processor (cpu) plays the part of the parameter servers p, the accelerator (gpu) that of the workers w; see
``ResourceTypes`` for resources with other names. Any further resource stays at its minimum.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from tapfinger.core.conflict import resolve
from tapfinger.core.contract import (
    ClusterView,
    Decision,
    Mode,
    Placement,
    Proposal,
    Resize,
    SchedulerContext,
    Snapshot,
    TaskView,
)
from tapfinger.core.estimates import progress_of, share_left
from tapfinger.core.feasibility import resizable
from tapfinger.core.model import Noise, Resources, ResourceTypes, TaskType
from tapfinger.core.spans import Rooms
from tapfinger.errors import ConfigError
from tapfinger.profiles.durations import mean_slots
from tapfinger.schedulers.free_capacity import FreeCapacity

#: How waiting tasks get onto clusters.
ADMISSIONS = ("bayes", "first", "oldest")

#: Time saved, in slots, up to which a gain counts as none: it may be a rounding error of the fit.
NO_GAIN = 1e-9

#: Stands for an amount of 0 in the model's ratios, so that the first unit has a finite, large gain.
HALF_UNIT = 0.5


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Slots from start to end = a/w + b + c w/p + d w + e p (the inverse of Optimus' speed), all >= 0."""

    a: float
    b: float
    c: float
    d: float
    e: float
    #: Positions of w and p among the resources.
    worker: int = 1
    processor: int = 0

    def duration(self, amounts: Sequence[int]) -> float:
        """Modelled duration under an allocation."""
        return self.slots(amounts[self.processor], amounts[self.worker])

    def slots(self, p: float, w: float) -> float:
        """Modelled duration with p processors and w workers."""
        p, w = p or HALF_UNIT, w or HALF_UNIT
        return self.a / w + self.b + self.c * w / p + self.d * w + self.e * p


def fit_speed(task_type: TaskType, noise: Noise, resources: ResourceTypes, published: bool = False) -> SpeedModel:
    """Fit the model to the durations of the type's feasible allocations, errors counted relative to the duration.

    ``published``: fit as the paper's baseline was, with the axes of cpu and gpu exchanged and errors counted in speed,
    so that the model mistakes each for the other.
    """
    profile, (worker, processor) = task_type.profile, (resources.accelerator, resources.processor)
    alone = worker == processor  # a single resource: there is no p, and its terms must not compete with those of w
    table = mean_slots(profile, noise).reshape(profile.extent)
    # The plane of the table in which all other resources are at their minimum; (p, w).
    plane = table[tuple(slice(None) if r in (worker, processor) else 0 for r in range(table.ndim))]
    plane = plane[None, :] if alone else plane if processor < worker else plane.T
    amount = [np.maximum(np.arange(profile.minimum[r], profile.maximum[r] + 1), HALF_UNIT) for r in (processor, worker)]
    p, w = np.meshgrid([np.inf] if alone else amount[0], amount[1], indexing="ij")
    if published and not alone:
        p, w = w, p
    weight = 1.0 / plane if published else np.ones_like(plane)
    return replace(fit_durations(p, w, plane, weight), worker=worker, processor=processor)


def fit_durations(
    p: npt.NDArray[np.float64],
    w: npt.NDArray[np.float64],
    durations: npt.NDArray[np.float64],
    weight: npt.NDArray[np.float64] | float = 1.0,
) -> SpeedModel:
    """Fit the model to durations with p processors and w workers; p is infinite where there is no such resource.

    ``weight``: how much each relative error counts.
    """
    terms = (1.0 / w, np.ones_like(w), w / p, w, np.where(np.isinf(p), 0.0, p))
    weight = np.broadcast_to(weight, durations.shape)
    matrix = np.stack([(weight * term / durations).ravel() for term in terms], axis=1)  # (cells, 5)
    return SpeedModel(*nonnegative_least_squares(matrix, weight.ravel()).tolist())


def nonnegative_least_squares(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The x >= 0 that minimises |matrix x - target|; exact, for a handful of columns.

    The constrained optimum is the unconstrained one over the columns it uses, so trying every
    set of columns and keeping the best non-negative solution finds it.
    """
    columns = matrix.shape[1]
    # Columns of equal length, then the small triangle that has the same solutions as the tall matrix.
    length = np.linalg.norm(matrix, axis=0)
    length[length == 0.0] = 1.0
    q, r = np.linalg.qr(matrix / length)
    goal = q.T @ target
    best, least = np.zeros(columns), float(goal @ goal)
    for size in range(1, columns + 1):
        for used in combinations(range(columns), size):
            part = r[:, used]
            x = np.linalg.lstsq(part, goal, rcond=None)[0]
            error = part @ x - goal
            missed = float(error @ error)
            # A larger set must be strictly better: with equal errors the fewest terms are kept.
            if (x >= 0.0).all() and missed < least * (1.0 - 1e-9) - 1e-24:
                best, least = np.zeros(columns), missed
                best[list(used)] = x
    return np.asarray(best / length, dtype=np.float64)


class _Share:
    """One task while resources are handed out."""

    __slots__ = ("amounts", "maximum", "model", "remaining", "stamp", "task")

    def __init__(self, task: TaskView, model: SpeedModel, remaining: float) -> None:
        self.task = task
        self.model = model
        #: Share of the work that is left.
        self.remaining = remaining
        self.amounts = list(task.type.minimum)
        self.maximum = task.type.maximum
        #: Number of units received; entries of the heap with a lower number are stale.
        self.stamp = 0

    def gain(self, resource: int, now: float) -> float:
        """Remaining time that one more unit saves, per unit already held; 0 at the maximum.

        ``now``: the modelled duration with the present amounts.
        """
        amounts = self.amounts
        if amounts[resource] >= self.maximum[resource]:
            return 0.0
        amounts[resource] += 1
        then = self.model.duration(amounts)
        amounts[resource] -= 1
        return self.remaining * (now - then) / (amounts[resource] or HALF_UNIT)


def hand_out(shares: list[_Share], room: Resources) -> None:
    """Give single units to the largest gain until nothing is left or nothing gains; ties go to the earlier share."""
    left = list(room)
    heap: list[tuple[float, int, int, int]] = []  # (-gain, share, resource, stamp)

    def offer(index: int) -> None:
        share = shares[index]
        now = share.model.duration(share.amounts)
        for resource in {share.model.worker: None, share.model.processor: None}:  # in this order, each once
            gain = share.gain(resource, now) if left[resource] else 0.0
            if gain > NO_GAIN:
                heapq.heappush(heap, (-gain, index, resource, share.stamp))

    for index in range(len(shares)):
        offer(index)
    while heap:
        _, index, resource, stamp = heapq.heappop(heap)
        share = shares[index]
        if stamp != share.stamp or not left[resource]:
            continue
        share.amounts[resource] += 1
        share.stamp += 1
        left[resource] -= 1
        offer(index)


class _Pending:
    """The first waiting tasks of each cluster that are not admitted yet; each cluster walks the queue once."""

    def __init__(self, snapshot: Snapshot, size: int) -> None:
        self._queue = snapshot.queue
        self._size = size
        # Tasks of one kind share their list of clusters; searching a set takes the same time however long it is.
        sets = {task.eligible: frozenset(task.eligible) for task in snapshot.queue}
        self._eligible = [sets[task.eligible] for task in snapshot.queue]
        self._first: dict[int, list[TaskView]] = {c.index: [] for c in snapshot.clusters}
        self._seen = dict.fromkeys(self._first, 0)

    def of(self, cluster: int, admitted: Collection[int]) -> list[TaskView]:
        """The first tasks of this cluster; ``admitted`` only ever grows."""
        found = self._first[cluster] = [task for task in self._first[cluster] if task.id not in admitted]
        place = self._seen[cluster]
        while len(found) < self._size and place < len(self._queue):
            task = self._queue[place]
            if cluster in self._eligible[place] and task.id not in admitted:
                found.append(task)
            place += 1
        self._seen[cluster] = place
        return found


class Optimus:
    """In every slot, each cluster shares out its resources again, starting with all its tasks at their minimum."""

    one_shot = True

    def __init__(
        self,
        admission: str = "bayes",
        pending: int = 10,
        admit: int | None = None,
        resize: bool = True,
        published_fit: bool = False,
    ) -> None:
        """``admission``: bayes, first or oldest.

        ``bayes`` and ``first``: turn by turn, each cluster draws one of its ``pending`` oldest tasks;
        if several draw the same task, Bayes' rule (or the first cluster) wins and the others are void.
        ``oldest``: centrally, the oldest task goes to the cluster with the most room. ``admit``: starts per
        cluster and slot; as many as the mode allows if left out. ``resize``: False sizes a task
        once, when it starts, and never again. ``published_fit``: see ``fit_speed``.
        """
        if admission not in ADMISSIONS:
            raise ConfigError(f"optimus: admission = {admission!r} must be one of {', '.join(ADMISSIONS)}")
        if pending < 1 or (admit is not None and admit < 1):
            raise ConfigError(
                f"optimus: pending = {pending!r} and admit = {admit!r} must be at least 1, or nothing starts"
            )
        self._admission = admission
        self._pending = pending
        self._admit = admit
        self._resize = resize
        self._published_fit = published_fit

    def reset(self, context: SchedulerContext) -> None:
        """Start the scheduler's own random stream."""
        self._rng = np.random.default_rng(context.seed)
        self._single = context.mode is Mode.SINGLE
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """Fit one model per task type and kind of hardware."""
        self._types = context.task_types
        self._hardware = [cluster.hardware for cluster in context.clusters]
        self._models = {
            (t.name, kind): fit_speed(t.on(kind), context.noise, context.resources, self._published_fit)
            for t in context.task_types
            for kind in dict.fromkeys(self._hardware)
        }

    def decide(self, snapshot: Snapshot) -> Decision:
        """Admit waiting tasks at their minimum, then share out what is left of each cluster."""
        rooms = Rooms(snapshot.clusters)
        taken_back = {c.index: self._take_back(c, rooms) for c in snapshot.clusters if c.up}
        free = FreeCapacity(snapshot, self._types, rooms, self._admit)
        lost: list[Proposal] = []
        if self._admission == "oldest":
            admitted = self._admit_oldest(snapshot, free)
        else:
            admitted = self._admit_drawn(snapshot, free, lost)
        shares = {n: [self._share(task, n) for task in tasks] for n, tasks in taken_back.items()}
        for task, index in admitted:
            shares[index].append(self._share(task, index))
        placements: list[Placement] = []
        resizes: list[Resize] = []
        for index, sharers in shares.items():
            hand_out(sharers, rooms[index])
            for share in sharers:
                allocation = Resources(share.amounts)
                rooms.resize(index, share.task, share.task.type.minimum, allocation)
                if share.task.cluster is None:
                    placements.append(Placement(share.task.id, index, allocation))
                elif allocation != share.task.allocation or rooms.moved(share.task):
                    resizes.append(Resize(share.task.id, allocation))
        return Decision(tuple(placements), tuple(resizes), tuple(lost))

    def _take_back(self, cluster: ClusterView, rooms: Rooms) -> list[TaskView]:
        """Tasks of the cluster that can be resized; in ``rooms``, these are at their minimum from now on."""
        if not self._resize:
            return []
        # A task that is only just starting cannot be resized: it keeps what it has.
        open_tasks = [t for t in cluster.running if resizable(t)]
        for task in open_tasks:
            rooms.resize(cluster.index, task, task.allocation or task.type.minimum, task.type.minimum)
        for task in cluster.paused:
            if task.type.minimum.fits(rooms[cluster.index]):
                open_tasks.append(task)
                rooms.resize(cluster.index, task, cluster.capacity - cluster.capacity, task.type.minimum)
        return open_tasks

    def _admit_oldest(self, snapshot: Snapshot, free: FreeCapacity) -> list[tuple[TaskView, int]]:
        """Admit the oldest tasks first, each on the cluster with the most room."""
        admitted: list[tuple[TaskView, int]] = []
        for task in snapshot.queue:
            if free.closed:
                break
            index = free.roomiest(task, task.type.minimum)
            if index is not None:
                free.take(task, index, task.type.minimum)
                admitted.append((task, index))
        return admitted

    def _admit_drawn(self, snapshot: Snapshot, free: FreeCapacity, lost: list[Proposal]) -> list[tuple[TaskView, int]]:
        """One draw per cluster and turn until no cluster has anything to draw; a single turn in single-task mode."""
        admitted: dict[int, tuple[TaskView, int]] = {}
        pending = _Pending(snapshot, self._pending)
        while True:
            drawn: dict[int, TaskView] = {}
            proposals: list[Proposal] = []
            for cluster in snapshot.clusters:
                if cluster.index not in free.open:
                    continue
                n = cluster.index
                fitting = [t for t in pending.of(n, admitted) if free.fits(t, n, t.type.minimum)]
                found = self._draw(fitting, n, free) if fitting else None
                if found is not None:
                    task, chance = found
                    if task.id in drawn and self._admission == "first":
                        lost.append(Proposal(n, task.id, task.type.minimum))
                        continue
                    drawn[task.id] = task
                    proposals.append(Proposal(n, task.id, task.type.minimum, chance))
            # What counts is what is free once all tasks are back at their minimum, not what was free before.
            left = [free.left.get(c.index, c.free) for c in snapshot.clusters]
            granted = resolve(proposals, left, {t.id: t.type.minimum for t in drawn.values()}, snapshot.spans)
            lost += granted.lost
            for placement in granted.placements:
                admitted[placement.task] = (drawn[placement.task], placement.cluster)
                free.take(drawn[placement.task], placement.cluster, placement.allocation)
            if not proposals or self._single:
                return list(admitted.values())

    def _draw(self, fitting: Sequence[TaskView], cluster: int, free: FreeCapacity) -> tuple[TaskView, float] | None:
        """One of these tasks with the probability of drawing it.

        Where hardware differs, a task is drawn by how fast it is here, compared with its best cluster; so a slow
        cluster now and then draws none.
        """
        if not free.unlike:
            return fitting[int(self._rng.integers(len(fitting)))], 1.0 / len(fitting)
        paces = [free.paces(task.type) for task in fitting]
        shares = [mine[cluster] / max(mine[n] for n in t.eligible) for mine, t in zip(paces, fitting, strict=True)]
        place = int(np.searchsorted(np.cumsum(shares), self._rng.random() * len(fitting)))
        return None if place == len(fitting) else (fitting[place], shares[place] / len(fitting))

    def _share(self, task: TaskView, cluster: int) -> _Share:
        model = self._models[task.type.name, self._hardware[cluster]]
        return _Share(task, model, share_left(progress_of(task)))


def central(admit: int | None = None) -> Optimus:
    """Optimus that admits centrally, oldest first, where there is the most room: no draw, no conflict."""
    return Optimus("oldest", admit=admit)


def first_wins(pending: int = 10, admit: int | None = None) -> Optimus:
    """Optimus whose conflicts go to the first cluster, however small, as the reference figures suggest."""
    return Optimus("first", pending, admit)


def static(admission: str = "bayes", pending: int = 10, admit: int | None = None) -> Optimus:
    """Non-preemptive Optimus: the marginal-gain rule sizes a task once, out of what is free when it starts."""
    return Optimus(admission, pending, admit, resize=False)


def published(pending: int = 10, admit: int | None = None) -> Optimus:
    """Optimus as the paper's baseline: its fit mistakes cpu for gpu. Only for reproducing published margins."""
    return Optimus("first", pending, admit, published_fit=True)
