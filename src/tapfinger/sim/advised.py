"""The batched simulator with advisers: greedies say what they would start, and pending sets show those tasks first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tapfinger.profiles.size_menus import Menus
from tapfinger.sim import kernels, plan_kernels
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import Bools, GreedyPlan, Ints, empty_worlds, make_sizes
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World


class AdvisedSim(BatchSim):
    """BatchSim with what policy.encoding.by_profile.ProfileEncoder needs from worlds (its AdvisedWorlds)."""

    def __init__(
        self, world: World, workloads: Sequence[Workload], menus: Menus, plans: Sequence[GreedyPlan], pending: int = 10
    ) -> None:
        """``plans``: the advisers; ``menus``: the menus of sizes that advice refers to."""
        self.menus = menus
        self.sizes = make_sizes(menus.options, world.task_types)
        self._plans = np.array(plans, dtype=np.float64)
        super().__init__(world, workloads, pending)

    def load(self, workloads: Sequence[Workload]) -> None:
        """As BatchSim."""
        super().load(workloads)
        batch = len(workloads)
        self.worlds = empty_worlds(batch, self.draws, self.tables, len(self._plans))
        self._scratch = empty_worlds(batch, self.draws, self.tables)
        kernels.reset_all(self.tables, self.draws, self.worlds, self._observations)
        self._look(np.arange(batch))

    def step(self, choice: Ints, allocation: Ints, score: np.ndarray) -> None:
        """As BatchSim."""
        super().step(choice, allocation, score)
        self._look(np.flatnonzero(~self.done))

    def restart(self, which: Bools) -> None:
        """As BatchSim."""
        super().restart(which)
        self._look(np.flatnonzero(which))

    def _look(self, live: Ints) -> None:
        """Ask the advisers, then observe again."""
        plan_kernels.advise(
            self.tables,
            self.sizes,
            self._plans,
            self.draws,
            self.worlds,
            self._scratch,
            live,
            self.menus.place,
        )
        kernels.observe_some(live, self.tables, self.draws, self.worlds, self._observations)

    def play_on(self, plan: GreedyPlan, until: Ints, most: int) -> None:
        """Let a greedy play each world up to its slot in ``until`` (B,), or until more than ``most`` tasks wait."""
        plan_kernels.play_on(self.tables, self.sizes, plan, self.draws, self.worlds, until, most, self.done)
        self._look(np.flatnonzero(~self.done))

    def skip(self, last: Ints) -> None:
        """Let each world go on until some cluster can start a task, but not beyond its slot in ``last`` (B,)."""
        plan_kernels.skip_idle(
            self.tables,
            self.sizes,
            self._plans,
            self.draws,
            self.worlds,
            self._scratch,
            self.menus.place,
            self._observations,
            self.done,
            last,
        )

    def advice(self, live: Ints) -> Ints:
        """(L, N, K, advisers) place on the menu that each would give a pending task here, -1 if it starts none."""
        task = self.observations.task[live]
        rows, known = live[:, None, None], np.maximum(task, 0)
        here = self.worlds.advised[rows, known] == np.arange(task.shape[1])[None, :, None, None]
        return np.where(here & (task >= 0)[..., None], self.worlds.advised_size[rows, known], -1)

    def recent_arrivals(self, live: Ints, window: int) -> tuple[Ints, Bools, Ints]:
        """(L, J) type of every task, (L, J) whether it arrived in the last ``window`` slots, (L,) slots counted."""
        slot = self.worlds.slot[live][:, None]
        arrival = self.draws.arrival[live]
        real = np.arange(arrival.shape[1]) < self.draws.tasks[live][:, None]
        kind = self.worlds.came if self.world.ladders else self.draws.type
        return kind[live], (arrival <= slot) & (arrival > slot - window) & real, slot[:, 0] + 1
