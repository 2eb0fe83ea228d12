"""A picture of a workload: arrivals over time and the mix of task types."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from tapfinger.workloads.files import WorkloadFile

#: Types beyond this many are drawn together.
MOST_TYPES = 9
REST = "all others"


def plot_workload(workload: WorkloadFile, path: Path, title: str) -> None:
    """Draw arrivals per interval, stacked by type, and the number of tasks per type, to a PNG file."""
    from tapfinger.drawing import new_figure, save

    counts = Counter(workload.type)
    names = [name for name, _ in counts.most_common(MOST_TYPES if len(counts) > MOST_TYPES + 1 else None)]
    shown = [*names, *([REST] if len(names) < len(counts) else [])]
    label = np.array([name if name in set(names) else REST for name in workload.type])
    unit, divisor = _time_unit(float(workload.arrival.max()))
    times = [workload.arrival[label == name] / divisor for name in shown]
    bins = int(min(100, max(10, len(workload) // 5)))

    figure, axes = new_figure(4.2, 11.0, ncols=2, width_ratios=(3, 1.3))
    over_time, mix = axes[0]
    colors = [f"C{i % 10}" for i in range(len(shown))]
    edges = np.linspace(0.0, max(float(workload.arrival.max()) / divisor, 1e-9), bins + 1)
    over_time.hist(times, bins=edges, stacked=True, color=colors)
    over_time.set(xlabel=f"arrival ({unit})", ylabel=f"tasks per {_per(edges[1] - edges[0], unit)}")
    over_time.set_xlim(edges[0], edges[-1])
    mix.barh(range(len(shown)), [len(t) for t in times], color=colors)
    mix.set_yticks(range(len(shown)), shown)
    mix.invert_yaxis()
    mix.set(xlabel="tasks")
    figure.suptitle(f"{title}: {len(workload):,} tasks of {len(counts)} types")
    save(figure, path, dpi=120)


def _time_unit(span: float) -> tuple[str, float]:
    """The largest unit of which the span has at least three."""
    for unit, seconds in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if span >= 3 * seconds:
            return unit, seconds
    return "seconds", 1.0


def _per(width: float, unit: str) -> str:
    return f"{width:.2g} {unit}"
