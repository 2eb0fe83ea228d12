"""Names of schedulers in figures and tables, the scheduler behind each, and its colour: the same everywhere."""

from __future__ import annotations

from itertools import count
from typing import Any

from tapfinger.drawing import look
from tapfinger.reproduce.declare import PAPER_METHOD, Figure

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
    PAPER_METHOD: "tapfinger@model=multi-3-paper-small@pipeline=paper",
    "no-pointer": "tapfinger@model=short-long-3-no-pointer",
    "vanilla": "tapfinger@model=synthetic-3-vanilla",
    "network alone": PAPER_PIPELINE,
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
    "graph only": "tapfinger@model=multi-3-graph-only",
    "trained smaller": "tapfinger@model=testbed-3-smaller",
    "paper's, one part less": "tapfinger@model=multi-3-paper-small-no-han@pipeline=paper",
    "multi-3's model": "tapfinger@model=multi-3",
    "greedy, lending": "greedy@lend=true",
}

#: A scenario's model of the paper's own method, as `tapfinger train --preset paper-small` makes it.
_PAPER_MODEL = "{scenario}-paper-small"
#: The label of its ablations, whose part is named by the figure.
PAPER_ABLATION = "paper's, one part less"


def paper_labels(scenario: str, network: str = "") -> dict[str, str]:
    """Label -> scheduler of the paper's own method on a scenario, and of its ablation ``network`` if one is named."""
    model = _PAPER_MODEL.format(scenario=scenario)
    labels = {PAPER_METHOD: f"tapfinger@model={model}@pipeline=paper"}
    if network:
        labels[PAPER_ABLATION] = f"tapfinger@model={model}-{network}@pipeline=paper"
    return labels


def paper_training(scenario: str, network: str = "") -> dict[str, str]:
    """Label -> command that trains what ``paper_labels`` names. One network has the same training as the other."""
    model = _PAPER_MODEL.format(scenario=scenario)
    command = f"tapfinger train {scenario} --preset paper-small"
    commands = {PAPER_METHOD: f"{command} --name {model}"}
    if network:
        commands[PAPER_ABLATION] = f"{command} --network {network} --name {model}-{network}"
    return commands


#: Schedulers that change the allocation of running tasks: the elastic regime.
_RESIZING = ("optimus", "tiresias", "fluid")
_STATIC = ("optimus-static", "tiresias-nonpreemptive")

PLACES = {label: place for place, label in enumerate(SCHEDULERS)}


def scheduler_of(figure: Figure, label: str) -> str:
    """The scheduler behind a label, as in ``--schedulers``; an unknown label is a scheduler itself."""
    return figure.labels.get(label) or SCHEDULERS.get(label, label)


def resizes(scheduler: str) -> bool:
    """Whether a scheduler, as in ``--schedulers``, resizes or pauses running tasks."""
    name, *options = scheduler.split("@")
    return "lend=true" in options or (name.startswith(_RESIZING) and name not in _STATIC)


def regime_of(figure: Figure) -> str:
    """One sentence on who may change the size of a running task in a figure; empty if nobody is compared."""
    resizing = [label for label in figure.schedulers if resizes(scheduler_of(figure, label))]
    if not figure.schedulers:
        return ""
    if len(resizing) == len(figure.schedulers):
        return "Regime: elastic. All schedulers here may resize running tasks."
    if not resizing:
        return "Regime: fixed. Every task keeps the size it was started with."
    return (
        f"Regime: fixed. Every task keeps the size it was started with, except with {', '.join(resizing)}: "
        "these resize or pause running tasks, a right that the others do without."
    )


def places_of(figure: Figure) -> dict[str, int]:
    """Label -> number of its look. Labels of this figure alone take the first free numbers."""
    places = {label: PLACES[label] for label in figure.schedulers if label in PLACES}
    left = (place for place in count() if place not in places.values())
    return {label: places[label] if label in places else next(left) for label in figure.schedulers}


def look_of(figure: Figure, label: str) -> dict[str, Any]:
    """Colour and dashes of a scheduler in a figure."""
    return look(places_of(figure)[label])
