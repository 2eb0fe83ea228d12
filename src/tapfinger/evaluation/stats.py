"""Numbers from records: per run, over seeds with confidence intervals, and paired against a baseline.

Intervals are Student's t at 95 % over seeds. Every scheduler gets the same draws, so differences are
taken seed by seed first; their interval is far narrower than that of two separate means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapfinger.errors import TapfingerError
from tapfinger.records import RunRecord

CONFIDENCE = 0.95

#: Shown instead of intervals if all seeds give the same workload.
SAME_DRAWS = (
    "All seeds play the same workload, so there are no intervals over seeds: give --set arrivals.window=N for another "
    "part of the trace with each seed (docs/workloads.md)."
)


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t: |T| is below it with this probability (Abramowitz & Stegun 26.7.3-4)."""

    def inside(angle: float) -> float:
        """Probability of |T| < sqrt(freedom) * tan(angle)."""
        sine, cosine = math.sin(angle), math.cos(angle)
        odd = freedom % 2
        term, total = (cosine if odd else 1.0), 0.0
        for k in range(1 + odd, freedom, 2):
            total += term
            term *= cosine * cosine * k / (k + 1)
        return 2.0 / math.pi * (angle + sine * total) if odd else sine * total

    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its confidence interval."""

    mean: float
    #: Half the width of the interval; None with a single seed or equal draws, where it is unknown.
    half_width: float | None

    @property
    def interval(self) -> list[float] | None:
        """Lower and upper end."""
        return None if self.half_width is None else [self.mean - self.half_width, self.mean + self.half_width]

    def text(self, digits: int = 2, sign: bool = False) -> str:
        """``3.72 ± 0.05``."""
        plus = "+" if sign else ""
        half = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:{plus}.{digits}f}{half}"


def estimate(values: Sequence[float], independent: bool = True) -> Estimate:
    """Mean and 95 % interval of values, one per seed; no interval if they are not independent."""
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2 or not independent:
        return Estimate(float(sample.mean()), None)
    spread = float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return Estimate(float(sample.mean()), t_quantile(len(sample) - 1) * spread)


#: Measure -> its value for one run; docs/evaluation.md defines each. Times are in slots.
MEASURES: dict[str, Callable[[RunRecord], float]] = {
    "mean": lambda run: run.completion.mean(),
    "median": lambda run: np.percentile(run.completion, 50),
    "p95": lambda run: np.percentile(run.completion, 95),
    "p99": lambda run: np.percentile(run.completion, 99),
    "max": lambda run: run.completion.max(),
    "variance": lambda run: run.completion.var(),
    "waiting": lambda run: run.waiting_time.mean(),
    "waiting_p95": lambda run: np.percentile(run.waiting_time, 95),
    "waiting_max": lambda run: run.waiting_time.max(),
    "running": lambda run: run.running.mean(),
    "slots": lambda run: run.slots,
    "tasks": lambda run: run.tasks,
    "failed": lambda run: run.failed,
    "in_system_max": lambda run: run.in_system_max,
    "conflicts": lambda run: run.conflicts,
    "overtaken_share": lambda run: (run.overtaken > 0).mean(),
    "overtaken_mean": lambda run: run.overtaken.mean(),
    "overtaken_max": lambda run: run.overtaken.max(),
    "waiting_slots_share": lambda run: run.waiting_slots / run.slots,
    "decision_ms_mean": lambda run: 1e3 * run.decision[0],
    "decision_ms_p95": lambda run: 1e3 * run.decision[1],
    "decision_ms_max": lambda run: 1e3 * run.decision[2],
}

#: Measures that exist only where tasks need data, or memory that nobody knows.
DATA_MEASURES = ("staging", "staged_share", "out_of_memory")

#: Measures that exist once per resource, under names such as ``utilisation.gpu``.
RESOURCE_MEASURES = ("utilisation", "idle", "stranded", "held_back")


def measures(record: RunRecord) -> dict[str, float]:
    """Every measure of one run, by name."""
    if not len(record.completion):
        raise TapfingerError(
            f"scheduler {record.scheduler!r}, seed {record.seed}: no task ended, so there is nothing to measure"
        )
    found = {name: float(measure(record)) for name, measure in MEASURES.items()}
    if record.staged_share is not None:
        found |= {"staging": float(record.staging.mean()), "staged_share": record.staged_share}
    if record.out_of_memory is not None:
        found["out_of_memory"] = float(record.out_of_memory)
    for name in RESOURCE_MEASURES:
        values = zip(record.resources, getattr(record, name), strict=True)
        found |= {f"{name}.{resource}": float(value) for resource, value in values}
    for kind, shares in record.hardware_utilisation.items():
        values = zip(record.resources, shares, strict=True)
        found |= {f"{on_kind(kind)}.{resource}": float(value) for resource, value in values}
    return found


def on_kind(kind: str) -> str:
    """Name of the measure per resource: utilisation of clusters with this kind of hardware."""
    return f"utilisation_on_{kind or 'no kind'}"


def use_by_kind(record: RunRecord) -> list[tuple[str, str]]:
    """Label and measure of what is in use of each kind of hardware, resource by resource."""
    pairs = [(kind, resource) for resource in record.resources for kind in record.hardware_utilisation]
    return [(f"{resource} in use on {kind or 'no kind'}", f"{on_kind(kind)}.{resource}") for kind, resource in pairs]


@dataclass(frozen=True)
class Difference:
    """One scheduler minus the baseline, seed by seed."""

    mean: Estimate
    #: Mean difference in per cent of the baseline's mean; nan if that mean is 0.
    percent: float
    #: Number of seeds on which the scheduler was better (smaller).
    better: int


def paired(values: Sequence[float], baseline: Sequence[float], independent: bool = True) -> Difference:
    """Paired difference of two schedulers on the same seeds."""
    gaps = [mine - theirs for mine, theirs in zip(values, baseline, strict=True)]
    found = estimate(gaps, independent)
    whole = float(np.mean(baseline))
    percent = 100.0 * found.mean / whole if whole else math.nan
    return Difference(found, percent, sum(gap < 0 for gap in gaps))


#: Measures that are summarised over seeds by the largest value, not the mean.
_LARGEST = frozenset({"max", "waiting_max", "overtaken_max", "in_system_max", "decision_ms_max"})


@dataclass(frozen=True)
class SchedulerSummary:
    """One scheduler over all seeds."""

    scheduler: str
    #: measure -> one value per seed.
    per_seed: dict[str, list[float]]
    #: cluster -> resource -> mean share in use.
    cluster_utilisation: dict[str, dict[str, float]]
    #: cluster -> resource -> mean share stranded there; empty where no cluster has nodes.
    node_stranded: dict[str, dict[str, float]]
    #: Kinds of hardware of the clusters; empty where all are alike.
    kinds: tuple[str, ...]
    #: Difference from the baseline.
    difference: Difference
    #: Whether seeds are different draws; if not, there are no intervals.
    independent: bool = True

    def __getitem__(self, measure: str) -> float:
        """A measure over all seeds: its mean, or the largest value for maxima."""
        values = self.per_seed[measure]
        return max(values) if measure in _LARGEST else float(np.mean(values))

    def estimate(self, measure: str) -> Estimate:
        """Mean over seeds with its interval."""
        return estimate(self.per_seed[measure], self.independent)

    def by_resource(self, measure: str) -> dict[str, float]:
        """resource -> value, for measures that exist per resource."""
        first = f"{measure}."
        return {name.removeprefix(first): self[name] for name in self.per_seed if name.startswith(first)}

    @property
    def kind_utilisation(self) -> dict[str, dict[str, float]]:
        """kind of hardware -> resource -> mean share in use; empty where all clusters are alike."""
        return {kind: self.by_resource(on_kind(kind)) for kind in self.kinds}

    def plain(self, baseline: str) -> dict[str, Any]:
        """Plain data for results.json."""
        mean = self.estimate("mean")
        return {
            **{name: self[name] for name in ("mean", "median", "p95", "p99", "max")},
            "ci95": mean.interval,
            "sd": float(np.std(self.per_seed["mean"], ddof=1)) if mean.half_width is not None else None,
            "per_seed": self.per_seed["mean"],
            "difference": {
                "baseline": baseline,
                "mean": self.difference.mean.mean,
                "ci95": self.difference.mean.interval,
                "percent": self.difference.percent,
                "better_seeds": self.difference.better,
            },
            "waiting": {"mean": self["waiting"], "p95": self["waiting_p95"], "max": self["waiting_max"]},
            "running": {"mean": self["running"]},
            "slots": self["slots"],
            "tasks": self["tasks"],
            "failed": self["failed"],
            "tasks_in_system_max": self["in_system_max"],
            "utilisation": self.by_resource("utilisation"),
            "utilisation_per_cluster": self.cluster_utilisation,
            **({"utilisation_per_kind": self.kind_utilisation} if self.kinds else {}),
            "conflicts": self["conflicts"],
            **{name: self[name] for name in DATA_MEASURES if name in self.per_seed},
            "overtaking": {name: self[f"overtaken_{name}"] for name in ("share", "mean", "max")},
            "fragmentation": {
                "waiting_slots_share": self["waiting_slots_share"],
                **{name: self.by_resource(name) for name in ("idle", "stranded", "held_back")},
                **({"stranded_per_node": self.node_stranded} if self.node_stranded else {}),
            },
            "decision_ms": {name: self[f"decision_ms_{name}"] for name in ("mean", "p95", "max")},
        }


def summarise(
    records: Mapping[str, Sequence[RunRecord]], baseline: str, independent: bool = True
) -> dict[str, SchedulerSummary]:
    """scheduler -> records by seed -> summaries, best mean first; intervals only if seeds are ``independent`` draws."""
    per_seed: dict[str, dict[str, list[float]]] = {}
    for scheduler, runs in records.items():
        rows = [measures(run) for run in runs]
        per_seed[scheduler] = {name: [row[name] for row in rows] for name in rows[0]}
    summaries = [
        SchedulerSummary(
            scheduler,
            per_seed[scheduler],
            _per_cluster(runs, "cluster_utilisation"),
            _per_cluster(runs, "stranded_by_cluster") if runs[0].wholes else {},
            tuple(runs[0].hardware_utilisation),
            paired(per_seed[scheduler]["mean"], per_seed[baseline]["mean"], independent),
            independent,
        )
        for scheduler, runs in records.items()
    ]
    return {summary.scheduler: summary for summary in sorted(summaries, key=lambda s: s["mean"])}


def _per_cluster(runs: Sequence[RunRecord], measure: str) -> dict[str, dict[str, float]]:
    """cluster -> resource -> mean over seeds of an array (clusters, resources); spans have nothing, and no entry."""
    mean = np.mean([getattr(run, measure) for run in runs], axis=0)
    return {
        cluster: {resource: float(mean[n, r]) for r, resource in enumerate(runs[0].resources)}
        for n, cluster in enumerate(runs[0].clusters)
        if runs[0].capacity[n].any() or not runs[0].wholes
    }
