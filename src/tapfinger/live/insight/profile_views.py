"""Beliefs about task types, as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from tapfinger.live.coordinator.site import Site, seconds_at
from tapfinger.live.insight.learning import Known, size_of


def described(known: Known, site: Site) -> dict[str, Any]:
    """A summary of one task type."""
    usual, slot = known.usual, site.slot_seconds
    doubts = known.believed.profile.doubt
    return {
        "name": known.configured.name,
        "runs": known.finished,
        "sizes": len(known.runs),
        "usual": site.resources.natural(usual),
        "seconds": seconds_at(known.believed, usual, slot),
        "configured_seconds": seconds_at(known.configured, usual, slot),
        "doubt": 0.0 if doubts is None else doubts[known.configured.profile.index(usual)],
        "scatter": known.scatter,
        "factor": known.factor,
        "since": known.since,
        "drift": None if known.drift is None else {"since": known.drift[0], "factor": known.drift[1]},
    }


def cells(known: Known, site: Site, every: bool = False) -> list[dict[str, Any]]:
    """The belief about each size seen so far, or about every size."""
    profile, slot = known.configured.profile, site.slot_seconds
    doubts = known.believed.profile.doubt
    return [
        {
            "allocation": site.resources.natural(size),
            "seconds": seconds_at(known.believed, size, slot),
            "configured_seconds": seconds_at(known.configured, size, slot),
            "doubt": 0.0 if doubts is None else doubts[cell],
            "runs": known.runs.get(cell, 0.0),
        }
        for cell in (range(len(profile.rates)) if every else sorted(known.runs))
        for size in [size_of(known.configured, cell)]
    ]
