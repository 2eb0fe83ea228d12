"""Measured grids for tests: the built-in test-bed formulas with noise of a known size."""

import numpy as np

from tapfinger.profiles.testbed import testbed_seconds

CELLS = [(float(cpu), float(gpu)) for cpu in range(1, 17) for gpu in range(1, 9)]


def measured(task_type: str, seed: int = 0, noise: float = 0.01, repeats: int = 2) -> dict:
    """Cell -> seconds of each repeat, for 1..16 cpus and 1..8 gpus."""
    seconds, rng = testbed_seconds(task_type), np.random.default_rng(seed)
    return {
        cell: (seconds({"cpu": cell[0], "gpu": cell[1]}) * np.exp(rng.normal(0.0, noise, repeats))).tolist()
        for cell in CELLS
    }


def third(seed: int) -> list:
    """Some 43 of the 128 cells, at random."""
    chosen = np.random.default_rng(seed).permutation(len(CELLS))[: len(CELLS) // 3 + 1]
    return [CELLS[i] for i in chosen]
