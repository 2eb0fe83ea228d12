"""Training keeps to its own seeds of drawn sites."""

from __future__ import annotations

from tapfinger.training import seeds, universal
from tapfinger.workloads.site_seeds import CHOOSING, TRAINING


def test_training_draws_its_sites_from_its_own_seeds() -> None:
    last = seeds.DEVIATION_SEEDS + universal._RUNS * universal._APART - 1
    TRAINING.check([seeds.TEACHER_SEEDS, seeds.DEVIATION_SEEDS - 1, seeds.DEVIATION_SEEDS, last])


def test_checkpoints_are_chosen_on_sites_for_choosing() -> None:
    CHOOSING.check([seeds.SELECTION_SEEDS, seeds.ROLLOUT_SEEDS - 1])
