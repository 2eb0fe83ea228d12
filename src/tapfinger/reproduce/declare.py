"""What a figure is: which runs it needs, how they are drawn, and what the paper says they show. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: The learned scheduler: what claims are about unless they say otherwise.
OURS = "tapfinger"


@dataclass(frozen=True)
class Setting:
    """One scenario with what is changed of it: a panel of a figure, or a point on its axis."""

    #: Name within the figure.
    key: str
    scenario: str
    #: ``key=value`` as for ``--set``.
    overrides: tuple[str, ...] = ()
    #: Sets the arrival rate to this share of the greatest sustainable throughput.
    load: float | None = None
    #: Place on the axis of a sweep.
    x: float | None = None
    #: Line of a sweep that this is a point of, where there are several panels.
    panel: str = ""
    #: Overrides that only ``--quick`` adds, such as fewer tasks.
    quick: tuple[str, ...] = ()
    #: Seeds at the least, where the figure as a whole has fewer for the sake of its longest runs.
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
    #: The same rivals as they were published, where that is something else.
    published: tuple[str, ...] = ()
    #: A name of ``evaluation.stats.measures``.
    measure: str = "mean"
    #: Reduction that the paper states.
    percent: float | None = None
    #: The paper's numbers in words; empty where the claim is not the paper's.
    paper: str = ""
    #: Settings it is about; all of the figure's if empty.
    settings: tuple[str, ...] = ()
    #: The setting that the others are measured in, where it is another one (the same draws, another rule).
    against: str = ""
    #: Reduction in percent that we expect against the strongest of the others: smallest and largest.
    expected: tuple[float, float] | None = None


@dataclass(frozen=True)
class Flat:
    """A measure changes by no more than ``percent`` from one setting to any other."""

    text: str
    percent: float
    #: Only growth from the first setting to the last counts: for clock times, which single settings may have more of
    #: because the machine had something else to do.
    growth: bool = False
    one: str = OURS
    measure: str = "mean"
    paper: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bound:
    """A number that the figure's source has measured lies within bounds."""

    text: str
    #: Name among the source's values.
    value: str
    at_most: float = float("inf")
    at_least: float = float("-inf")
    unit: str = ""
    paper: str = ""


Claim = Less | Flat | Bound


@dataclass(frozen=True)
class Figure:
    """One figure: everything that is needed to make it, but for the seeds asked for on the command line."""

    name: str
    title: str
    #: Which figure of the paper; empty if it goes beyond it.
    paper: str
    #: What is asked, in a sentence or two.
    about: str
    settings: tuple[Setting, ...] = ()
    #: Labels in the order of legends: of ``labels`` or ``styles.SCHEDULERS``; any other is a scheduler as
    #: ``--schedulers`` takes it.
    schedulers: tuple[str, ...] = ()
    #: Names of drawings, in the order of the report.
    pictures: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    #: Number of seeds, in full and with ``--quick``; a setting may have more.
    seeds: int = 100
    quick_seeds: int = 30
    #: Label of the axis of a sweep.
    axis: str = ""
    #: What the sentences about it compare schedulers by: a name of ``evaluation.stats.measures``.
    measure: str = "mean"
    log_axis: bool = False
    #: Where numbers come from: simulated runs, speed profiles, measured exchanges of messages, or training logs.
    source: Literal["runs", "profiles", "overhead", "training"] = "runs"
    #: What a reader must know to read it rightly: what is not covered, what differs from the paper.
    notes: tuple[str, ...] = ()
    #: Label -> scheduler as ``--schedulers`` takes it, for labels of this figure alone.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The word for it on the command line, where that is not its name: ``package.module:NAME``.
    given: str = ""

    @property
    def command(self) -> str:
        """The word for it on the command line."""
        return self.given or self.name
