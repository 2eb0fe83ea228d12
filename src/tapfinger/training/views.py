"""What a network sees of the worlds of a batched simulator: one class per schema of inputs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tapfinger.core.contract import Mode
from tapfinger.errors import UnknownNameError
from tapfinger.policy.inputs import InputMaker, Inputs
from tapfinger.policy.profile_inputs import Advice, ProfileInputMaker
from tapfinger.profiles.menus import Menus
from tapfinger.schedulers.advice import ADVISERS, WINDOW
from tapfinger.sim import plan_kernels
from tapfinger.sim.batch import BatchSim
from tapfinger.sim.layout import Ints, Plan, empty_worlds, make_sizes, make_tables
from tapfinger.workloads.world import World

#: By what a network knows a task: the paper's one-hot type, or its speed profile.
FEATURES = ("types", "profiles")


class View(Protocol):
    """Inputs of some worlds, and the way back from chosen amounts to allocations."""

    def __call__(self, sim: BatchSim, live: Ints) -> Inputs:
        """Inputs of these worlds."""

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """What the amounts chosen for the tasks at these places mean; K is void."""


class TypesView:
    """Schema types: the observation is all there is."""

    def __init__(self, world: World) -> None:
        """For any simulator of this world."""
        self._maker = input_maker(world)

    def __call__(self, sim: BatchSim, live: Ints) -> Inputs:
        """As View."""
        return self._maker.make(rows_of(sim.observations, live))

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """As View."""
        return self._maker.allocations(inputs, place, amounts)


class ProfileView:
    """Schema profiles: speeds, and the advice of greedies."""

    def __init__(self, world: World) -> None:
        """For any simulator of this world."""
        context = world.context(0)
        self.menus = Menus(context)
        self._maker = ProfileInputMaker(self.menus, world.mode is Mode.SINGLE)
        self.sizes = make_sizes(self.menus.options, world.task_types)
        self._plans = [Plan(**options) for options in ADVISERS]
        self._scratch: Any = None

    def __call__(self, sim: BatchSim, live: Ints) -> Inputs:
        """As View."""
        return self._maker.make(rows_of(sim.observations, live), self.advice(sim, live))

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """As View."""
        return self._maker.allocations(inputs, place, amounts)

    def advice(self, sim: BatchSim, live: Ints) -> Advice:
        """Mirror of schedulers.advice.Advisers, for many worlds."""
        if self._scratch is None or self._scratch.queue.shape != sim.worlds.queue.shape:
            self._scratch = empty_worlds(len(sim.done), sim.draws.arrival.shape[1], sim.tables)
        task = sim.observations.task[live]
        place = np.empty((*task.shape, len(self._plans)), dtype=np.int64)
        one = np.empty(task.shape, dtype=np.int64)
        menus = self.menus
        for a, plan in enumerate(self._plans):
            plan_kernels.advise(
                sim.tables,
                self.sizes,
                plan,
                sim.draws,
                sim.worlds,
                self._scratch,
                live,
                task,
                menus.allocation,
                menus.count,
                one,
            )
            place[..., a] = one
        return Advice(place, self._load(sim, live))

    def _load(self, sim: BatchSim, live: Ints) -> Any:
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
