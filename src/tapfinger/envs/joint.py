"""Gymnasium environment: one agent decides for all clusters, one step per turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tapfinger.config import Scenario
from tapfinger.envs.actions import MANY, ActionCoding, Masks, amount_box, feature_box, minimum_of
from tapfinger.envs.episode import Episode, EventSink, TurnOutcome, as_world, check_options
from tapfinger.errors import InvalidDecision
from tapfinger.observation import GraphObs, Observer
from tapfinger.workloads.world import World, draw_workload

Obs = dict[str, npt.NDArray[Any]]


class EdgeJointEnv(gymnasium.Env[Obs, npt.NDArray[np.int64]]):
    """An action is one vector: the actions (place, amounts) of all clusters, one after the other.

    The reward is minus the tasks in the system when a slot ends and 0 on other turns. An illegal
    part of an action is treated as void and explained in ``info["illegal"]``.
    """

    def __init__(
        self,
        scenario: str | Scenario | World,
        *,
        pending: int = 10,
        max_slots: int | None = None,
        sinks: Iterable[EventSink] = (),
    ) -> None:
        """``scenario``: a name, a TOML file, a Scenario or a World.

        ``pending``: size of each pending set. ``max_slots``: truncate after this many slots.
        ``sinks`` get every event of every episode.
        """
        check_options("shared", pending, max_slots)
        self.world = as_world(scenario)
        self.metadata = {"render_modes": []}
        self._coding = ActionCoding(self.world, pending)
        self._observer = Observer(self.world.clusters, self.world.task_types, pending)
        self._max_slots = max_slots
        self._sinks = tuple(sinks)
        self._episode: Episode | None = None
        self._clusters = len(self.world.clusters)
        sizes = [size for n in range(self._clusters) for size in self._coding.sizes(n)]
        self.action_space = spaces.MultiDiscrete(sizes)
        self.observation_space = self._observation_space()  # type: ignore[assignment]

    def _observation_space(self) -> spaces.Dict:
        resources, kinds = len(self.world.resources.names), len(self.world.task_types)
        pending, width, n = self._observer.pending, resources + kinds + 1, self._clusters
        capacity = [max(a) for a in zip(*(c.capacity for c in self.world.clusters), strict=True)]
        largest_minimum = [max(a) for a in zip(*(t.minimum for t in self.world.task_types), strict=True)]
        most = [max(a) for a in zip(*self._coding.most, strict=True)]
        return spaces.Dict(
            {
                "clusters": feature_box(capacity, resources + 1, n, last=MANY),
                "pending": feature_box(largest_minimum, width, n * pending, last=1.0),
                "running": feature_box(most, width, n, self._observer.most_running, last=MANY),
                "node": spaces.Box(-1, n * pending, (n, pending), dtype=np.int64),
                "startable": spaces.Box(0, 1, (n, pending), dtype=np.int8),
                "minimum": amount_box(most, n, pending),
                "largest": amount_box(most, n, pending),
            }
        )

    @property
    def episode(self) -> Episode:
        """The episode being played, with its session."""
        if self._episode is None:
            raise InvalidDecision("no episode has begun; call reset() first")
        return self._episode

    @property
    def graph(self) -> GraphObs:
        """The observation as a graph, from which the arrays are made."""
        return self.episode.obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin the workload of ``seed``; without one, the next workload of the environment's own stream."""
        super().reset(seed=seed, options=options)
        workload = draw_workload(self.world, seed if seed is not None else int(self.np_random.integers(2**31)))
        self._episode = Episode(self.world, workload, self._observer, "shared", self._sinks)
        none = self._clusters * (0,)
        return self._observe(), self._info(TurnOutcome(False, none, (False,) * len(none), ("",) * len(none)))

    def step(self, action: npt.NDArray[np.int64]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """One turn; where the round is settled, the slot ends and the reward is paid."""
        episode = self.episode
        if episode.session.done:
            raise InvalidDecision("the episode has ended; call reset()")
        if np.shape(action) != self.action_space.shape:
            raise InvalidDecision(f"an action has shape {self.action_space.shape}, got {np.shape(action)}")
        parts = np.split(np.asarray(action), self._clusters)
        outcome = episode.turn([self._coding.read(n, part) for n, part in enumerate(parts)], [1.0] * self._clusters)
        done = episode.session.done
        cut = not done and self._max_slots is not None and episode.slot >= self._max_slots
        return self._observe(), -float(outcome.cost[0]), done, cut, self._info(outcome)

    def action_mask(self) -> Masks:
        """The current mask, as ``action_space.sample`` takes it."""
        obs = self.graph
        return tuple(mask for masks in self._coding.masks(obs, minimum_of(obs)) for mask in masks)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The current mask as one vector, for learners that ask the environment for it under this name."""
        return np.concatenate(self.action_mask()).astype(np.bool_)

    def _observe(self) -> Obs:
        obs = self.graph
        return {
            "clusters": obs.cluster_features,
            "pending": obs.pending_features,
            "running": obs.running_features,
            "node": obs.node,
            "startable": obs.startable.astype(np.int8),
            "minimum": minimum_of(obs),
            "largest": obs.largest,
        }

    def _info(self, outcome: TurnOutcome) -> dict[str, Any]:
        state = self.episode.session.state
        return {
            "slot": state.slot,
            "turn": state.turn,
            "settled": outcome.settled,
            "tasks_in_system": state.tasks_in_system,
            "granted": outcome.granted,
            "illegal": outcome.illegal,
            "action_mask": self.action_mask(),
            **self.episode.places.all(),
        }
