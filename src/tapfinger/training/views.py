"""What a network sees of the worlds of a batched simulator: one class per schema of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tapfinger.core.contract import Mode
from tapfinger.errors import UnknownNameError
from tapfinger.policy.inputs import InputMaker, Inputs
from tapfinger.policy.profile_inputs import Advice, ProfileInputMaker
from tapfinger.profiles.menus import Menus
from tapfinger.schedulers.advice import ADVISERS, WINDOW
from tapfinger.sim.advised import AdvisedSim
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import Ints, Plan, make_tables
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World

#: By what a network knows a task: the paper's one-hot type, or its speed profile.
FEATURES = ("types", "profiles")


class View(Protocol):
    """Inputs of some worlds, and the way back from chosen amounts to allocations."""

    def sim(self, workloads: Sequence[Workload], pending: int) -> BatchSim:
        """A simulator that this view can look at."""

    def __call__(self, sim: BatchSim, live: Ints) -> Inputs:
        """Inputs of these worlds."""

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """What the amounts chosen for the tasks at these places mean; K is void."""


class TypesView:
    """Schema types: the observation is all there is."""

    def __init__(self, world: World) -> None:
        """For any simulator of this world."""
        self._world = world
        self._maker = input_maker(world)

    def sim(self, workloads: Sequence[Workload], pending: int) -> BatchSim:
        """As View."""
        return BatchSim(self._world, workloads, pending)

    def __call__(self, sim: BatchSim, live: Ints) -> Inputs:
        """As View."""
        return self._maker.make(rows_of(sim.observations, live))

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """As View."""
        return self._maker.allocations(inputs, place, amounts)


class ProfileView:
    """Schema profiles: speeds, and the advice of greedies."""

    def __init__(self, world: World) -> None:
        """For any simulator of this world that ``sim`` makes."""
        self._world = world
        self.menus = Menus(world.context(0))
        self._maker = ProfileInputMaker(self.menus, world.mode is Mode.SINGLE)

    def sim(self, workloads: Sequence[Workload], pending: int) -> AdvisedSim:
        """As View."""
        return AdvisedSim(self._world, workloads, self.menus, [Plan(**options) for options in ADVISERS], pending)

    def __call__(self, sim: BatchSim, live: Ints) -> Inputs:
        """As View."""
        if not isinstance(sim, AdvisedSim):
            raise TypeError("a ProfileView looks at simulators that it made")
        return self._maker.make(rows_of(sim.observations, live), Advice(sim.advice(live), self._load(sim, live)))

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """As View."""
        return self._maker.allocations(inputs, place, amounts)

    def _load(self, sim: BatchSim, live: Ints) -> Any:
        """Mirror of schedulers.advice.Advisers, for many worlds."""
        slot = sim.worlds.slot[live][:, None]
        arrival = sim.draws.arrival[live]
        known = np.arange(arrival.shape[1]) < sim.draws.tasks[live][:, None]
        recent = (arrival <= slot) & (arrival > slot - WINDOW) & known
        work = (self.menus.least_cost[sim.draws.type[live]] * recent).sum(axis=1)
        return work / np.minimum(slot[:, 0] + 1, WINDOW) / len(self.menus.capacity)


def make_view(world: World, features: str) -> View:
    """The view of a kind of features."""
    if features not in FEATURES:
        raise UnknownNameError("features", features, FEATURES)
    return TypesView(world) if features == "types" else ProfileView(world)


def input_maker(world: World) -> InputMaker:
    """The input maker of a world's clusters and types, for schema types."""
    tables = make_tables(world.clusters, world.task_types, world.noise, world.mode)
    return InputMaker(tables.capacity, tables.minimum, world.resources.accelerator)


def rows_of(obs: Any, which: Ints) -> Any:
    """Observations of some worlds."""
    return type(obs)(*(array[which] for array in obs))
