"""Trains one set of weights for any site: every update is played on new random sites.

The network first copies the greedy scheduler that advises it, then learns from simulated deviations where to differ.
Sites are drawn by workloads.sites; selection sites are never trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from tapfinger.parallel.base import Pool
from tapfinger.policy.actor_critic import NetworkConfig, config_for
from tapfinger.policy.encoding.by_profile import ProfileEncoder
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.export import graph_of
from tapfinger.profiles.greedy_options import ADVISERS
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.lookahead import horizon_for
from tapfinger.sim import plan_kernels
from tapfinger.sim.advised import AdvisedSim
from tapfinger.sim.layout import GreedyPlan, empty_worlds
from tapfinger.training.adviser_policy import Follower
from tapfinger.training.config import TrainConfig
from tapfinger.training.deviations import Effort
from tapfinger.training.imitation import imitate_in_turn
from tapfinger.training.network_policy import FastNetwork, NetworkPolicy
from tapfinger.training.rollout import RolloutResult, Turns, picked, play
from tapfinger.training.seeds import DEVIATION_SEEDS, SELECTION_SEEDS, TEACHER_SEEDS
from tapfinger.training.shards import Shard, patience, roll
from tapfinger.training.simulators import make_advised_sim
from tapfinger.training.teacher import Examples
from tapfinger.training.trainer import Report, Trainer
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import World, build_world, draw_workload

#: Greedy plans that may play on after a deviation; each site uses the one that does best there.
BASES = (
    *(GreedyPlan(**options) for options in ADVISERS),
    GreedyPlan(**{**ADVISERS[0], "patience": 1.5}),
    GreedyPlan(**{**ADVISERS[2], "queue_price": 20.0}),
    GreedyPlan(**{**ADVISERS[1], "queue_price": 3.0, "short_first": 4.0}),
)

#: Most slots of a judged future, however long the tasks: later slots are expensive to play and mostly noise.
HORIZON = 150

#: Most clusters judged per state, and most judged per site and update. States of a large site are expensive to play
#: and to judge.
_AGENTS, _JUDGED = 6, 3000

#: Most sizes that greedy plans may look at while a site is judged; one site in fifty would take more, up to an hour.
_WORK = 5e8

#: Tasks of a workload per cluster: enough for long queues at overloaded sites.
_TASKS = 40

#: Number of seeds whose runs see different sites, and the distance between the first sites of two runs.
_RUNS, _APART = 10, 5000

#: How often the advisers are asked about the same sites, and about how many turns of each.
_LAPS, _ASKED = 3, 300

#: Number of workloads of a selection site.
_SELECTION_WORKLOADS = 3


@lru_cache(maxsize=64)
def site_world(seed: int) -> World:
    """The world of a site; larger sites have more tasks, so that they fill up as well."""
    clusters = len(build_world(draw_site(seed)).clusters)
    return build_world(draw_site(seed, tasks=int(np.clip(_TASKS * clusters, 200, 600))))


def window_of(world: World) -> int:
    """Number of tasks that arrive while the network plays; a greedy plan plays up to the first, a random one."""
    return int(np.clip(16 * len(world.clusters), 50, 160))


def states_of(world: World) -> int:
    """Number of states of a site that are judged in an update."""
    return int(np.clip(_JUDGED // min(len(world.clusters), _AGENTS), 500, 1500))


def worlds_of(world: World) -> int:
    """Number of workloads of a site that are played side by side; there is about one state per task."""
    return int(np.clip(1.5 * states_of(world) / window_of(world), 6, 32))


def open_site(world: World, seeds: Sequence[int], pending: int) -> tuple[ProfileEncoder, AdvisedSim]:
    """The encoder and simulator of a site, with workloads of these seeds."""
    encoder = ProfileEncoder(SiteTables(world.context(0)), pending)
    return encoder, make_advised_sim(world, encoder, [draw_workload(world, seed) for seed in seeds])


def greedy_means(sim: AdvisedSim, plan: GreedyPlan) -> Any:
    """(B,) mean completion times of a greedy plan on the simulator's workloads."""
    worlds = empty_worlds(len(sim.done), sim.draws, sim.tables)
    plan_kernels.play_greedy(sim.tables, sim.sizes, plan, sim.draws, worlds)
    return worlds.total / sim.draws.tasks


def best_base(sim: AdvisedSim) -> GreedyPlan:
    """The plan of BASES with the shortest mean completion time here."""
    return min(BASES, key=lambda plan: float(greedy_means(sim, plan).mean()))


class SiteSelection:
    """Sites reserved for choosing among checkpoints; as training.selection.Selection, but every site is a load."""

    def __init__(self, sites: int, config: NetworkConfig) -> None:
        """``sites``: number of sites."""
        self._config = config
        self._worlds = [site_world(SELECTION_SEEDS + i) for i in range(sites)]
        seeds = range(SELECTION_SEEDS, SELECTION_SEEDS + _SELECTION_WORKLOADS)
        self._sites = [open_site(world, seeds, config.pending) for world in self._worlds]

    def rivals(self, path: Path) -> dict[str, list[float]]:
        """Mean completion time of each adviser on each site; cached in ``path``."""
        if path.exists():
            found: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))
            return found
        names = ["greedy", *(f"greedy-{a + 1}" for a in range(1, len(ADVISERS)))]
        found = {
            name: [float(greedy_means(sim, GreedyPlan(**options)).mean()) for _, sim in self._sites]
            for name, options in zip(names, ADVISERS, strict=True)
        }
        path.write_text(json.dumps(found), encoding="utf-8")
        return found

    def play(self, network: nn.Module, accelerator: int) -> list[float]:
        """Mean completion time on each site."""
        fast = FastNetwork(graph_of(network, self._config))
        found = []
        for encoder, sim in self._sites:
            sim.restart(np.ones(len(sim.done), dtype=np.bool_))
            episode = play(sim, encoder, NetworkPolicy(fast, accelerator), max_slots=patience(sim), costs=False)
            # Worlds that were cut off count with their cost so far, which is high.
            found.append(float(episode.mean.mean()))
        return found

    def score(self, found: Sequence[float], rivals: Mapping[str, Sequence[float]]) -> float:
        """Mean over the sites of the mean completion time as a multiple of the best adviser's there."""
        best = np.array(list(rivals.values())).min(axis=0)
        return float(np.mean(np.array(found) / best))


class UniversalTrainer(Trainer):
    """A run on ``config.deviation.workloads`` sites per update instead of workloads of one scenario."""

    def __init__(
        self, config: TrainConfig, folder: Path, report: Report | None = None, pool: Pool | None = None
    ) -> None:
        """As in Trainer; the world is just one of many."""
        super().__init__(site_world(TEACHER_SEEDS), config, folder, report, pool)

    def _sizes(self, accelerator: int) -> NetworkConfig:
        encoder, sim = open_site(site_world(TEACHER_SEEDS), [0], self.config.pending)
        return config_for(encoder.encode_batch(sim, np.zeros(1, dtype=np.int64)), accelerator, self.config.preset)

    def _selection(self) -> Any:
        return SiteSelection(self.config.selection_runs, self.sizes)

    def _imitate(self, network: nn.Module) -> None:
        """Copy the advisers: first on states they reach, then on states the network reaches, or it would fail there."""
        examples: list[Examples] = []
        for lap in range(_LAPS):
            player = FastNetwork(graph_of(network, self.sizes)) if lap else None
            for i in range(self.config.teacher_runs):
                examples.append(self._followed(TEACHER_SEEDS + i, player))
                share = (lap + (i + 1) / self.config.teacher_runs) / _LAPS
                self._report("asking the advisers", share, {})
            self._copy(network, examples)

    def _copy(self, network: nn.Module, examples: Sequence[Examples]) -> None:
        def report(step: int, steps: int, loss: float) -> None:
            self._report("imitation", (step + 1) / steps, {"loss": loss})

        epochs, seed = self.config.imitation_epochs, self.config.seed
        imitate_in_turn(network, examples, self._accelerator, epochs, seed, report=report)

    def _followed(self, seed: int, player: nn.Module | None) -> Examples:
        """The better adviser's actions in some turns of a site; ``player``, if given, decides which states come up."""
        encoder, sim = open_site(site_world(seed), range(seed, seed + 3), self.config.pending)
        adviser = Follower(int(np.argmin([greedy_means(sim, GreedyPlan(**options)).mean() for options in ADVISERS])))
        policy = adviser if player is None else NetworkPolicy(player, self._accelerator, seed)
        turns = play(sim, encoder, policy, keep=True, max_slots=patience(sim), costs=False).turns
        if turns is None:
            raise ValueError("a workload without a single choice")
        some = np.random.default_rng(seed).permutation(len(turns.choice))[:_ASKED]
        inputs = Inputs(*(array[some] for array in turns.inputs))
        said = adviser(inputs)
        return Examples(inputs, said.choice, said.amounts, inputs.startable.any(axis=2))

    def _deviating(self, network: nn.Module, iteration: int, rng: np.random.Generator) -> list[Any]:
        config = self.config.deviation
        first = DEVIATION_SEEDS + self.config.seed % _RUNS * _APART + iteration * config.workloads
        weights = graph_of(network, self.sizes)
        return [
            SitePart(
                seed=first + i,
                config=self.config,
                sizes=self.sizes,
                weights=weights,
                draw=int(rng.integers(1 << 31)),
                explore=bool((iteration + i) % 2),
            )
            for i in range(config.workloads)
        ]

    def _roll(self, parts: Sequence[Any]) -> list[RolloutResult]:
        # Most expensive sites first, so that no worker is left with one at the end while the others idle.
        order = sorted(range(len(parts)), key=lambda i: -len(site_world(parts[i].seed).clusters))
        played = self._pool.gather(roll_site, [parts[i] for i in order])
        return [episode for _, episode in sorted(zip(order, played, strict=True), key=lambda pair: pair[0])]

    def _gather(self, episodes: Sequence[RolloutResult]) -> list[RolloutResult]:
        """Every shard is a separate site; a site without a single choice teaches nothing."""
        return [episode for episode in episodes if episode.turns is not None and len(episode.turns.choice)]


class SitePart(NamedTuple):
    """One site of an update."""

    seed: int
    config: TrainConfig
    sizes: NetworkConfig
    weights: bytes
    draw: int
    explore: bool


def site_shard(part: SitePart) -> Shard:
    """The shard of a site, judged by the greedy plan that does best there."""
    config, world = part.config, site_world(part.seed)
    count = worlds_of(world)
    seeds = range(part.seed, part.seed + count)
    sim = open_site(world, seeds, config.pending)[1]
    horizon = config.deviation.horizon or min(horizon_for(sim.sizes.least_slots), HORIZON)
    clusters = len(world.clusters)
    looked_at = len(sim.sizes.slots) / len(world.task_types) * clusters
    work = states_of(world) * min(clusters, _AGENTS) * config.deviation.actions * horizon * looked_at
    states = min(1.0, states_of(world) / (count * window_of(world))) * min(1.0, _WORK / work)
    return Shard(
        worlds=(world,),
        workloads=tuple(seeds),
        repeats=1,
        network=config.network,
        sizes=part.sizes,
        weights=part.weights,
        seed=part.draw,
        reward="system",
        deviations=config.deviation.actions,
        bases=(best_base(sim),),
        horizon=horizon,
        effort=Effort(states, _AGENTS),
        features=PROFILES.name,
        explore=part.explore,
        window=window_of(world),
    )


def roll_site(part: SitePart) -> RolloutResult:
    """Play the site's workloads with deviations, keeping no more states than needed."""
    episode = roll(site_shard(part))
    turns, most = episode.turns, states_of(site_world(part.seed))
    if turns is None or len(turns.choice) <= most:
        return episode
    # A policy that leaves tasks waiting has many more states.
    kept = np.sort(np.random.default_rng(part.draw).permutation(len(turns.choice))[:most])
    nested = {"inputs": picked(turns.inputs, kept), "others": picked(turns.others, kept)}
    plain = {name: getattr(turns, name)[kept] for name in Turns._fields if name not in nested}
    return episode._replace(turns=Turns(**nested, **plain))
