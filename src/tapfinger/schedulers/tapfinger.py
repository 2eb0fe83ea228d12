"""TapFinger: one agent per cluster, all run by one exported network; who gets a contested task is Bayes' rule.

Needs no torch: the network is an ONNX file. Speed profiles are used only by the guard against deadlock.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tapfinger.core.conflict import resolve
from tapfinger.core.contract import VOID, ClusterView, Decision, Placement, Proposal, SchedulerContext, Snapshot
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources
from tapfinger.errors import CheckpointMismatch, ConfigError
from tapfinger.observation import GraphObs, Observer
from tapfinger.policy.card import Card
from tapfinger.policy.exported import best_actions, load_model, shipped_models
from tapfinger.policy.inputs import InputMaker, batch_of_one
from tapfinger.profiles.options import Options


class TapFinger:
    """The learned scheduler: a network chooses each cluster's next task and what it gets."""

    one_shot = False

    def __init__(self, model: str = "", max_wait: float = 20.0) -> None:
        """``model``: a shipped name or a .onnx file; without it, the shipped one that fits the task types best.

        If every cluster wants to wait although a task that could start has waited ``max_wait`` times its
        ideal duration, that task is started at the smallest size worth having, where most is free.
        """
        if not isinstance(model, str):
            raise ConfigError(f"tapfinger: model = {model!r} must be the name of a shipped model or a .onnx file")
        if not isinstance(max_wait, int | float) or not math.isfinite(max_wait) or max_wait < 0:
            raise ConfigError(f"tapfinger: max_wait = {max_wait!r} must be a number, zero or more")
        self._model = model
        self._max_wait = max_wait
        #: How many tasks the guard has started in this run.
        self.forced = 0

    def reset(self, context: SchedulerContext) -> None:
        """Load the network and check that it was made for these task types and resources."""
        self._network = load_model(self._model or _choose(context))
        card = self._network.card
        _check_fit(card, context)
        by_name = {t.name: t for t in context.task_types}
        types = [by_name[name] for name in card.task_types]  # the scenario's own order does not matter
        self._observer = Observer(context.clusters, types, card.size("pending"))
        self._accelerator = card.size("accelerator")
        capacity = np.array([c.capacity for c in context.clusters], dtype=np.int64)
        minimum = np.array([t.minimum for t in types], dtype=np.int64)
        self._inputs = InputMaker(capacity, minimum, self._accelerator)
        # Its inputs are stacked in one row, so padding must stay.
        self._fixed_sizes = card.network == "vanilla"
        if self._fixed_sizes and self._observer.most_running != card.size("running"):
            raise _mismatch(card, "config.running", card.size("running"), self._observer.most_running)
        self._rng = np.random.default_rng(context.seed) if card.network == "no-pointer" else None
        self._options = Options(context)
        self.forced = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        """One turn of all agents."""
        obs = self._observer.observe(snapshot)
        proposals = self._propose(obs) if obs.startable.any() else []
        if not proposals:
            return self._start_overdue(snapshot)
        wanted = {proposal.task for proposal in proposals}
        minimum = {task.id: task.type.minimum for task in snapshot.queue if task.id in wanted}
        return resolve(proposals, snapshot.free, minimum)

    def _propose(self, obs: GraphObs) -> list[Proposal]:
        """What each cluster wants; clusters that are void are left out."""
        inputs = self._inputs.make(batch_of_one(obs if self._fixed_sizes else _without_padding(obs)))
        acts = best_actions(self._network.run(inputs), inputs, self._accelerator, self._rng)
        places = inputs.startable.shape[2]
        return [
            Proposal(n, int(obs.task[n, place]), Resources(amounts), score)
            for n, (place, amounts, score) in enumerate(
                zip(acts.place[0].tolist(), acts.amounts[0].tolist(), acts.score[0].tolist(), strict=True)
            )
            if place < places
        ]

    def _start_overdue(self, snapshot: Snapshot) -> Decision:
        """The oldest task that has waited too long and could start; without it a void network is a deadlock."""
        for task in snapshot.queue:  # oldest first
            if snapshot.slot - task.arrival < self._max_wait * self._options.ideal(task.type.name, task.eligible):
                continue
            open_to_it = [c for c in snapshot.clusters if can_start(task, c)]
            if not open_to_it:
                continue
            self.forced += 1
            cluster = max(open_to_it, key=self._emptiness)
            fitting = [o.allocation for o in self._options.of[task.type.name] if o.allocation.fits(cluster.free)]
            # Fastest first, so the last one is the smallest; the minimum itself may not be worth having.
            size = fitting[-1] if fitting else task.type.minimum
            return Decision((Placement(task.id, cluster.index, size),))
        return VOID

    def _emptiness(self, cluster: ClusterView) -> tuple[float, int]:
        return self._options.free_share(cluster.free), -cluster.index


def _without_padding(obs: GraphObs) -> GraphObs:
    """Only as many nodes, places and running rows as there are tasks: the network's time depends on them."""
    nodes = max(1, int((obs.pending_features[:, -1] == 0.0).sum()))
    running = max(1, int(obs.running_count.max()))
    places = max(1, int((obs.task >= 0).sum(axis=1).max()))
    return replace(
        obs,
        pending_features=obs.pending_features[:nodes],
        age=obs.age[:nodes],
        running_features=obs.running_features[:, :running],
        task=obs.task[:, :places],
        node=obs.node[:, :places],
        startable=obs.startable[:, :places],
        largest=obs.largest[:, :places],
    )


def _choose(context: SchedulerContext) -> str:
    """The shipped model for these types and resources, of the most alike mode and number of clusters."""
    cards = shipped_models()
    fitting = [card for card in cards.values() if _same_kind(card, context)]
    if not fitting:
        types = ", ".join(t.name for t in context.task_types)
        raise ConfigError(
            f"tapfinger: no shipped model is for the task types {types} and the resources "
            f"{', '.join(context.resources.names)}; train one and give model=PATH.onnx "
            f"(shipped: {', '.join(cards) or 'none'})"
        )
    clusters = len(context.clusters)
    mode = context.mode.value
    return min(fitting, key=lambda c: (c.scenario.get("mode") != mode, abs(c.clusters - clusters), c.name)).name


def _same_kind(card: Card, context: SchedulerContext) -> bool:
    types = {t.name for t in context.task_types}
    return set(card.task_types) == types and card.resources == tuple(context.resources.names)


def _check_fit(card: Card, context: SchedulerContext) -> None:
    types = [t.name for t in context.task_types]
    if set(card.task_types) != set(types):
        raise _mismatch(card, "task_types", ", ".join(card.task_types), ", ".join(types))
    if card.resources != tuple(context.resources.names):
        raise _mismatch(card, "resources", ", ".join(card.resources), ", ".join(context.resources.names))
    actors = card.size("separate_actors")
    if actors and actors != len(context.clusters):
        raise _mismatch(card, "config.separate_actors", actors, len(context.clusters))


def _mismatch(card: Card, field: str, model: object, world: object) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"model {card.name!r} does not fit this scenario: its {field} is {model}, the scenario has {world}; "
        "use another model or train one on this scenario"
    )
