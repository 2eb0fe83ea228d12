"""Distributions of random sites, by name."""

from __future__ import annotations

from collections.abc import Callable

from tapfinger.config import Scenario
from tapfinger.errors import UnknownNameError
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.wide_sites import draw_wide_site

#: Name -> function of the seed and the number of tasks per workload.
DISTRIBUTIONS: dict[str, Callable[[int, int], Scenario]] = {"wide": draw_wide_site, "pools": draw_site}


def draw(seed: int, tasks: int, distribution: str) -> Scenario:
    """A random site: a pure function of its arguments."""
    if distribution not in DISTRIBUTIONS:
        raise UnknownNameError("distribution of sites", distribution, DISTRIBUTIONS)
    return DISTRIBUTIONS[distribution](seed, tasks)
