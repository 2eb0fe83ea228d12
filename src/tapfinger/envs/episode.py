"""One episode played turn by turn; the readable environments share it.

Nothing here decides what is legal or who wins a conflict: that is core.feasibility, core.conflict
and core.session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tapfinger.config import Scenario, load_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Proposal, Snapshot, TaskView
from tapfinger.core.events import Event
from tapfinger.core.feasibility import can_start_with, check_size
from tapfinger.core.model import Resources
from tapfinger.envs.places import Places
from tapfinger.errors import ConfigError, InvalidDecision
from tapfinger.observation import GraphObs, Observer
from tapfinger.sim.run import new_session
from tapfinger.workloads.base import Workload
from tapfinger.workloads.world import World, build_world

#: shared: minus the tasks in the system, the same for every agent; its negated sum is the objective.
#: own: minus the tasks that are on the agent's cluster or wait in its queue.
Reward = Literal["shared", "own"]

EventSink = Callable[[Event], None]


@dataclass(frozen=True)
class TurnOutcome:
    """What one turn did, per cluster."""

    #: Whether the round was settled, so that the slot has ended.
    settled: bool
    #: Negated reward of each cluster; 0 on turns inside a slot.
    cost: tuple[int, ...]
    #: Whether each cluster got the task it wanted.
    granted: tuple[bool, ...]
    #: Why an action was treated as void; empty for legal ones.
    illegal: tuple[str, ...]


class Episode:
    """A session of the simulator, and its current observation."""

    def __init__(
        self, world: World, workload: Workload, observer: Observer, reward: Reward, sinks: Iterable[EventSink] = ()
    ) -> None:
        """Slot 0, turn 0."""
        self.session = new_session(world, workload, sinks)
        self._observer = observer
        self._own = reward == "own"
        #: Nodes and kinds of hardware, as they are used after the decisions of each turn.
        self.places = Places(world.clusters)
        self.places.look(self.session.state)
        self._look()

    def _look(self) -> None:
        self.snapshot: Snapshot = self.session.state.snapshot()
        self.obs: GraphObs = self._observer.observe(self.snapshot)

    @property
    def slot(self) -> int:
        """Slots that have passed."""
        return self.session.state.slot

    def turn(self, actions: Sequence[Sequence[int]], scores: Sequence[float]) -> TurnOutcome:
        """Play one turn: an action (place, amounts) and a score per cluster; ends the slot when settled."""
        proposals: list[Proposal] = []
        minimum: dict[int, Resources] = {}
        illegal = [""] * len(actions)
        for n, action in enumerate(actions):
            if action[0] == self._observer.pending:
                continue
            try:
                task = self._wanted(n, action[0])
                allocation = Resources(action[1:])
                self._check(task, n, allocation)
            except InvalidDecision as error:
                illegal[n] = str(error)
                continue
            proposals.append(Proposal(n, task.id, allocation, scores[n]))
            minimum[task.id] = task.type.minimum
        decision = resolve(proposals, self.snapshot.free, minimum, self.snapshot.spans)
        granted = {placement.cluster for placement in decision.placements}
        settled = self.session.turn(decision)
        self.places.look(self.session.state)
        cost = self._end_slot() if settled else (0,) * len(actions)
        self._look()
        return TurnOutcome(settled, cost, tuple(n in granted for n in range(len(actions))), tuple(illegal))

    def _wanted(self, n: int, place: int) -> TaskView:
        pending = self.snapshot.pending(n, self._observer.pending)
        if not 0 <= place < len(pending):
            raise InvalidDecision(f"cluster {n} has {len(pending)} pending tasks, there is none at place {place}")
        return pending[place]

    def _check(self, task: TaskView, n: int, allocation: Resources) -> None:
        cluster = self.snapshot.clusters[n]
        check_size(task.id, task.type, allocation)
        if not can_start_with(task, cluster, allocation):
            raise InvalidDecision(
                f"task {task.id} cannot start on cluster {n} with {tuple(allocation)} now: "
                f"{tuple(cluster.free)} is free{'' if cluster.up else ', and the cluster is down'}"
            )

    def _end_slot(self) -> tuple[int, ...]:
        clusters = len(self.snapshot.clusters)
        if not self._own:
            return (self.session.end_slot(),) * clusters
        now = self.session.state.snapshot()
        own = [len(c.running) + len(c.paused) for c in now.clusters]
        for task in now.queue:
            for n in task.eligible:
                own[n] += 1
        self.session.end_slot()
        return tuple(own)


def check_options(reward: str, pending: int, max_slots: int | None) -> None:
    """Refuse options that no environment accepts."""
    if reward not in get_args(Reward):
        raise ConfigError(f"reward {reward!r} must be one of {', '.join(get_args(Reward))}")
    if pending < 1:
        raise ConfigError(f"pending = {pending} must be at least 1")
    if max_slots is not None and max_slots < 1:
        raise ConfigError(f"max_slots = {max_slots} must be at least 1, or None for no limit")


def as_world(scenario: str | Scenario | World) -> World:
    """A world, from itself, its scenario, or the scenario's name or file."""
    if isinstance(scenario, World):
        return scenario
    return build_world(load_scenario(scenario) if isinstance(scenario, str) else scenario)
