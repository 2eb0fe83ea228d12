"""Whole episodes of a policy on the batched simulator, with everything the loss needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tapfinger.policy.inputs import InputMaker, Inputs
from tapfinger.sim.batch import BatchSim

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Acts(NamedTuple):
    """What a policy does in a batch of states."""

    choice: Ints  # (B, N) place, K for void
    amounts: Ints  # (B, N, R)
    score: Floats  # (B, N) Pr(j|n), for conflicts
    extra: Any = None  # whatever the policy wants back, rows per state (log-probs)


Policy = Callable[[Inputs], Acts]


class Turns(NamedTuple):
    """Every turn in which some agent had a choice; E rows."""

    inputs: Inputs
    choice: Ints  # (E, N)
    amounts: Ints  # (E, N, R)
    #: (E, N) agents that had anything to decide: the others are left out of the loss.
    decidable: Bools
    #: (E, N) agents that really placed their task (m of the paper).
    granted: Bools
    #: (E,) world and slot of the turn.
    world: Ints
    slot: Ints
    extra: Any


class Episode(NamedTuple):
    """What came of the worlds."""

    #: (B,) mean completion time.
    mean: Floats
    #: (B, slots) tasks in the system, 0 after the end.
    cost: Floats
    steps: int
    turns: Turns | None


def play(sim: BatchSim, maker: InputMaker, policy: Policy, keep: bool = False, max_slots: int = 100_000) -> Episode:
    """Play every world of the simulator to its end."""
    batch = len(sim.done)
    void = sim.pending
    slot = np.zeros(batch, dtype=np.int64)
    costs: list[tuple[Ints, Ints, Ints]] = []
    rows: list[tuple[Any, ...]] = []
    steps = 0
    while not sim.done.all() and slot.max() < max_slots:
        # Worlds in which nobody can start anything need no network: all clusters are void.
        live = np.flatnonzero(~sim.done & sim.observations.startable.any(axis=(1, 2)))
        choice = np.full(sim.observations.startable.shape[:2], -1, dtype=np.int64)
        amounts = np.zeros((*choice.shape, sim.tables.capacity.shape[1]), dtype=np.int64)
        score = np.ones(choice.shape)
        steps += int((~sim.done).sum())
        acts = inputs = None
        if len(live):
            inputs = maker.make(_rows(sim.observations, live))
            acts = policy(inputs)
            choice[live] = np.where(acts.choice == void, -1, acts.choice)
            amounts[live] = acts.amounts
            score[live] = acts.score
        sim.step(choice, amounts, score)
        if keep and acts is not None and inputs is not None:
            rows.append((inputs, acts, sim.worlds.granted[live].copy(), live, slot[live].copy()))
        ended = np.flatnonzero(sim.settled)
        costs.append((ended, slot[ended].copy(), sim.cost[ended].copy()))
        slot[ended] += 1
    table = np.zeros((batch, int(slot.max()) + 1))
    for worlds, slots, cost in costs:
        table[worlds, slots] = cost
    return Episode(sim.worlds.total / sim.draws.tasks, table, steps, _stack(rows) if keep else None)


def _rows(obs: Any, which: Ints) -> Any:
    return type(obs)(*(array[which] for array in obs))


def _stack(rows: list[tuple[Any, ...]]) -> Turns:
    inputs = Inputs(*(np.concatenate(arrays) for arrays in zip(*(r[0] for r in rows), strict=True)))
    return Turns(
        inputs=inputs,
        choice=np.concatenate([r[1].choice for r in rows]),
        amounts=np.concatenate([r[1].amounts for r in rows]),
        decidable=inputs.startable.any(axis=2),
        granted=np.concatenate([r[2] for r in rows]),
        world=np.concatenate([r[3] for r in rows]),
        slot=np.concatenate([r[4] for r in rows]),
        extra=np.concatenate([r[1].extra for r in rows]) if rows[0][1].extra is not None else None,
    )
