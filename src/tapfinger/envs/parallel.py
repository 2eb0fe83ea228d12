"""PettingZoo environment: one agent per cluster, one step per turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from tapfinger.config import Scenario
from tapfinger.envs.actions import MANY, ActionCoding, amount_box, feature_box, mask_box, minimum_of
from tapfinger.envs.episode import Episode, EventSink, Reward, as_world, check_options
from tapfinger.errors import InvalidDecision
from tapfinger.observation import GraphObs, Observer
from tapfinger.workloads.world import World, draw_workload

Obs = dict[str, Any]


class EdgeParallelEnv(ParallelEnv):  # type: ignore[misc]
    """Every agent names a place in its pending set and an allocation; conflicts are settled by Bayes' rule.

    The reward is 0 on the turns inside a slot and is paid when the slot ends. An illegal action is treated as void and
    explained in ``info["illegal"]``.
    """

    def __init__(
        self,
        scenario: str | Scenario | World,
        *,
        pending: int = 10,
        reward: Reward = "shared",
        scores: bool = False,
        max_slots: int | None = None,
        sinks: Iterable[EventSink] = (),
    ) -> None:
        """``scenario``: a name, a TOML file, a Scenario or a World.

        ``pending``: size of each pending set. ``reward``: shared or own (see docs/environments.md).
        ``scores``: actions become ``{"choice": ..., "score": [Pr(j|n)]}``; otherwise all scores are equal.
        ``max_slots``: truncate after this many slots. ``sinks`` get every event of every episode.
        """
        check_options(reward, pending, max_slots)
        self.world = as_world(scenario)
        self.metadata = {"name": "tapfinger_parallel_v0", "render_modes": [], "is_parallelizable": True}
        self.possible_agents = [f"cluster_{n}" for n in range(len(self.world.clusters))]
        self.agents: list[str] = []
        self.render_mode = None
        self._coding = ActionCoding(self.world, pending)
        self._observer = Observer(self.world.clusters, self.world.task_types, pending)
        # A row of the pending features that stands for no task: only the dummy bit is set.
        self._dummy = np.zeros(len(self._coding.names) + len(self.world.task_types) + 1, dtype=np.float32)
        self._dummy[-1] = 1.0
        self._reward = reward
        self._scores = scores
        self._max_slots = max_slots
        self._sinks = tuple(sinks)
        self._rng: np.random.Generator | None = None
        self._episode: Episode | None = None
        self.action_spaces = {a: self._action_space(n) for n, a in enumerate(self.possible_agents)}
        self.observation_spaces = {a: self._observation_space(n) for n, a in enumerate(self.possible_agents)}

    # ----------------------------------------------------------------- spaces

    def _action_space(self, n: int) -> spaces.Space[Any]:
        choice = spaces.MultiDiscrete(self._coding.sizes(n))
        if not self._scores:
            return choice
        return spaces.Dict({"choice": choice, "score": spaces.Box(0.0, 1.0, (1,), dtype=np.float64)})

    def _observation_space(self, n: int) -> spaces.Dict:
        capacity, most = self.world.clusters[n].capacity, self._coding.most[n]
        resources, kinds = len(capacity), len(self.world.task_types)
        width, pending = resources + kinds + 1, self._observer.pending
        largest_minimum = [max(a) for a in zip(*(t.minimum for t in self.world.task_types), strict=True)]
        features = spaces.Dict(
            {
                "cluster": feature_box(capacity, resources + 1, last=MANY),
                "pending": feature_box(largest_minimum, width, pending, last=1.0),
                "running": feature_box(most, width, self._observer.most_running, last=MANY),
                "minimum": amount_box(most, pending),
                "largest": amount_box(most, pending),
            }
        )
        masks = spaces.Tuple([mask_box(size) for size in self._coding.sizes(n)])
        return spaces.Dict({"observation": features, self._mask_key: masks})

    @property
    def _mask_key(self) -> str:
        # With scores the mask covers only a part of the action, so it must not look like the mask of the whole.
        return "choice_mask" if self._scores else "action_mask"

    def observation_space(self, agent: str) -> spaces.Dict:
        """Space of this agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Space of this agent's actions."""
        return self.action_spaces[agent]

    @property
    def state_space(self) -> spaces.Box:
        """Space of ``state()``."""
        return spaces.Box(0.0, MANY, self._flat(self.graph).shape, dtype=np.float32)

    # --------------------------------------------------------------- episodes

    @property
    def episode(self) -> Episode:
        """The episode being played, with its session."""
        if self._episode is None:
            raise InvalidDecision("no episode has begun; call reset() first")
        return self._episode

    @property
    def graph(self) -> GraphObs:
        """The whole system as a graph, for policies that see more than their own cluster."""
        return self.episode.obs

    def state(self) -> npt.NDArray[np.float32]:
        """All features of all clusters in one vector, for centralised critics."""
        return self._flat(self.graph)

    @staticmethod
    def _flat(obs: GraphObs) -> npt.NDArray[np.float32]:
        return np.concatenate(
            [obs.cluster_features.ravel(), obs.pending_features.ravel(), obs.running_features.ravel()], dtype=np.float32
        )

    def reset(
        self,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> tuple[dict[str, Obs], dict[str, dict[str, Any]]]:
        """Begin the workload of ``seed``; without one, the next workload of the environment's own stream."""
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        workload = draw_workload(self.world, seed if seed is not None else int(self._rng.integers(2**31)))
        self._episode = Episode(self.world, workload, self._observer, self._reward, self._sinks)
        self.agents = self.possible_agents[:]
        count = len(self.agents)
        infos = self._infos(False, (False,) * count, ("",) * count)
        return self._observe(), infos

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Obs], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """One turn; where the round is settled, the slot ends and the reward is paid."""
        episode = self.episode
        if not self.agents:
            raise InvalidDecision("the episode has ended; call reset()")
        if set(actions) != set(self.agents):
            raise InvalidDecision(
                f"actions are for {sorted(actions)}, the agents are {self.agents}; give one action for each"
            )
        given = [actions[agent] for agent in self.agents]
        choices = [action["choice"] for action in given] if self._scores else given
        scores = [float(action["score"][0]) for action in given] if self._scores else [1.0] * len(given)
        outcome = episode.turn([self._coding.read(n, choice) for n, choice in enumerate(choices)], scores)
        done = episode.session.done
        cut = not done and self._max_slots is not None and episode.slot >= self._max_slots
        agents = self.agents
        if done or cut:
            self.agents = []
        return (
            self._observe(),
            {agent: -float(cost) for agent, cost in zip(agents, outcome.cost, strict=True)},
            dict.fromkeys(agents, done),
            dict.fromkeys(agents, cut),
            self._infos(outcome.settled, outcome.granted, outcome.illegal),
        )

    def _observe(self) -> dict[str, Obs]:
        obs = self.graph
        minimum = minimum_of(obs)
        masks = self._coding.masks(obs, minimum)
        pending = obs.pending_features[obs.node]  # (N, K, R+T+1)
        pending[obs.node < 0] = self._dummy
        return {
            agent: {
                "observation": {
                    "cluster": obs.cluster_features[n],
                    "pending": pending[n],
                    "running": obs.running_features[n],
                    "minimum": minimum[n],
                    "largest": obs.largest[n],
                },
                self._mask_key: masks[n],
            }
            for n, agent in enumerate(self.possible_agents)
        }

    def _infos(self, settled: bool, granted: tuple[bool, ...], illegal: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        state = self.episode.session.state
        shared = {"slot": state.slot, "turn": state.turn, "settled": settled, "tasks_in_system": state.tasks_in_system}
        return {
            agent: {**shared, "granted": granted[n], "illegal": illegal[n], **self.episode.places.of(n)}
            for n, agent in enumerate(self.possible_agents)
        }
