"""What the stages of the learned scheduler hand to each other: a plan for one turn, and a reason for each start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from tapfinger.core.contract import Decision, Placement, Proposal, Resize, Snapshot
from tapfinger.profiles.site_tables import SiteTables


@dataclass(frozen=True, slots=True)
class Start:
    """A task that starts, and why."""

    placement: Placement
    #: Names of the stages that led to it, in their order.
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A turn as far as it is planned."""

    #: What the next stage decides on: earlier starts hold their resources and wait no longer.
    snapshot: Snapshot
    #: What clusters want; the stage ``conflicts`` makes starts of it.
    proposals: tuple[Proposal, ...] = ()
    starts: tuple[Start, ...] = ()
    resizes: tuple[Resize, ...] = ()
    #: Proposals that lost a conflict.
    lost: tuple[Proposal, ...] = ()
    #: Clusters that start nothing else, because a waiting task needs them.
    reserved: frozenset[int] = frozenset()

    @property
    def open(self) -> Snapshot:
        """The snapshot with reserved clusters closed."""
        return self.snapshot.closed(self.snapshot.sharing(self.reserved))

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The starts without their reasons."""
        return tuple(start.placement for start in self.starts)

    @property
    def decision(self) -> Decision:
        """What the world is told."""
        return Decision(self.placements, self.resizes, self.lost)

    def with_starts(self, starts: Iterable[Start]) -> Plan:
        """The plan with these starts as well."""
        more = tuple(starts)
        if not more:
            return self
        booked = self.snapshot.booked([start.placement for start in more])
        return replace(self, snapshot=booked, starts=(*self.starts, *more))


class Stage(ABC):
    """One step of a pipeline. It has a name, can be left out, and keeps what it remembers to itself."""

    #: As in ``tapfinger@without=NAME``, in explanations and in counters.
    name: ClassVar[str]
    #: What a start that this stage led to is, as a sentence: counters and explanations show it.
    meaning: ClassVar[str]

    def reset(self, site: SiteTables, counters: dict[str, int]) -> None:
        """Begin a new run; ``counters`` are those of the scheduler."""
        self.counters = counters
        self.learn(site)

    @abstractmethod
    def learn(self, site: SiteTables) -> None:
        """Use these speed profiles from now on, and keep everything else."""

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """Called once a turn, before any stage plans; returns the snapshot that the stages are to plan on."""
        return snapshot

    @abstractmethod
    def apply(self, plan: Plan) -> Plan:
        """Plan further."""
