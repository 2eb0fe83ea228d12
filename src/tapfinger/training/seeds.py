"""Where the seeds of each part of training begin: no two parts ever meet."""

from __future__ import annotations

#: Seeds of teaching, selection, deviations and rollouts; tests and benchmarks use those below 100,000.
TEACHER_SEEDS = 100_000
DEVIATION_SEEDS = 200_000
SELECTION_SEEDS = 300_000
ROLLOUT_SEEDS = 400_000
#: Seeds of the evaluation on a model's card: neither training nor selection sees them.
FINAL_SEEDS = 900_000_000
