"""What all encoders share: snapshots and batched worlds to network inputs, and chosen amounts to allocations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from tapfinger.core.contract import Decision, Snapshot
from tapfinger.core.model import Resources
from tapfinger.policy.encoding.features import Schema, Sizes
from tapfinger.policy.encoding.inputs import Bools, Inputs, Ints
from tapfinger.profiles.site_tables import SiteTables


class BatchedWorlds(Protocol):
    """What an encoder reads from a batched simulator, such as ``sim.BatchSim``; ``policy`` does not import ``sim``."""

    @property
    def observations(self) -> Any:
        """Arrays of all B worlds, with the fields of observation.GraphObs."""


class AdvisedWorlds(BatchedWorlds, Protocol):
    """BatchedWorlds with advisers and a record of arrivals, such as ``sim.AdvisedSim``."""

    def advice(self, live: Ints) -> Ints:
        """(L, N, K, advisers) menu place of the size at which each adviser would start a task, -1 for none."""

    def recent_arrivals(self, live: Ints, window: int) -> tuple[Ints, Bools, Ints]:
        """(L, J) type of every task, (L, J) whether it arrived in the last ``window`` slots, (L,) slots counted."""


class Adviser(Protocol):
    """A scheduler that supplies its placements as features; each adviser is asked about every snapshot."""

    def learn_from(self, site: SiteTables) -> None:
        """Use these profiles from now on."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """The adviser's decision for this snapshot."""


class EncodedSnapshot(NamedTuple):
    """One snapshot; its inputs are a batch of one."""

    #: (N, K) id of the task in each place, -1 for none.
    task: Ints
    inputs: Inputs


class StateEncoder(ABC):
    """Turns states of one site into inputs for networks of one schema, and the networks' answers into allocations."""

    schema: ClassVar[Schema]

    def __init__(self, sizes: Sizes, pending: int, known: Mapping[str, Sequence[str]] | None, who: str) -> None:
        """``sizes``: columns per resource, task type or adviser. ``pending``: places of a cluster's pending set.

        ``known``: the features that a model was trained with; None: all. ``who``: the model's name, for messages.
        """
        self.pending = pending
        self._chosen = {} if known is None else self.schema.selection(known, sizes, who)

    def learn(self, site: SiteTables) -> None:  # noqa: B027 - not every schema looks at profiles
        """Use the tables of other speed profiles from now on."""

    def observe(self, snapshot: Snapshot) -> None:  # noqa: B027 - not every schema remembers anything
        """Take note of a whole snapshot; call this in every slot before any decision."""

    @abstractmethod
    def encode(self, snapshot: Snapshot) -> EncodedSnapshot:
        """Inputs of one snapshot."""

    @abstractmethod
    def encode_startable(self, snapshot: Snapshot) -> EncodedSnapshot | None:
        """As ``encode``, but None if no task can start anywhere."""

    @abstractmethod
    def encode_batch(self, worlds: Any, live: Ints) -> Inputs:
        """Inputs of the worlds with indices ``live`` of a batched simulator."""

    @abstractmethod
    def decode(self, inputs: Inputs, cluster: int, place: int, amounts: list[int]) -> Resources:
        """The allocation that the amounts chosen for the task at a place stand for; ``inputs``: a batch of one."""

    @abstractmethod
    def decode_batch(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """The same for a batch: ``place`` (B, N, ...), K for void; ``amounts`` (B, N, ..., R)."""

    def _select(self, inputs: Inputs) -> Inputs:
        """Only the columns that the model knows, in the model's order."""
        if not self._chosen:
            return inputs
        columns = {kind: np.array(some, dtype=np.int64) for kind, some in self._chosen.items()}
        return inputs._replace(**{kind: getattr(inputs, kind).take(some, axis=-1) for kind, some in columns.items()})
