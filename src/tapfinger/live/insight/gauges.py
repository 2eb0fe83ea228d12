"""The current state of the site, as gauges for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from tapfinger.core.contract import Phase
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.insight.shadow import Shadows


def gauges(
    machine: Coordinator, now: float, ended: Mapping[str, int], shadows: Shadows, faults: Mapping[str, str]
) -> Iterator[Metric]:
    """All gauges. ``ended``: number of ended tasks by phase. ``faults``: what is wrong at the moment, by name."""
    yield _gauge("faults", "What is wrong at the moment.", ("what",), (((name,), 1.0) for name in sorted(faults)))
    yield from _tasks(machine, ended)
    yield from _clusters(machine.clusters(now))
    counts = [((d.name, what), float(n)) for d in machine.deciders for what, n in d.counters.items()]
    yield _gauge("scheduler_guards", "What schedulers count.", ("scheduler", "what"), counts)
    rounds = [
        ((report["scheduler"], what), float(report[what]))
        for report in shadows.report()
        for what in ("rounds", "agreed", "dropped", "failed")
    ]
    yield _gauge("shadow_rounds", "Rounds of a shadow.", ("scheduler", "what"), rounds)


def _tasks(machine: Coordinator, ended: Mapping[str, int]) -> Iterator[Metric]:
    snapshot = machine.snapshot
    phases: Counter[str] = Counter({phase.value: 0 for phase in (Phase.PLACED, Phase.RUNNING)})
    phases.update(ended)
    phases["queued"] = machine.waiting
    phases.update(task.phase.value for view in snapshot.clusters for task in view.running)
    yield _gauge("tasks", "Tasks by phase.", ("phase",), (((phase,), n) for phase, n in phases.items()))
    resting = machine.waiting - len(snapshot.queue)
    yield _gauge("resting_tasks", "Waiting tasks that rest after attempts in vain.", (), [((), resting)])
    waiting = Counter(task.type.family for task in snapshot.queue)
    yield _gauge("queue_length", "Waiting tasks by type.", ("type",), (((name,), n) for name, n in waiting.items()))


def _clusters(clusters: list[dict[str, Any]]) -> Iterator[Metric]:
    both = ("cluster", "resource")
    rows = [(c["name"], r, amount, amount - c["free"][r]) for c in clusters for r, amount in c["capacity"].items()]
    yield _gauge("cluster_capacity", "What a cluster has.", both, (((c, r), has) for c, r, has, _ in rows))
    yield _gauge("cluster_used", "What tasks hold of it.", both, (((c, r), used) for c, r, _, used in rows))
    shares = (((c, r), used / has) for c, r, has, used in rows if has)
    yield _gauge("cluster_utilisation", "Share of it that tasks hold.", both, shares)
    for name, text, field in (
        ("agent_connected", "Whether a cluster's agent is heard of.", "connected"),
        ("cluster_drained", "Whether a cluster is drained.", "drained"),
        ("agent_lease_seconds", "How long an agent may still act without being heard of, at most.", "lease_ends_in"),
    ):
        yield _gauge(name, text, ("cluster",), (((c["name"],), float(c[field])) for c in clusters))
    heard = (((c["name"],), c["last_heard"]) for c in clusters if c["last_heard"] is not None)
    yield _gauge("agent_last_heard_seconds", "Seconds since an agent's last report.", ("cluster",), heard)
    differ = (((c["name"],), float(c["disagreement"] is not None)) for c in clusters)
    yield _gauge("cluster_capacity_differs", "Whether agent and configuration disagree.", ("cluster",), differ)


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(f"tapfinger_{name}", text, labels=labels)
    for combination, value in values:
        family.add_metric(combination, value)
    return family
