"""The grounds of a grant: what was known when a task got its cluster and size, stored to explain it later."""

from __future__ import annotations

from collections.abc import Sequence

from tapfinger.core.contract import ClusterView, Phase, TaskView
from tapfinger.core.events import StartTask
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources, TaskType
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol.events import Grounds


def durations(site: Site, task_type: TaskType, size: Resources) -> tuple[float, float, float]:
    """Expected seconds by current belief: at this size, at the minimum and at the maximum."""
    here, least, most = (site.seconds(task_type, x) for x in (size, task_type.minimum, task_type.maximum))
    return here, least, most


def grounds(start: StartTask, before: Sequence[ClusterView], waiting: int, by: str, site: Site, slot: int) -> Grounds:
    """The grounds of one start. ``before``, ``waiting``: clusters and number of waiting tasks before the round.

    ``slot``: the one of the start.
    """
    task, natural = start.task, site.resources.natural
    view = TaskView(task.id, task.type, task.arrival, task.eligible, Phase.QUEUED)
    return Grounds(
        *durations(site, task.type.on(before[start.cluster].hardware), start.allocation),
        minimum=natural(task.type.minimum),
        maximum=natural(task.type.maximum),
        others=waiting - 1,
        free=natural(before[start.cluster].free),
        fitting=sum(can_start(view, cluster) for cluster in before),
        by=by,
        data=max(0, start.runs_from - slot) * site.slot_seconds,
    )
