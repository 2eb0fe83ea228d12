"""First seed of each part of training: no two parts share a seed."""

from __future__ import annotations

#: First seeds of teaching, deviations, selection and rollouts; tests and benchmarks use seeds below 100,000.
TEACHER_SEEDS = 100_000
DEVIATION_SEEDS = 200_000
SELECTION_SEEDS = 300_000
ROLLOUT_SEEDS = 400_000
#: First seed of the evaluation on a model's card, unseen by training and selection.
FINAL_SEEDS = 900_000_000
