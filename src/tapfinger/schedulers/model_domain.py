"""Whether a site lies outside what a model was trained on: the model still schedules legally, but may do so badly."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tapfinger.policy.card import Card
from tapfinger.profiles.site_tables import SiteTables

_log = logging.getLogger(__name__)


def warn_outside(card: Card, site: SiteTables) -> None:
    """Warn about each property of this site that the model was not trained on, once for each."""
    for fault in outside(measures(site), card.training.get("ranges", {})):
        _say(f"model {card.name!r} was trained on other sites: {fault}; compare it with greedy, or finetune it")


def measures(site: SiteTables) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of everything that workloads.sites.ranges bounds."""
    context = site.context
    accelerator = context.resources.accelerator
    capacities = [c.capacity for c in context.clusters]
    gpus = [c[accelerator] for c in capacities]
    others = [a for c in capacities for r, a in enumerate(c) if r != accelerator]
    spread = max((max(column) / max(1, min(column)) for column in zip(*capacities, strict=True)), default=1.0)
    ideals = [site.sizes.ideal(t.name, tuple(range(len(capacities)))) for t in context.task_types]
    found: dict[str, list[float]] = {
        "clusters": [len(capacities)],
        "task types": [len(context.task_types)],
        "resource types": [len(context.resources.names)],
        "accelerators of a cluster": [float(g) for g in gpus],
        "units of another resource of a cluster": [float(a) for a in others or [0]],
        "times the smallest cluster, the largest": [spread],
        "slots of a task's fastest run": ideals,
    }
    return {name: (float(min(values)), float(max(values))) for name, values in found.items()}


def outside(found: Mapping[str, Sequence[float]], ranges: Mapping[str, Any]) -> list[str]:
    """Descriptions of the values that lie outside their range."""
    faults = []
    for name, (low, high) in ranges.items():
        least, most = found.get(name, (low, high))
        if most > high:
            faults.append(f"{most:g} {name}, it knows up to {high:g}")
        if least < low:
            faults.append(f"{least:g} {name}, it knows {low:g} and more")
    return faults


@lru_cache(maxsize=256)
def _say(message: str) -> None:
    _log.warning("%s", message)
