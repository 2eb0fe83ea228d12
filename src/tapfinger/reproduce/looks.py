"""Names of schedulers in figures and tables, what each one is, and its colour: the same everywhere."""

from __future__ import annotations

from typing import Any

from tapfinger.evaluation.plots import look

#: Label -> scheduler as ``--schedulers`` takes it. The order gives the colours; the first seven have solid lines.
SCHEDULERS = {
    "tapfinger": "tapfinger",
    "greedy": "greedy",
    "optimus-central": "optimus-central",
    "optimus-published": "optimus-published",
    "tiresias": "tiresias",
    "random": "random",
    "min": "min",
    "tapfinger+lookahead": "tapfinger+lookahead",
    "lookahead": "lookahead",
    "optimus": "optimus",
    "optimus-first-wins": "optimus-first-wins",
    "tiresias-elastic": "tiresias-elastic",
    "fifo": "fifo",
    "shortest-first": "shortest-first",
    "universal": "tapfinger@model=universal",
    "no-han": "tapfinger@model=multi-3-no-han",
    "mappo": "tapfinger@model=multi-3-mappo",
    "no-pointer": "tapfinger@model=short-long-3-no-pointer",
    "vanilla": "tapfinger@model=synthetic-3-vanilla",
    "without guards": "tapfinger@max_wait=1000000@max_stretch=0",
    "lending": "tapfinger@lend=true",
    "brief": "tapfinger@model=multi-3-brief",
    "no own features": "tapfinger@model=multi-3-no-self",
    "joint head": "tapfinger@model=multi-3-joint-head",
    "critic": "tapfinger@model=multi-3-critic",
    "cold start": "tapfinger@model=multi-3-cold",
    "hints only": "tapfinger@model=multi-3-hints-only",
    "optimus-static": "optimus-static",
    "tiresias-nonpreemptive": "tiresias-nonpreemptive",
    "exploring": "exploring",
}

PLACES = {label: place for place, label in enumerate(SCHEDULERS)}


def look_of(label: str) -> dict[str, Any]:
    """Colour and dashes of a scheduler."""
    return look(PLACES[label])
