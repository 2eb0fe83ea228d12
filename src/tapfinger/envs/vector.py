"""Batched environment for rollouts: B episodes at once on the batched simulator, arrays in and out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tapfinger.config import Scenario
from tapfinger.envs.episode import Reward, as_world, check_options
from tapfinger.errors import ConfigError, InvalidDecision
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import Bools, Floats, Ints, Observations
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World, draw_workload


class BatchStep(NamedTuple):
    """What one turn of every world did. B worlds, N clusters."""

    #: The simulator's own arrays, overwritten by every step: copy what you keep.
    observations: Observations
    reward: Floats  # (B, N) 0 on turns inside a slot
    terminated: Bools  # (B,) every task has ended
    truncated: Bools  # (B,) max_slots have passed
    settled: Bools  # (B,) the step ended a slot
    granted: Bools  # (B, N) whether the cluster got the task it wanted


class EdgeBatchEnv:
    """B worlds of one scenario; equal to EdgeParallelEnv, action by action.

    An illegal action raises InvalidDecision: a policy that applies the masks exactly never takes one.
    """

    def __init__(
        self,
        scenario: str | Scenario | World,
        batch: int,
        *,
        pending: int = 10,
        reward: Reward = "shared",
        max_slots: int | None = None,
        auto_restart: bool = True,
    ) -> None:
        """``batch``: number of worlds. The rest as in EdgeParallelEnv.

        ``auto_restart``: a world whose episode ends begins a fresh workload in the same step, so its
        observation is already the new episode's. False: call ``restart(which)`` yourself, for example
        after looking at the last observation of a truncated episode.
        """
        check_options(reward, pending, max_slots)
        if batch < 1:
            raise ConfigError(f"batch = {batch} must be at least 1")
        self.world = as_world(scenario)
        self.batch = batch
        self._pending = pending
        self._own = reward == "own"
        self._max_slots = max_slots
        self._auto_restart = auto_restart
        self._seed = 0
        #: (B,) episodes that each world has begun.
        self.episodes: Ints = np.zeros(batch, dtype=np.int64)
        #: (B,) workload seed of each world's episode: what EdgeParallelEnv.reset takes to play the same.
        self.seeds: Ints = np.zeros(batch, dtype=np.int64)
        self._sim: BatchSim | None = None
        self._ended: Bools = np.zeros(batch, dtype=np.bool_)

    @property
    def sim(self) -> BatchSim:
        """The simulator underneath, with its masks, tables and event logs."""
        if self._sim is None:
            raise InvalidDecision("no episode has begun; call reset() first")
        return self._sim

    def reset(self, seed: int = 0) -> Observations:
        """Begin every world's first episode. Episode k of world b is always the same for one seed."""
        self._seed = seed
        self.episodes[:] = 0
        self._ended[:] = False
        workloads = [self._next_workload(b) for b in range(self.batch)]
        if self._sim is None:
            self._sim = BatchSim(self.world, workloads, self._pending)
        else:
            self._sim.load(workloads)
        return self._sim.observations

    def _next_workload(self, b: int) -> Workload:
        """Drawn from (seed, world, episode), so that no world's stream depends on how others are played."""
        key = np.random.SeedSequence([self._seed, b, int(self.episodes[b])])
        self.seeds[b] = key.generate_state(1)[0]
        self.episodes[b] += 1
        return draw_workload(self.world, int(self.seeds[b]))

    def step(self, choice: Ints, allocation: Ints, score: Floats | None = None) -> BatchStep:
        """One turn. choice (B, N): a place, or -1 for void; allocation (B, N, R); score (B, N): Pr(j|n), equal if None.

        Worlds that have ended must be restarted first.
        """
        sim = self.sim
        if self._ended.any():
            raise InvalidDecision(f"world {int(self._ended.argmax())} has ended; call restart() first")
        before = self._before(choice) if self._own else None
        sim.step(choice, allocation, score if score is not None else np.ones(choice.shape))
        granted = sim.worlds.granted.copy()
        cost = np.repeat(sim.cost[:, None], choice.shape[1], axis=1) if before is None else self._own_cost(*before)
        settled, terminated = sim.settled.copy(), sim.done.copy()
        truncated = np.zeros(self.batch, dtype=np.bool_)
        if self._max_slots is not None:
            truncated = ~terminated & (sim.worlds.slot >= self._max_slots)
        self._ended = terminated | truncated
        if self._auto_restart and self._ended.any():
            self.restart(self._ended)
        return BatchStep(sim.observations, -cost.astype(np.float64), terminated, truncated, settled, granted)

    def _before(self, choice: Ints) -> tuple[Ints, Ints]:
        """(B, N) tasks on or waiting for each cluster before the turn, and the task each one wants."""
        obs = self.sim.observations
        wanted = np.take_along_axis(obs.task, np.maximum(choice, 0)[:, :, None], axis=2)[:, :, 0]
        return obs.running_count + obs.waiting, wanted

    def _own_cost(self, before: Ints, wanted: Ints) -> Ints:
        """(B, N) tasks on or waiting for each cluster after the turn, where it ended a slot."""
        # A granted task leaves the queue of all its clusters and runs on one.
        granted = self.sim.worlds.granted
        eligible = self.sim.draws.eligible[np.arange(self.batch)[:, None], wanted]  # (B, N, N)
        after = before + granted - (eligible & granted[:, :, None]).sum(axis=1)
        return np.where(self.sim.settled[:, None], after, 0)

    def restart(self, which: Bools) -> Observations:
        """Begin fresh workloads in these worlds."""
        room, fresh = self.sim.draws.arrival.shape[1], {}
        for b in np.flatnonzero(which).tolist():
            fresh[b] = workload = self._next_workload(b)
            if len(workload) > room:
                raise ConfigError(
                    f"the workload of seed {self.seeds[b]} has {len(workload)} tasks, the first ones had {room}; "
                    "a batched environment needs workloads of equal length: set tasks in the scenario"
                )
        self.sim.replace(fresh)
        self.sim.restart(which)
        self._ended = self._ended & ~which
        return self.sim.observations
