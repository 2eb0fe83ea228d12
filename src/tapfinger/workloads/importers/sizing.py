"""How large clusters are whose size a trace does not say: so that they bear the wanted load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tapfinger.workloads.importers.binning import Bin
from tapfinger.workloads.importers.options import ConvertOptions


@dataclass(frozen=True)
class TraceLoad:
    """The tasks of an import, as far as capacities depend on them."""

    bins: Sequence[Bin]
    #: (tasks,) the bin of every task.
    of_bin: npt.NDArray[np.int64]
    #: (tasks,) seconds.
    arrival: npt.NDArray[np.float64]


def capacities(
    resources: Mapping[str, float],
    load: TraceLoad,
    members: Mapping[str, npt.NDArray[np.intp]],
    spread: npt.NDArray[np.int64],
    options: ConvertOptions,
) -> dict[str, dict[str, float]]:
    """Cluster name -> capacity: as given, or large enough for the wanted load and for each request.

    ``members``: tasks that may run on each cluster; ``spread``: (tasks,) on how many clusters each may run.
    """
    if options.capacity is not None:
        return {name: dict(options.capacity) for name in members}
    seconds = np.array([one.seconds for one in load.bins])[load.of_bin]
    requests = {name: np.array([one.request[name] for one in load.bins])[load.of_bin] for name in resources}
    found: dict[str, dict[str, float]] = {name: {} for name in members}
    for name, tasks in members.items():
        for resource, unit in resources.items():
            amounts = requests[resource][tasks]
            wanted = _mean_demand(load.arrival[tasks], seconds[tasks], amounts / spread[tasks]) / options.load
            whole = max(unit, 1.0)  # tasks may share a GPU, but a cluster does not have a part of one
            found[name][resource] = math.ceil(max(wanted, float(amounts.max())) / whole - 1e-9) * whole
    return found


def _mean_demand(
    arrival: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64], amounts: npt.NDArray[np.float64]
) -> float:
    """Mean over tasks of the amount in use when a task arrives, itself included, if every task starts at once.

    The mean over time would be far too low for traces with months of hardly any tasks before the rush.
    """
    ends = np.argsort(arrival + seconds, kind="stable")
    gone = np.concatenate([[0.0], np.cumsum(amounts[ends])])
    ended = np.searchsorted((arrival + seconds)[ends], arrival, side="right")
    return float(np.mean(np.cumsum(amounts) - gone[ended]))
