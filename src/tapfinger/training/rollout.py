"""Plays whole episodes of a policy on the batched simulator and keeps everything the loss needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tapfinger.policy.encoding.base import StateEncoder
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.sim.advised import AdvisedSim
from tapfinger.sim.batch import BatchSim

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Deviations(NamedTuple):
    """A possible actions of each of N clusters; the first is the one it takes."""

    choice: Ints  # (E, N, A) place, K for void
    amounts: Ints  # (E, N, A, R)
    score: Floats  # (E, N, A) Pr(j|n)
    cost: Floats  # (E, N, A) cost of the action, with the other clusters' actions unchanged; 0 before it is judged
    granted: Bools  # (E, N, A) whether the cluster got its task


class BatchActions(NamedTuple):
    """A policy's actions in a batch of states."""

    choice: Ints  # (B, N) place, K for void
    amounts: Ints  # (B, N, R)
    score: Floats  # (B, N) Pr(j|n), for conflicts
    extra: Any = None  # anything the policy wants returned later, rows per state (log-probs)
    others: Deviations | None = None  # alternative actions, in the requested states


#: With a judge, the policy is also given the states in which to name other actions.
Policy = Callable[..., BatchActions]


class TurnJudge(Protocol):
    """Tries out alternative actions before a turn is played."""

    def worth_trying(self, states: int) -> Ints:
        """Choose in which of this many states to try actions; the other states are not kept."""

    def leave_out(self, inputs: Inputs, others: Deviations) -> None:
        """Replace the alternatives of agents beyond the number to try by the actions they take anyway."""

    def __call__(self, sim: BatchSim, live: Ints, others: Deviations, allocation: Ints) -> Deviations:
        """Fill in cost and granted, given the allocations (E, N, A, R) that the amounts stand for."""


class Turns(NamedTuple):
    """Every turn in which some agent had a choice; E rows."""

    inputs: Inputs
    choice: Ints  # (E, N)
    amounts: Ints  # (E, N, R)
    #: (E, N) agents that had a choice; the others are left out of the loss.
    decidable: Bools
    #: (E, N) agents that really placed their task (m of the paper).
    granted: Bools
    #: (E,) world and slot of the turn.
    world: Ints
    slot: Ints
    extra: Any
    others: Deviations | None = None


class RolloutResult(NamedTuple):
    """Results of the worlds."""

    #: (B,) mean completion time.
    mean: Floats
    #: (B, slots) tasks in the system, 0 after the end.
    cost: Floats
    steps: int
    turns: Turns | None


def play(
    sim: BatchSim,
    encoder: StateEncoder,
    policy: Policy,
    keep: bool = False,
    max_slots: int | Ints = 100_000,
    judge: TurnJudge | None = None,
    costs: bool = True,
) -> RolloutResult:
    """Play every world of the simulator to its end; ``judge`` evaluates a policy's other actions.

    ``max_slots``: slot at which worlds are abandoned, (B,) or one for all. Without per-slot ``costs``, worlds with
    advisers skip slots in which no task can start: each call of the policy then finds as many waiting worlds as
    possible.
    """
    batch = len(sim.done)
    void = sim.pending
    slot = sim.worlds.slot.copy()
    last = np.broadcast_to(max_slots, batch).astype(np.int64)
    spent: list[tuple[Ints, Ints, Ints]] = []
    rows: list[tuple[Any, ...]] = []
    steps = 0
    while (going := ~sim.done & (slot < last)).any():
        # Worlds in which no task can start need no network: all clusters are void.
        live = np.flatnonzero(going & sim.observations.startable.any(axis=(1, 2)))
        choice = np.full(sim.observations.startable.shape[:2], -1, dtype=np.int64)
        amounts = np.zeros((*choice.shape, sim.tables.capacity.shape[1]), dtype=np.int64)
        score = np.ones(choice.shape)
        steps += int((~sim.done).sum())
        acts = inputs = None
        if len(live):
            inputs = encoder.encode_batch(sim, live)
            kept = np.arange(len(live)) if judge is None else judge.worth_trying(len(live))
            acts = policy(inputs) if judge is None else policy(inputs, kept)
            choice[live] = np.where(acts.choice == void, -1, acts.choice)
            amounts[live] = encoder.decode_batch(inputs, acts.choice, acts.amounts)
            score[live] = acts.score
            if judge is not None and acts.others is not None:
                others = acts.others
                inputs, acts, live = picked(inputs, kept), picked(acts._replace(others=None), kept), live[kept]
                judge.leave_out(inputs, others)
                meant = encoder.decode_batch(inputs, others.choice, others.amounts)
                acts = acts._replace(others=judge(sim, live, others, meant))
        sim.step(choice, amounts, score)
        if keep and acts is not None and inputs is not None:
            rows.append((inputs, acts, sim.worlds.granted[live].copy(), live, slot[live].copy()))
        if not costs and isinstance(sim, AdvisedSim):
            sim.skip(last)
            slot = sim.worlds.slot.copy()
            continue
        ended = np.flatnonzero(sim.settled)
        spent.append((ended, slot[ended].copy(), sim.cost[ended].copy()))
        slot[ended] += 1
    table = np.zeros((batch, int(slot.max()) + 1))
    for worlds, slots, cost in spent:
        table[worlds, slots] = cost
    return RolloutResult(sim.worlds.total / sim.draws.tasks, table, steps, _stack(rows) if keep and rows else None)


def picked(parts: Any, rows: Ints) -> Any:
    """Selected rows of a named tuple of arrays; None stays None."""
    return type(parts)(*(None if array is None else array[rows] for array in parts))


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate named tuples of arrays; None stays None."""
    if parts[0] is None:
        return None
    return type(parts[0])(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _stack(rows: list[tuple[Any, ...]]) -> Turns:
    inputs: Inputs = joined([r[0] for r in rows])
    return Turns(
        inputs=inputs,
        choice=np.concatenate([r[1].choice for r in rows]),
        amounts=np.concatenate([r[1].amounts for r in rows]),
        decidable=inputs.startable.any(axis=2),
        granted=np.concatenate([r[2] for r in rows]),
        world=np.concatenate([r[3] for r in rows]),
        slot=np.concatenate([r[4] for r in rows]),
        extra=np.concatenate([r[1].extra for r in rows]) if rows[0][1].extra is not None else None,
        others=joined([r[1].others for r in rows]),
    )
