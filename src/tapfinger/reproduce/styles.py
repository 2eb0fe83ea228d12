"""Names of schedulers in figures and tables, the scheduler behind each, and its colour: the same everywhere."""

from __future__ import annotations

from itertools import count
from typing import Any

from tapfinger.drawing import look
from tapfinger.reproduce.declare import Figure

#: Only the network and the resolution of conflicts: the paper's method, without a bound on waiting.
PAPER_PIPELINE = "tapfinger@pipeline=paper"

#: Label -> scheduler as in ``--schedulers``. The order gives the colours; the first seven have solid lines.
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
    "paper pipeline": PAPER_PIPELINE,
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


def scheduler_of(figure: Figure, label: str) -> str:
    """The scheduler behind a label, as in ``--schedulers``; an unknown label is a scheduler itself."""
    return figure.labels.get(label) or SCHEDULERS.get(label, label)


def places_of(figure: Figure) -> dict[str, int]:
    """Label -> number of its look. Labels of this figure alone take the first free numbers."""
    places = {label: PLACES[label] for label in figure.schedulers if label in PLACES}
    left = (place for place in count() if place not in places.values())
    return {label: places[label] if label in places else next(left) for label in figure.schedulers}


def look_of(figure: Figure, label: str) -> dict[str, Any]:
    """Colour and dashes of a scheduler in a figure."""
    return look(places_of(figure)[label])
