"""Why a task waits, as text. Uses only what the core knows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tapfinger.core.contract import ClusterView, Snapshot, TaskView
from tapfinger.core.feasibility import can_start, ever_fits
from tapfinger.core.model import Cluster, ResourceTypes
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.protocol.words import seconds, some

#: Most tasks or clusters that a sentence names.
NAMED = 5


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """Why a waiting task can or cannot start on one cluster."""

    cluster: str
    verdict: Literal["not eligible", "never fits", "closed", "does not fit now", "fits"]
    text: str
    #: Probability that the scheduler gave this cluster when it last decided; None if unknown.
    probability: float | None = None
    #: Kind of hardware and whole cluster, of a node or where clusters have kinds; else empty.
    kind: str = ""
    part_of: str = ""
    #: Seconds until its data would be there if it were started now.
    data: float = 0.0


def named(tasks: Sequence[int]) -> str:
    """``tasks 1, 2 and 7 more``."""
    shown, more = list(tasks)[:NAMED], max(0, len(tasks) - NAMED)
    listed = ", ".join(map(str, shown)) + (f" and {more} more" if more else "")
    return f"{'task' if len(tasks) == 1 else 'tasks'} {listed}"


def verdicts(
    task: TaskView,
    snapshot: Snapshot,
    resources: ResourceTypes,
    configured: Sequence[Cluster],
    closed: Mapping[str, str],
    odds: Mapping[tuple[int, int], float],
    slot_seconds: float,
) -> list[ClusterVerdict]:
    """The verdict of each cluster. ``closed``: by name, why a cluster takes no tasks.

    ``configured``: the clusters of the configuration, whose agents may have less.
    """
    waits = snapshot.staging_of(task)
    return [
        replace(
            _with_data(
                _verdict(task, cluster, has, resources, closed, odds.get((task.id, cluster.index))),
                waits.get(cluster.index, 0) * slot_seconds,
            ),
            kind=has.hardware,
            part_of=has.part_of,
        )
        for cluster, has in zip(snapshot.clusters, configured, strict=True)
    ]


def _with_data(verdict: ClusterVerdict, wait: float) -> ClusterVerdict:
    """The verdict of a cluster that could have room, with how long its data would take to get there."""
    if not wait or verdict.verdict not in ("fits", "does not fit now"):
        return verdict
    return replace(verdict, text=f"{verdict.text}; its data would be there in {seconds(wait)}", data=wait)


def _verdict(
    task: TaskView,
    cluster: ClusterView,
    configured: Cluster,
    resources: ResourceTypes,
    closed: Mapping[str, str],
    odds: float | None,
) -> ClusterVerdict:
    name, minimum, natural = cluster.name, task.type.minimum, resources.natural
    if cluster.index not in task.eligible:
        return ClusterVerdict(name, "not eligible", "it may not run there")
    needs = f"it needs at least {some(natural(minimum))}"
    if not ever_fits(minimum, configured.capacity):
        what = "node" if configured.part_of else "cluster"
        return ClusterVerdict(
            name, "never fits", f"{needs}, and the whole {what} has {some(natural(configured.capacity))}"
        )
    if not ever_fits(minimum, cluster.capacity):
        both = (
            f"{some(natural(configured.capacity))} are configured, but its agent has {some(natural(cluster.capacity))}"
        )
        return ClusterVerdict(name, "does not fit now", f"{needs}; {both}: correct one of them")
    if not cluster.up:
        return ClusterVerdict(name, "closed", closed.get(name, "it takes no tasks"))
    if not can_start(task, cluster):
        holders = f", held by {named([t.id for t in cluster.running])}" if cluster.running else ""
        free = f"{some(natural(cluster.free))} free of {some(natural(cluster.capacity))}"
        if cluster.others is not None and not cluster.others.none:
            free += f", others use {some(natural(cluster.others))}"
        return ClusterVerdict(name, "does not fit now", f"{needs}; {free}{holders}", odds)
    said = "" if odds is None else f", which it gave a probability of {100 * odds:.1f} % when it last decided"
    return ClusterVerdict(name, "fits", f"there is room; it is for the scheduler to say when{said}", odds)


def rests(record: TaskRecord, now: float) -> str:
    """Why a task rests and until when, in one sentence."""
    at = time.strftime("%H:%M:%S", time.localtime(record.not_before))
    if record.lost_in_a_row == record.setbacks:
        what = "was lost", "were lost"
    else:
        what = ("failed", "failed") if not record.lost_in_a_row else ("", "failed or were lost")
    often = f"its attempts {what[1]} {record.setbacks} times in a row, the last time"
    told = often if record.setbacks > 1 else f"its attempt {what[0]}"
    why = f" because: {record.reason}" if record.reason else f" with code {record.code}"
    return f"Task {record.id} rests until {at} (in {seconds(record.not_before - now)}): {told}{why}."


def summary(task: TaskView, found: Sequence[ClusterVerdict], overtaken: int) -> str:
    """Why a task waits, in one sentence. ``overtaken``: number of later tasks that started before it."""
    by = {verdict: _places(found, verdict) for verdict in ("fits", "does not fit now", "closed")}
    if by["fits"]:
        why = f"it could start on {_listed(by['fits'])}, and the scheduler has not started it yet"
        waits = [v.data for v in found if v.verdict == "fits"]
        if min(waits):
            why += f" (its data would be there in {seconds(min(waits))} at the earliest)"
    elif by["does not fit now"]:
        why = f"there is no room on {_listed(by['does not fit now'])}"
        if by["closed"]:
            why += f", and {_listed(by['closed'])} {_take(by['closed'])}"
    else:
        why = f"{_listed(by['closed'])} {_take(by['closed'])}" if by["closed"] else "no cluster could ever hold it"
    later = f"; {overtaken} later {'task was' if overtaken == 1 else 'tasks were'} started before it"
    return f"Task {task.id} waits: {why}{later if overtaken else ''}."


def _places(found: Sequence[ClusterVerdict], verdict: str) -> list[str]:
    """Names of clusters with this verdict; a cluster whose nodes all have it is named instead of them."""
    mine = [one for one in found if one.verdict == verdict]
    nodes, alike = Counter(one.part_of for one in found), Counter(one.part_of for one in mine)
    whole = {name for name, count in alike.items() if name and count == nodes[name] > 1}
    names = (f"{o.part_of} (all {nodes[o.part_of]} nodes)" if o.part_of in whole else o.cluster for o in mine)
    return list(dict.fromkeys(names))


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _take(names: Sequence[str]) -> str:
    return "takes no tasks now" if len(names) == 1 else "take no tasks now"
