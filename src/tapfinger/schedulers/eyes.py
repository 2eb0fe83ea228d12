"""What the learned scheduler sees of a snapshot, by the schema of its network's inputs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from tapfinger.core.contract import Mode, SchedulerContext, Snapshot
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources
from tapfinger.errors import CheckpointMismatch
from tapfinger.observation import GraphObs, Observer
from tapfinger.policy.card import Card
from tapfinger.policy.inputs import InputMaker, Inputs, Ints, batch_of_one
from tapfinger.policy.profile_inputs import SCHEMA as PROFILES
from tapfinger.policy.profile_inputs import ProfileInputMaker
from tapfinger.profiles.menus import Menus
from tapfinger.schedulers.advice import Advisers


class Sight(NamedTuple):
    """One moment: inputs are a batch of one."""

    #: (N, K) id of the task in each place, -1 for none.
    task: Ints
    inputs: Inputs


class Eyes(Protocol):
    """Turns snapshots into inputs, and chosen amounts into allocations."""

    def learn(self, context: SchedulerContext) -> None:
        """Take other profiles from now on."""

    def count(self, snapshot: Snapshot) -> None:
        """Take note of a whole snapshot; called in every slot before anything is decided."""

    def see(self, snapshot: Snapshot) -> Sight | None:
        """None where nobody can start anything."""

    def look(self, snapshot: Snapshot) -> Sight:
        """The same in any case."""

    def meaning(self, inputs: Inputs, cluster: int, place: int, amounts: list[int]) -> Resources:
        """The allocation that amounts chosen for the task at a place stand for."""


class TypeEyes:
    """Tasks are known by their type, in the card's order."""

    def __init__(self, context: SchedulerContext, card: Card) -> None:
        """Refuses a card that is for other types or resources."""
        _check_fit(card, context)
        by_name = {t.name: t for t in context.task_types}
        types = [by_name[name] for name in card.task_types]  # the scenario's own order does not matter
        self._observer = Observer(context.clusters, types, card.size("pending"))
        capacity = np.array([c.capacity for c in context.clusters], dtype=np.int64)
        minimum = np.array([t.minimum for t in types], dtype=np.int64)
        self._maker = InputMaker(capacity, minimum, card.size("accelerator"))
        # Its inputs are stacked in one row, so padding must stay.
        self._padded = card.network == "vanilla"
        if self._padded and self._observer.most_running != card.size("running"):
            raise mismatch(card, "config.running", card.size("running"), self._observer.most_running)

    def learn(self, context: SchedulerContext) -> None:
        """Profiles are not looked at."""

    def count(self, snapshot: Snapshot) -> None:
        """Nothing to remember."""

    def see(self, snapshot: Snapshot) -> Sight | None:
        """As Eyes."""
        obs = self._observer.observe(snapshot, self._padded)
        return self._sight(obs) if obs.startable.any() else None

    def look(self, snapshot: Snapshot) -> Sight:
        """As Eyes."""
        return self._sight(self._observer.observe(snapshot, self._padded))

    def _sight(self, obs: GraphObs) -> Sight:
        return Sight(obs.task, self._maker.make(batch_of_one(obs)))

    def meaning(self, inputs: Inputs, cluster: int, place: int, amounts: list[int]) -> Resources:  # noqa: ARG002
        """Amounts are allocations."""
        return Resources(amounts)


class ProfileEyes:
    """Tasks are known by their speed; greedies give advice."""

    def __init__(self, context: SchedulerContext, card: Card) -> None:
        """Any types, resources and clusters will do."""
        self._pending = card.size("pending")
        self._advisers = Advisers()
        self.learn(context)

    def learn(self, context: SchedulerContext) -> None:
        """As Eyes; what has arrived is not forgotten."""
        menus = Menus(context)
        self._observer = Observer(context.clusters, context.task_types, self._pending)
        self._maker = ProfileInputMaker(menus, context.mode is Mode.SINGLE)
        self._advisers.learn(context, menus)

    def count(self, snapshot: Snapshot) -> None:
        """As Eyes."""
        self._advisers.count(snapshot)

    def see(self, snapshot: Snapshot) -> Sight | None:
        """As Eyes."""
        if any(can_start(task, snapshot.clusters[n]) for task in snapshot.queue for n in task.eligible):
            return self.look(snapshot)
        return None

    def look(self, snapshot: Snapshot) -> Sight:
        """As Eyes."""
        opinions = self._advisers.ask(snapshot)
        obs = self._observer.observe(snapshot, False, [{p.task: p.cluster for p in o} for o in opinions])
        advice = self._advisers.advice(snapshot, obs, opinions)
        return Sight(obs.task, self._maker.make(batch_of_one(obs), advice))

    def meaning(self, inputs: Inputs, cluster: int, place: int, amounts: list[int]) -> Resources:
        """As Eyes."""
        return Resources(self._maker.flat[inputs.size[0, cluster, place, amounts[0]]].tolist())


def make_eyes(context: SchedulerContext, card: Card) -> Eyes:
    """The eyes for a card's schema."""
    return ProfileEyes(context, card) if card.schema == PROFILES else TypeEyes(context, card)


def _check_fit(card: Card, context: SchedulerContext) -> None:
    types = [t.name for t in context.task_types]
    if set(card.task_types) != set(types):
        raise mismatch(card, "task_types", ", ".join(card.task_types), ", ".join(types))
    if card.resources != tuple(context.resources.names):
        raise mismatch(card, "resources", ", ".join(card.resources), ", ".join(context.resources.names))
    actors = card.size("separate_actors")
    if actors and actors != len(context.clusters):
        raise mismatch(card, "config.separate_actors", actors, len(context.clusters))


def mismatch(card: Card, field: str, model: object, world: object) -> CheckpointMismatch:
    """The error of a model that is for something else."""
    return CheckpointMismatch(
        f"model {card.name!r} does not fit this scenario: its {field} is {model}, the scenario has {world}; "
        "use another model or train one on this scenario"
    )
