"""How good a network is: the deterministic policy on workloads reserved for choosing among checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from tapfinger.evaluation.specs import parse_spec
from tapfinger.sim.run import run_scheduler
from tapfinger.training.network_policy import NetworkPolicy
from tapfinger.training.rollout import play
from tapfinger.training.seeds import SELECTION_SEEDS
from tapfinger.training.shards import patience, workload_of
from tapfinger.training.simulators import make_encoder, make_sim
from tapfinger.workloads.world import World

#: Schedulers that a network is compared with while it learns.
RIVALS = ("greedy", "optimus-central")


class Selection:
    """The same workloads for every checkpoint and rival; loads take turns."""

    def __init__(self, worlds: Sequence[World], runs: int, pending: int, features: str = "types") -> None:
        """``runs``: number of workloads in total."""
        self._worlds = worlds
        self._seeds = range(SELECTION_SEEDS, SELECTION_SEEDS + runs)
        self._encoder = make_encoder(worlds[0], features, pending)
        self._sim = make_sim(worlds[0], self._encoder, [workload_of(worlds, seed) for seed in self._seeds])

    def rivals(self, path: Path) -> dict[str, list[float]]:
        """Mean completion time of each rival on each workload; cached in ``path``."""
        found: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name in RIVALS:
            if name not in found:
                runs = [
                    run_scheduler(self._worlds[seed % len(self._worlds)], parse_spec(name).create(), seed)
                    for seed in self._seeds
                ]
                found[name] = [run.total_completion_time / run.tasks for run in runs]
                path.write_text(json.dumps(found), encoding="utf-8")
        return found

    def play(self, network: nn.Module, accelerator: int) -> list[float]:
        """Mean completion time on each workload; infinite where the policy did not finish."""
        self._sim.restart(np.ones(len(self._sim.done), dtype=np.bool_))
        network.eval()
        policy = NetworkPolicy(network, accelerator)
        episode = play(self._sim, self._encoder, policy, max_slots=patience(self._sim))
        network.train()
        return [float(mean) for mean in np.where(self._sim.done, episode.mean, np.inf)]

    def score(self, found: Sequence[float], rivals: Mapping[str, Sequence[float]]) -> float:
        """Mean over the loads of the mean completion time as a multiple of the best rival's; below one is better.

        Each load uses its best rival: one that fails at some load would make that load count for nothing.
        """
        loads = len(self._worlds)
        best = [min(float(np.mean(means[load::loads])) for means in rivals.values()) for load in range(loads)]
        return float(np.mean([np.mean(found[load::loads]) / best[load] for load in range(loads)]))
