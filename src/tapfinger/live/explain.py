"""Why a task waits, and why it got its place and size, in words. Only what the core knows is said here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tapfinger.core.contract import ClusterView, Phase, Snapshot, TaskView
from tapfinger.core.events import StartTask
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Resources, ResourceTypes, TaskType
from tapfinger.live.habits import seconds_at

#: So many tasks are named at most where a sentence names some.
NAMED = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one cluster has to say about a waiting task."""

    cluster: str
    verdict: Literal["not eligible", "never fits", "closed", "does not fit now", "fits"]
    text: str
    #: The scheduler's, when it last decided; None if it cannot say.
    probability: float | None = None


def amounts(resources: ResourceTypes, size: Resources) -> str:
    """``2 cpu, 1 gpu``: what there is none of is left out."""
    named = [f"{value:g} {name}" for name, value in resources.natural(size).items() if value]
    return ", ".join(named) or "nothing"


def named(tasks: Sequence[int]) -> str:
    """``tasks 1, 2 and 7 more``."""
    shown, more = list(tasks)[:NAMED], max(0, len(tasks) - NAMED)
    listed = ", ".join(map(str, shown)) + (f" and {more} more" if more else "")
    return f"{'task' if len(tasks) == 1 else 'tasks'} {listed}"


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 120.0:
        return f"{value:.0f} s" if value >= 10.0 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200.0 else f"{value / 3600:.1f} h"


def verdicts(
    task: TaskView,
    snapshot: Snapshot,
    resources: ResourceTypes,
    closed: Mapping[str, str],
    odds: Mapping[tuple[int, int], float],
) -> list[Verdict]:
    """What each cluster says; ``closed``: why clusters that take no tasks take none."""
    return [
        _verdict(task, cluster, resources, closed, odds.get((task.id, cluster.index))) for cluster in snapshot.clusters
    ]


def _verdict(
    task: TaskView, cluster: ClusterView, resources: ResourceTypes, closed: Mapping[str, str], odds: float | None
) -> Verdict:
    name, minimum = cluster.name, task.type.minimum
    if cluster.index not in task.eligible:
        return Verdict(name, "not eligible", "it may not run there")
    needs = f"it needs at least {amounts(resources, minimum)}"
    if not minimum.fits(cluster.capacity):
        return Verdict(name, "never fits", f"{needs}, and the whole cluster has {amounts(resources, cluster.capacity)}")
    if not cluster.up:
        return Verdict(name, "closed", closed.get(name, "it takes no tasks"))
    if not can_start(task, cluster):
        holders = f", held by {named([t.id for t in cluster.running])}" if cluster.running else ""
        free = f"{amounts(resources, cluster.free)} free of {amounts(resources, cluster.capacity)}"
        return Verdict(name, "does not fit now", f"{needs}; {free}{holders}", odds)
    said = "" if odds is None else f", which it gave a probability of {100 * odds:.1f} % when it last decided"
    return Verdict(name, "fits", f"there is room; it is for the scheduler to say when{said}", odds)


def summary(task: TaskView, found: Sequence[Verdict], overtaken: int) -> str:
    """Why it waits, in one sentence."""
    by = {kind: [v.cluster for v in found if v.verdict == kind] for kind in ("fits", "does not fit now", "closed")}
    if by["fits"]:
        why = f"it could start on {_listed(by['fits'])}, and the scheduler has not started it yet"
    elif by["does not fit now"]:
        why = f"there is no room on {_listed(by['does not fit now'])}"
        if by["closed"]:
            why += f", and {_listed(by['closed'])} {_take(by['closed'])}"
    else:
        why = f"{_listed(by['closed'])} {_take(by['closed'])}" if by["closed"] else "no cluster could ever hold it"
    later = f"; {overtaken} later {'task was' if overtaken == 1 else 'tasks were'} started before it"
    return f"Task {task.id} waits: {why}{later if overtaken else ''}."


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _take(names: Sequence[str]) -> str:
    return "takes no tasks now" if len(names) == 1 else "take no tasks now"


def durations(task_type: TaskType, size: Resources, slot_seconds: float) -> tuple[float, float, float]:
    """Seconds by the profile: at this size, at the minimum and at the maximum."""
    sizes = (size, task_type.minimum, task_type.maximum)
    here, least, most = (seconds_at(task_type, x, slot_seconds) for x in sizes)
    return here, least, most


def grounds(
    start: StartTask,
    before: Sequence[ClusterView],
    waiting: int,
    by: str,
    resources: ResourceTypes,
    slot_seconds: float,
    believed: Callable[[TaskType], TaskType],
) -> str:
    """Why a task got its place and size, as far as was known when it did: written down with the grant.

    ``before``, ``waiting``: clusters, and how many tasks waited, before anything was started.
    """
    task_type, cluster = believed(start.task.type), before[start.cluster]
    here, least, most = durations(task_type, start.allocation, slot_seconds)
    text = f"{resources.describe(start.allocation)}: {seconds(here)} expected"
    if task_type.minimum != task_type.maximum:
        low, high = amounts(resources, task_type.minimum), amounts(resources, task_type.maximum)
        text += f" ({seconds(least)} with {low}, {seconds(most)} with {high})"
    others = waiting - 1
    rivals = f"{others} {'other' if others == 1 else 'others'} waited" if others else "nothing else waited"
    task = start.task
    view = TaskView(task.id, task.type, task.arrival, task.eligible, Phase.QUEUED)
    fitting = sum(can_start(view, c) for c in before)
    choice = f", {fitting} clusters had room" if fitting != 1 else ", no other cluster had room"
    return f"{text}; {rivals}, {amounts(resources, cluster.free)} free there{choice}; decided by {by}"
