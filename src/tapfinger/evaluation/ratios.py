"""How many times as long one scheduler takes as another, over many sites: geometric means with bootstrap intervals.

Sites differ a hundredfold in their completion times, so that each counts by its ratio and not by its slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tapfinger.errors import TapfingerError

#: Samples of sites that an interval is taken from.
SAMPLES = 10_000
#: Seed of these samples, so that the same results give the same interval.
_SEED = 0xB007


@dataclass(frozen=True)
class Ratio:
    """One scheduler's times as multiples of another's; below 1 is better."""

    #: Geometric mean over sites.
    mean: float
    #: 95 % interval over sites; the ends are equal where there is one site.
    low: float
    high: float
    #: Share of sites with a ratio below 1, and of sites with a ratio of at most 1.
    better: float
    no_worse: float
    #: Largest ratio, and the position of its site.
    worst: float
    worst_at: int

    def text(self) -> str:
        """``0.952 (0.931 to 0.974)``."""
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio(values: Sequence[float], others: Sequence[float]) -> Ratio:
    """``values`` over ``others``, site by site."""
    if not len(values):
        raise TapfingerError("no site is left to compare on: on every one of them a run failed")
    logs = np.log(np.asarray(values, dtype=np.float64)) - np.log(np.asarray(others, dtype=np.float64))  # (sites,)
    rng = np.random.default_rng(_SEED)
    means = logs[rng.integers(len(logs), size=(SAMPLES, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, [0.025, 0.975]))
    at = int(logs.argmax())
    return Ratio(
        float(np.exp(logs.mean())),
        float(low),
        float(high),
        float((logs < 0.0).mean()),
        float((logs <= 0.0).mean()),
        float(np.exp(logs[at])),
        at,
    )


def best_single(times: Mapping[str, Sequence[float]]) -> str:
    """The one scheduler with the least geometric mean over all sites."""
    return min(times, key=lambda name: float(np.log(np.asarray(times[name], dtype=np.float64)).mean()))
