"""What a figure is: the runs it needs, how they are drawn, and what the paper says they show. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: The learned scheduler, which claims are about unless they name another.
OURS = "tapfinger"
#: The paper's own method: its network and its training, and Bayes' rule and nothing else when it decides.
PAPER_METHOD = "paper's method"


@dataclass(frozen=True)
class Setting:
    """One scenario with its changes: a panel of a figure, or a point on its axis."""

    #: Name within the figure.
    key: str
    scenario: str
    #: ``key=value`` as for ``--set``.
    overrides: tuple[str, ...] = ()
    #: Sets the arrival rate to this share of the greatest sustainable throughput.
    load: float | None = None
    #: Position on the axis of a sweep.
    x: float | None = None
    #: Line of a sweep that this point belongs to, if there are several panels.
    panel: str = ""
    #: Overrides that only ``--quick`` adds, such as fewer tasks.
    quick: tuple[str, ...] = ()
    #: Minimum number of seeds, if the whole figure has fewer because of its longest runs.
    least_seeds: int = 0
    #: scheduler -> the paper's mean completion time in slots.
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Less:
    """One scheduler has less of a measure than all of the others, by this many percent if ``percent`` is given."""

    #: The claim in words.
    text: str
    #: Rivals as they should be.
    others: tuple[str, ...]
    one: str = OURS
    #: The same rivals as published, if they differ.
    published: tuple[str, ...] = ()
    #: A name of ``evaluation.stats.measures``.
    measure: str = "mean"
    #: Reduction that the paper states.
    percent: float | None = None
    #: The paper's numbers in words; empty if the claim is not the paper's.
    paper: str = ""
    #: Settings that the claim is about; all of the figure's if empty.
    settings: tuple[str, ...] = ()
    #: The setting in which the others are measured, if it differs (the same draws, another rule).
    against: str = ""
    #: Reduction in percent that we expect against the strongest of the others: smallest and largest.
    expected: tuple[float, float] | None = None


@dataclass(frozen=True)
class Flat:
    """A measure changes by no more than ``percent`` from one setting to any other."""

    text: str
    percent: float
    #: Only growth from the first setting to the last counts: for clock times, which may be higher in single settings
    #: because the machine was busy with something else.
    growth: bool = False
    one: str = OURS
    measure: str = "mean"
    paper: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bound:
    """Numbers measured by the figure's source lie within bounds, each of them."""

    text: str
    #: Name among the source's values. If the source has a value per case, named ``VALUE at CASE``, all of them count.
    value: str
    at_most: float = float("inf")
    at_least: float = float("-inf")
    unit: str = ""
    paper: str = ""
    #: Why it is not judged where the source has no such value.
    otherwise: str = ""


@dataclass(frozen=True)
class Unjudged:
    """A claim that nothing here measures: it stays on the page, with the reason."""

    text: str
    #: Why it is not judged, and which command would make what is needed, if any does.
    why: str
    paper: str = ""


Claim = Less | Flat | Bound | Unjudged


@dataclass(frozen=True)
class Figure:
    """One figure: everything needed to make it, except the seeds given on the command line."""

    name: str
    title: str
    #: Figure of the paper; empty if it goes beyond the paper.
    paper: str
    #: The question, in a sentence or two.
    about: str
    settings: tuple[Setting, ...] = ()
    #: Labels in the order of legends, from ``labels`` or ``styles.SCHEDULERS``; any other label is a scheduler as in
    #: ``--schedulers``.
    schedulers: tuple[str, ...] = ()
    #: Names of drawings, in the order of the report.
    pictures: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    #: Number of seeds, in full and with ``--quick``; a setting may have more.
    seeds: int = 100
    quick_seeds: int = 30
    #: Label of the axis of a sweep.
    axis: str = ""
    #: Measure by which its sentences compare schedulers: a name of ``evaluation.stats.measures``.
    measure: str = "mean"
    log_axis: bool = False
    #: Source of the numbers: simulated runs, speed profiles, measured exchanges of messages, or training logs.
    source: Literal["runs", "profiles", "overhead", "training"] = "runs"
    #: What a reader must know to understand it: what is not covered, what differs from the paper.
    notes: tuple[str, ...] = ()
    #: Label -> scheduler as in ``--schedulers``, for labels of this figure alone.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Label -> command that makes its model, for schedulers that are left out where that does not ship.
    optional: Mapping[str, str] = field(default_factory=dict)
    #: Whether the figure compares networks, so that their training belongs beside the result.
    compares_networks: bool = False
    #: Its command-line name if it differs from ``name``: ``package.module:NAME``.
    given: str = ""

    @property
    def command(self) -> str:
        """Its name on the command line."""
        return self.given or self.name
