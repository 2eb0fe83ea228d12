"""Learning from deviations alone, from a network that knows nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tapfinger.config import load_scenario
from tapfinger.training.config import TrainConfig
from tapfinger.training.deviations import DeviationConfig
from tapfinger.training.trainer import Trainer
from tapfinger.workloads.world import build_world


def test_refinement_alone_teaches_a_fresh_network(tmp_path: Path) -> None:
    world = build_world(load_scenario("multi-3", ["tasks=24"]))
    config = TrainConfig(
        teacher="none",
        refinements=0,
        iterations=0,
        selection_runs=8,
        evaluate_every=5,
        deviation=DeviationConfig(workloads=8, learning_rate=3e-3),
    )
    _, _, before = Trainer(world, config, tmp_path / "fresh").run()
    _, _, after = Trainer(world, replace(config, refinements=10), tmp_path / "refined").run()
    assert np.mean(after) < 0.6 * np.mean(before)
