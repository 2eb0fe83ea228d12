"""Beliefs about task types, as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from tapfinger.live.coordinator.site import Site, seconds_at
from tapfinger.live.insight.learning import Known


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
    """The belief about each size seen so far, or about every size; on every kind of hardware, where there are some."""
    slot, kinds = site.slot_seconds, max(1, len(known.configured.profiles))
    found = []
    for cell in range(kinds * len(known.configured.profile.rates)) if every else sorted(known.runs):
        kind, size = known.place(cell)
        believed = known.believed.on(kind)
        doubts = believed.profile.doubt
        found.append(
            {
                **({"kind": kind} if kind else {}),
                "allocation": site.resources.natural(size),
                "seconds": seconds_at(believed, size, slot),
                "configured_seconds": seconds_at(known.configured.on(kind), size, slot),
                "doubt": 0.0 if doubts is None else doubts[believed.profile.index(size)],
                "runs": known.runs.get(cell, 0.0),
            }
        )
    return found
