"""Generalised advantage estimation over the turns of worlds, each agent's costs, and the scale of returns.

Only turns in which some agent had a choice are kept, so the next turn may be in the same slot or many slots later.
A turn's cost is everything paid from its slot up to the slot of the next turn: nothing if that is the same
slot. Discount and lambda go by slots, so the turns of one slot have equal weight for any discount.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tapfinger.sim.batch import BatchSim
from tapfinger.training.rollout import Bools, Floats, Ints, Turns


class Estimates(NamedTuple):
    """Advantages of the turns. A is 1 where all agents share one reward, otherwise the number of agents."""

    advantage: Floats  # (E, A)
    #: (E,) False for the last turn of a world that was cut off: only its value is used, for the turn before.
    usable: Bools


def agent_costs(sim: BatchSim, slots: int) -> Floats:
    """(B, slots, N) tasks that ran on each cluster or waited for it; a waiting task counts for all its clusters.

    Computed from when and where tasks arrived, started and ended, so nothing is recorded during play.
    """
    draws, worlds = sim.draws, sim.worlds
    world, task = np.nonzero(np.arange(draws.arrival.shape[1]) < draws.tasks[:, None])
    arrival, started, finished = (a[world, task] for a in (draws.arrival, worlds.started, worlds.finished))
    cluster = worlds.cluster[world, task]
    if sim.world.ladders:
        # Attempts that ran out of memory: the task waited before each, and has waited since the last one.
        rows, which = np.nonzero(np.arange(worlds.attempt.shape[2]) < worlds.attempts[world, task][:, None])
        of = world[rows], task[rows]
        begun, _, ended, where = np.moveaxis(worlds.attempt[of][np.arange(len(rows)), which, :4], -1, 0)
        since = np.where(which == 0, arrival[rows], worlds.attempt[of][np.arange(len(rows)), which - 1, 2] + 1)
        np.maximum.at(arrival, rows, ended + 1)
        pairs = ((world, of[0]), (task, of[1]), (arrival, since), (started, begun), (finished, ended), (cluster, where))
        world, task, arrival, started, finished, cluster = (np.append(*pair) for pair in pairs)
    # Starts and ends of stays, summed up; the row after the last slot collects everything beyond.
    change = np.zeros((len(draws.tasks), slots + 1, sim.tables.capacity.shape[0]))
    stop_waiting = np.where(started >= 0, started, slots)
    stop_running = np.where(finished >= 0, finished + 1, slots)
    waits = draws.eligible[world, task].astype(np.float64)
    np.add.at(change, (world, np.minimum(arrival, slots)), waits)
    np.add.at(change, (world, np.minimum(stop_waiting, slots)), -waits)
    ran = started >= 0
    place = (world[ran], started[ran], cluster[ran])
    np.add.at(change, place, 1.0)
    np.add.at(change, (place[0], np.minimum(stop_running[ran], slots), place[2]), -1.0)
    played = np.arange(slots) < worlds.slot[:, None]  # a world that was cut off has no costs beyond
    return np.asarray(change.cumsum(axis=1)[:, :-1] * played[:, :, None])


def to_go(cost: Floats, discount: float) -> Floats:
    """Discounted cost from each slot onwards, along axis 1."""
    out = np.zeros_like(cost)
    later = np.zeros_like(cost[:, 0])
    for t in range(cost.shape[1] - 1, -1, -1):
        later = cost[:, t] + discount * later
        out[:, t] = later
    return out


def estimate(turns: Turns, cost: Floats, value: Floats, ended: Bools, discount: float, trace: float) -> Estimates:
    """Advantages of all turns.

    cost (B, slots, A); value (E, A): the critic's values at the time of play; ended (B,): whether the world was
    played to its end. ``trace`` is the lambda of GAE; like the discount, it goes by slots.
    """
    after, rank = _followers(turns.world)
    last = after < 0
    gap = np.where(last, 0, turns.slot[after] - turns.slot)  # slots up to the next turn
    costs = to_go(cost, discount)
    here = costs[turns.world, turns.slot]  # (E, A)
    decay, faded = discount**gap, trace**gap
    paid = here - np.where(last, 0.0, decay)[:, None] * here[after]
    delta = -paid + np.where(last, 0.0, decay)[:, None] * value[after] - value
    usable = ~last | ended[turns.world]
    advantage = np.zeros_like(delta)
    running = np.zeros((len(cost), cost.shape[2]))
    by_rank = np.split(np.argsort(rank, kind="stable"), np.cumsum(np.bincount(rank))[:-1])
    for rows in reversed(by_rank):  # a world has one turn of each rank
        some = rows[usable[rows]]
        which = turns.world[some]
        running[which] = delta[some] + (faded * decay)[some, None] * running[which]
        advantage[some] = running[which]
    return Estimates(advantage, usable)


def relative_costs(cost: Floats, group: int) -> Floats:
    """(B, slots, A) costs less the mean, in the same slot, of the other rollouts of the same workload.

    Worlds b*group .. (b+1)*group share a workload. What its arrivals cost is the same for all of them, so the sum of
    these costs says what a rollout has done better or worse: even without a discount it does not depend on how many
    tasks are still to come, which no state tells the critic. What the others paid does not depend on a rollout's own
    actions, so the expected gradient stays the same.
    """
    if group == 1:
        return cost
    grouped = cost.reshape(-1, group, *cost.shape[1:])
    others = (grouped.sum(axis=1, keepdims=True) - grouped) / (group - 1)
    return np.asarray((grouped - others).reshape(cost.shape))


def _followers(world: Ints) -> tuple[Ints, Ints]:
    """For each row, the next row of the same world (-1 at the end), and the row's rank in its world."""
    order = np.argsort(world, kind="stable")
    same = world[order][1:] == world[order][:-1]
    after = np.full(len(world), -1)
    after[order[:-1][same]] = order[1:][same]
    first = np.maximum.accumulate(np.where(np.append(True, ~same), np.arange(len(world)), 0))
    rank = np.empty(len(world), dtype=np.int64)
    rank[order] = np.arange(len(world)) - first
    return after, rank


def normalised(advantage: Floats, mask: Bools) -> Floats:
    """(E, A) -> (E, N): mean zero and spread one over the agents that had a choice.

    With separate rewards, each agent has a separate mean: a busy cluster is not to blame for being busy.
    """
    axis = 0 if advantage.shape[1] > 1 else None
    wide = np.broadcast_to(advantage, mask.shape)
    centred = wide - np.mean(wide, axis=axis, where=mask, keepdims=True)
    return np.asarray(np.where(mask, centred / (np.sqrt(np.mean(centred**2, where=mask)) + 1e-8), 0.0))


@dataclass
class ReturnScale:
    """Mean and spread of the returns seen so far; the critic works in units of these.

    Returns are hundreds or thousands, and shrink as the policy improves: without a scale, the critic's loss would
    drown out the policy's.
    """

    mean: float = 0.0
    #: Mean of the squares; 0: no returns seen yet.
    square: float = 0.0

    @property
    def spread(self) -> float:
        """Standard deviation, never zero."""
        return float(np.sqrt(max(self.square - self.mean**2, 1e-6)))

    def normalise(self, returns: Floats) -> Floats:
        """Returns -> targets of the critic."""
        return np.asarray((returns - self.mean) / self.spread)

    def restore(self, value: Any) -> Floats:
        """Critic's output -> returns."""
        return np.asarray(value, dtype=np.float64) * self.spread + self.mean

    def follow(self, returns: Floats, rate: float) -> tuple[float, float]:
        """Take in new returns; return the factor and the summand that turn old units into new ones."""
        share = rate if self.square else 1.0
        mean, spread = self.mean, self.spread
        self.mean += share * (float(returns.mean()) - self.mean)
        self.square += share * (float((returns**2).mean()) - self.square)
        return spread / self.spread, (mean - self.mean) / self.spread
