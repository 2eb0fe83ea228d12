"""Data sets and links of a scenario -> the layout that the world plays with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tapfinger.config import Scenario
from tapfinger.core.staging import DataLayout
from tapfinger.errors import ConfigError, UnknownNameError

#: Name of the place of those who submit tasks, in links.
SUBMITTERS = "submitters"

#: Megabits in a gigabyte.
_MEGABITS = 8000.0


def check_data(scenario: Scenario) -> None:
    """Refuse names of clusters that do not exist, and data sets that a cache cannot hold."""
    names = {name: config for config in scenario.clusters for name, _ in config.copies()}
    for one in scenario.data:
        for name in one.at:
            if name not in names:
                raise ConfigError(f"data.{one.name}.at: {UnknownNameError('cluster', name, names)}")
    for position, link in enumerate(scenario.links.between):
        for name in link.ends:
            if name not in names and name != SUBMITTERS:
                known = [*names, SUBMITTERS]
                raise ConfigError(f"links.between.{position}.ends: {UnknownNameError('cluster', name, known)}")
        if link.ends[0] == link.ends[1]:
            raise ConfigError(f"links.between.{position}.ends: both are {link.ends[0]}; name two places")
    sizes = {one.name: one for one in scenario.data}
    for kind in scenario.task_types:
        for name, config in names.items():
            brought = [one for one in map(sizes.__getitem__, dict.fromkeys(kind.data)) if name not in one.at]
            gb = sum(one.gb for one in brought)
            if config.cache_gb is not None and gb > config.cache_gb:
                raise ConfigError(
                    f"clusters.{config.name}.cache_gb: task type {kind.name!r} needs "
                    f"{' and '.join(one.name for one in brought)}, {gb:g} GB, and the cache has {config.cache_gb:g}; "
                    "raise it, or let the data lie there"
                )


def draw_layout(
    scenario: Scenario, wholes: Sequence[str], place_of: Sequence[int], rng: np.random.Generator
) -> DataLayout:
    """``wholes``: names of the whole clusters; ``place_of``: the whole cluster of every cluster."""
    places = [*wholes, SUBMITTERS]
    links, count = scenario.links, len(wholes)
    if links.kind == "uniform":
        mbps = rng.uniform(links.minimum_mbps, links.maximum_mbps, (count + 1, count + 1))
        mbps = np.triu(mbps) + np.triu(mbps, 1).T  # both ways alike
    else:
        mbps = np.full((count + 1, count + 1), links.mbps)
    for link in links.between:
        one, other = (places.index(name) for name in link.ends)
        mbps[one, other] = mbps[other, one] = link.mbps
    caches = [config.cache_gb for config in scenario.clusters for _ in config.copies()]
    slots = _MEGABITS / mbps[:, :count] / scenario.slot_seconds
    return DataLayout(
        names=tuple(one.name for one in scenario.data),
        gb=tuple(one.gb for one in scenario.data),
        lies=tuple(
            tuple(name in one.at or (name == SUBMITTERS and not one.at) for one in scenario.data) for name in places
        ),
        slots_per_gb=tuple(map(tuple, slots.tolist())),
        cache_gb=tuple(math.inf if cache is None else cache for cache in caches),
        place_of=tuple(place_of),
    )
