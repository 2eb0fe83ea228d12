"""The tasks that a live site has run, as a workload file and a scenario that plays it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.model import Resources, TaskType
from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.live.config import build_site
from tapfinger.live.coordinator.site import Site
from tapfinger.live.http.client import make_spec
from tapfinger.live.insight.learning import DOUBT, Known, Learning, Lesson
from tapfinger.live.protocol.learned_speeds import Learned
from tapfinger.workloads.files import ALL_CLUSTERS, SEPARATOR, WorkloadFile

#: Most amounts per resource in a table of speeds written to a file.
MOST_AMOUNTS = 16


@dataclass(frozen=True, slots=True)
class Ran:
    """A task of the history."""

    id: int
    type: TaskType
    #: Clusters it may run on; empty means all.
    clusters: tuple[str, ...]
    submitted: float


@dataclass
class History:
    """Tasks of a live site, oldest first, and how long they took."""

    scenario: Scenario
    site: Site
    #: Knowledge by task type of the configuration.
    known: Mapping[str, Known]
    tasks: list[Ran] = field(default_factory=list)
    #: Number of tasks that the present configuration cannot run, by reason.
    left_out: Counter[str] = field(default_factory=Counter)

    def seconds(self, task_type: TaskType, size: Resources) -> float:
        """Duration of a task in seconds, as believed now."""
        return self.site.seconds(task_type, size)


def site_of(told: Mapping[str, Any]) -> tuple[Scenario, Site]:
    """The site that a coordinator described."""
    plan = {key: value for key, value in told["scenario"].items() if key not in ("directory", "source")}
    scenario = parse_scenario(plan, told["scenario"]["source"], told["scenario"]["directory"])
    return scenario, build_site(scenario)


def read_history(told: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> History:
    """Build the history from a coordinator's description and tasks from ``Client.history``, in any order."""
    scenario, site = site_of(told)
    learning = Learning(site, told.get("doubt", DOUBT))
    kept = [Learned(**row) for row in told.get("learned", ())]
    found, lessons = History(scenario, site, learning.known), []
    for row in sorted(rows, key=lambda r: (r["submitted"], r["task"])):
        task = ran(site, row)
        if task is None:
            found.left_out["of a type, size or cluster that the configuration does not have any more"] += 1
            continue
        found.tasks.append(task)
        done = row.get("phase") == "finished" and not row.get("incomplete")
        if done and row["started"] is not None and row["ended"] is not None:
            size = site.resources.parse(row["allocation"], f"task {row['task']}")
            took, steady = row["ended"] - row["started"], row.get("steady", True)
            lessons.append(
                Lesson((task.id, 1), task.type.family, size, took, None, steady, row["ended"], row.get("cluster") or "")
            )
    # What the coordinator has learnt counts; the tasks add what it has not counted yet.
    site.believe(learning.take_up(kept, lessons, 0.0).revised)
    found.known = learning.known
    return found


def ran(site: Site, row: Mapping[str, Any]) -> Ran | None:
    """The task of a row; None if the site could not run it now."""
    try:
        names = ("type", "minimum", "maximum", "clusters")
        spec = make_spec(argv=["-"], **{name: row[name] for name in names})
        task = site.task(row["task"], spec, 0)
    except TapfingerError:
        return None
    site.accepted(task, "")  # schedulers that play it must know its size
    return Ran(row["task"], task.type, tuple(row["clusters"]), row["submitted"])


# ------------------------------------------------------------------------- export


@dataclass(frozen=True)
class Exported:
    """A workload file and the scenario that plays it."""

    workload: WorkloadFile
    #: The scenario without its arrivals.
    scenario: dict[str, Any]
    #: Number of tasks with a size that a file cannot express; there they may have any size of their type.
    widened: int


def export(history: History, name: str, plain: bool) -> Exported:
    """``plain``: use only task types of the configuration, for scenarios that have no others."""
    if not history.tasks:
        raise ConfigError("nothing has run yet, so there is nothing to export; submit some tasks first")
    written: dict[str, dict[str, Any] | None] = {}
    types, widened = [], 0
    for task in history.tasks:
        own = task.type
        if own.base is None or plain:
            types.append(own.family)
            widened += own.base is not None
            continue
        if own.name not in written:
            written[own.name] = _table(own, history)
        types.append(own.name if written[own.name] is not None else own.family)
        widened += written[own.name] is None
    first = history.tasks[0].submitted
    workload = WorkloadFile(
        name,
        np.array([round(task.submitted - first, 3) for task in history.tasks]),
        tuple(types),
        tuple(SEPARATOR.join(task.clusters) or ALL_CLUSTERS for task in history.tasks),
        tuple(range(1, len(types) + 1)),
    )
    kinds = [_type(kind, history) for kind in history.scenario.task_types]
    return Exported(workload, _scenario(history, name, [*kinds, *filter(None, written.values())]), widened)


def _scenario(history: History, name: str, kinds: list[dict[str, Any]]) -> dict[str, Any]:
    site = history.site
    return {
        "name": name,
        "description": f"{len(history.tasks)} tasks of the live site {history.scenario.name}",
        "mode": "multi",
        "slot_seconds": site.slot_seconds,
        "reports_progress": False,
        "resources": history.scenario.resolved()["resources"],
        "clusters": [
            {"name": c.name, "capacity": site.resources.natural(c.capacity), "kind": c.hardware} for c in site.clusters
        ],
        "task_types": kinds,
    }


def _type(kind: Any, history: History) -> dict[str, Any]:
    """A task type of the configuration, as fast as its tasks really were."""
    # What its tasks took includes that they fetched their data, and what they were granted what they had shown to need.
    plain: dict[str, Any] = kind.model_dump(mode="json", exclude_none=True, exclude={"data", "needs"})
    if plain["speed"]["kind"] == "unknown":
        task_type = history.site.task_types[kind.name]
        table = _table(task_type, history)
        usual = history.seconds(task_type, history.known[kind.name].usual)
        plain["speed"] = {"kind": "constant", "seconds": usual} if table is None else table["speed"]
    else:
        plain["speed"] = scaled(plain["speed"], history.known[kind.name].factor)
    return plain


#: Keys to multiply for tasks that take longer, by kind of speed.
_TIMES = {
    "constant": ("slots", "seconds"),
    "tanh": ("slots",),
    "amdahl": ("seconds",),
    "power": ("seconds",),
    "rebound": ("fixed", "compute", "feeding"),
    "grid": ("seconds",),
}


def scaled(speed: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A speed with all its durations multiplied by a factor; speeds from files are unchanged."""
    changed = dict(speed)
    for name in _TIMES.get(speed["kind"], ()):
        value = speed.get(name, 1.0 if (speed["kind"], name) == ("tanh", "slots") else None)
        if isinstance(value, Sequence):
            changed[name] = [float(f"{factor * part:.6g}") for part in value]
        elif value is not None:
            changed[name] = float(f"{factor * value:.6g}")
    return changed


def _table(task_type: TaskType, history: History) -> dict[str, Any] | None:
    """A task's own bounds as a separate task type; None if a file cannot express its speed."""
    low, high, resources = task_type.minimum, task_type.maximum, history.site.resources
    free = [r for r in range(len(low)) if low[r] != high[r]]
    if any(low[r] == 0 for r in free):
        return None  # a table of speeds begins above zero
    axes = {r: _amounts(low[r], high[r]) for r in free} or {resources.processor: [low[resources.processor]]}
    if any(axis[0] == 0 for axis in axes.values()):
        return None
    seconds = []
    for cell in np.ndindex(*(len(axis) for axis in axes.values())):
        size = list(low)
        for (r, axis), place in zip(axes.items(), cell, strict=True):
            size[r] = axis[place]
        seconds.append(float(f"{history.seconds(task_type, Resources(size)):.6g}"))
    units, names = resources.units, resources.names
    amounts = {names[r]: [amount * units[r] for amount in axis] for r, axis in axes.items()}
    return {
        "name": task_type.name,
        "minimum": resources.natural(low),
        "maximum": resources.natural(high),
        "speed": {"kind": "grid", "amounts": amounts, "seconds": seconds},
    }


def _amounts(low: int, high: int) -> list[int]:
    """All amounts, or some that grow by a constant factor."""
    if high - low < MOST_AMOUNTS:
        return list(range(low, high + 1))
    steps = np.exp(np.linspace(math.log(low), math.log(high), MOST_AMOUNTS))
    return sorted({low, high, *(round(step) for step in steps)})
