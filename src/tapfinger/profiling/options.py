"""Settings of ``tapfinger profile`` and of ``tapfinger workload from-profiles``. Without numpy: help is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from tapfinger.settings import FieldHelp

#: Default number of undisturbed runs of each allocation.
REPEATS: Final = 2

#: Default share of a run's cores that others may use before the run counts as disturbed.
BUSY: Final = 0.1


@dataclass(frozen=True)
class ScenarioChoices:
    """Choices that profiles leave open."""

    #: Name of the scenario.
    name: str
    types: Annotated[Sequence[str], FieldHelp("Task types to use. Without it: all.", "NAME,...")] = ()
    weights: Annotated[
        Mapping[str, float],
        FieldHelp("How often a type comes, against 1.", "NAME=NUMBER,...", option="--weight"),
    ] = field(default_factory=dict)
    clusters: Annotated[int, FieldHelp("Number of equal clusters.", above=0, max=10_000)] = 3
    capacity: Annotated[
        Mapping[str, float] | None,
        FieldHelp("Of each cluster. Without it: twice the largest allocation.", "NAME=AMOUNT,..."),
    ] = None
    tasks: Annotated[int, FieldHelp("Number of tasks.", above=0, max=10_000_000)] = 500
    rate: Annotated[float | None, FieldHelp("Tasks per second, on the new clock. Without it: by --load.", above=0)] = (
        None
    )
    load: Annotated[
        float, FieldHelp("Share of the clusters in use if every task has its most economical size.", above=0)
    ] = 0.7
    time_scale: Annotated[float, FieldHelp("Seconds that become one: 60 makes a minute a second.", above=0)] = 1.0
    slot_seconds: Annotated[
        float | None,
        FieldHelp("Seconds per slot, on the new clock. Without it: by the shortest times.", above=0),
    ] = None
    mode: Annotated[str, FieldHelp("multi or single.")] = "multi"
