"""Everything that schedulers derive from a site's clusters, task types and speed profiles, in one object.

A scheduler makes its ``SiteTables`` once per ``reset`` or ``learn`` and hands it to every rule, greedy and encoder
that it uses. It does not change, apart from tables that are filled in on first use.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from tapfinger.core.contract import SchedulerContext
from tapfinger.core.model import Resources, TaskType
from tapfinger.profiles.durations import mean_slots
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.profiles.size_menus import Menus


class SiteTables:
    """Tables of one site with the profiles that are known now."""

    def __init__(self, context: SchedulerContext) -> None:
        """``context``: what the scheduler was told in ``reset`` or ``learn``."""
        self.context = context
        #: Efficient sizes of every type with their durations and costs.
        self.sizes = EfficientSizes(context)

    def slots(self, task_type: TaskType, allocation: Resources, cluster: int) -> float:
        """Mean duration in slots of a task of this type at this size on this cluster; any size of the profile."""
        hardware = self.context.clusters[cluster].hardware
        return float(self._slots[task_type.name, hardware][task_type.profile.index(allocation)])

    @cached_property
    def _slots(self) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
        kinds = dict.fromkeys(cluster.hardware for cluster in self.context.clusters)
        return {
            (t.name, kind): mean_slots(t.on(kind).profile, self.context.noise)
            for t in self.context.task_types
            for kind in kinds
        }

    @cached_property
    def menus(self) -> Menus:
        """Menus of sizes for networks that know tasks by their speed profiles."""
        return Menus(self.context, self.sizes)
