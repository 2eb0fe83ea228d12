"""Recorded tasks -> a bounded number of task types: by what they request, then by how long they run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tapfinger.workloads.importers.base import RecordedTask

#: Durations of one type may differ by this factor before it is worth splitting.
SPREAD = 1.5

#: A request: group, then amounts in the order of the trace's resources.
Request = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class Bin:
    """Tasks that become one task type."""

    group: str
    #: Natural quantities by resource name: the type's minimum.
    request: Mapping[str, float]
    #: Positions in the list of tasks.
    members: tuple[int, ...]
    #: Mean duration, so that the total work stays as recorded.
    seconds: float


def bin_tasks(tasks: Sequence[RecordedTask], resources: Mapping[str, float], limit: int) -> list[Bin]:
    """At most ``limit`` bins, largest first by members; ``resources`` are names and smallest units."""
    classes: dict[Request, list[int]] = defaultdict(list)
    for i, task in enumerate(tasks):
        classes[task.group, tuple(task.request[name] for name in resources)].append(i)
    # A third of the types is left for telling short from long tasks of one request.
    classes = _merge_rare(classes, tuple(resources.values()), max(1, 2 * limit // 3))
    log_seconds = np.log([task.seconds for task in tasks])
    parts = [(key, np.array(members)) for key, members in classes.items()]
    while len(parts) < limit:
        spread = [_misfit(log_seconds[members]) for _, members in parts]
        widest = int(np.argmax(spread))
        if spread[widest] <= 0.0:
            break
        key, members = parts.pop(widest)
        parts[widest:widest] = [(key, half) for half in _split(members, log_seconds)]
    bins = [
        Bin(
            group,
            dict(zip(resources, amounts, strict=True)),
            tuple(members.tolist()),
            float(np.mean(np.exp(log_seconds[members]))),
        )
        for (group, amounts), members in parts
    ]
    return sorted(bins, key=lambda b: -len(b.members))


def _merge_rare(classes: dict[Request, list[int]], units: Sequence[float], limit: int) -> dict[Request, list[int]]:
    """Keep the most frequent requests, each group's own first; the others are merged into the nearest kept one."""
    by_count = sorted(classes, key=lambda key: -len(classes[key]))
    group_size: dict[str, int] = defaultdict(int)
    for group, amounts in by_count:
        group_size[group] += len(classes[group, amounts])
    firsts = {group: next(key for key in by_count if key[0] == group) for group in group_size}
    preferred = [firsts[group] for group in sorted(group_size, key=lambda g: -group_size[g])]
    kept = list(dict.fromkeys(preferred + by_count))[:limit]
    merged = {key: list(classes[key]) for key in kept}
    for key in by_count:
        if key not in merged:
            merged[min(kept, key=lambda other: _distance(key, other, units))] += classes[key]
    return merged


def _distance(one: Request, other: Request, units: Sequence[float]) -> float:
    """How unlike two requests are: another group is worse than any other amount."""
    ratios = (math.log((a + u) / (b + u)) for a, b, u in zip(one[1], other[1], units, strict=True))
    return sum(ratio**2 for ratio in ratios) + (1e6 if one[0] != other[0] else 0.0)


def _misfit(values: npt.NDArray[np.float64]) -> float:
    """Sum of squared deviations, or 0 where the spread is too small to matter."""
    if np.ptp(values) <= math.log(SPREAD):
        return 0.0
    return float(np.square(values - values.mean()).sum())


def _split(
    members: npt.NDArray[np.int64], log_seconds: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut into shorter and longer where the squared deviations within both halves are least."""
    order = members[np.argsort(log_seconds[members], kind="stable")]
    values = log_seconds[order]
    count = np.arange(1, len(values))
    below, total = np.cumsum(values)[:-1], values.sum()
    between = below**2 / count + (total - below) ** 2 / (len(values) - count)
    cut = int(np.argmax(between)) + 1
    return order[:cut], order[cut:]
