"""Named features: each is declared once; columns, the documentation page and the schema's digest follow from that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tapfinger.errors import CheckpointMismatch

#: Number of columns of a feature, by its ``per``, for one site.
Sizes = Mapping[str, int]

#: Writes the values of a feature: their source, and the column or columns they go to.
Writer = tuple[Callable[[Any], Any], int | slice]


@dataclass(frozen=True, slots=True)
class Feature:
    """One number given to a network, or one per resource, task type or adviser."""

    name: str
    #: Unit and scale of the numbers as the network receives them.
    unit: str
    #: One sentence for the documentation page.
    meaning: str
    #: Computes the values from the state prepared by the schema's encoder; shaped like the nodes, or broadcastable.
    source: Callable[[Any], Any]
    #: The feature has one column for each of these; empty: a single column.
    per: str = ""
    #: Whether it tells a cluster about the other clusters; networks without a graph are compared with and without.
    of_others: bool = False

    @property
    def identity(self) -> str:
        """What must not change for a trained network; the wording of ``meaning`` may."""
        return f"{self.name}{f' per {self.per}' if self.per else ''} [{self.unit}]"


class FeatureTable:
    """The features of one kind of node, in the order of their columns."""

    def __init__(self, *features: Feature) -> None:
        """Names must be unique."""
        self.features = features
        names = [feature.name for feature in features]
        if len(set(names)) != len(names):
            raise ValueError(f"a feature is declared twice: {', '.join(n for n in names if names.count(n) > 1)}")

    def __add__(self, other: FeatureTable) -> FeatureTable:
        """These columns, followed by the other table's."""
        return FeatureTable(*self.features, *other.features)

    def columns(self, sizes: Sizes | None = None) -> dict[str, range]:
        """The columns of each feature, by name."""
        found: dict[str, range] = {}
        first = 0
        for feature in self.features:
            last = first + self._count(feature, sizes)
            found[feature.name] = range(first, last)
            first = last
        return found

    def width(self, sizes: Sizes | None = None) -> int:
        """Number of columns."""
        return sum(self._count(feature, sizes) for feature in self.features)

    @staticmethod
    def _count(feature: Feature, sizes: Sizes | None) -> int:
        if not feature.per:
            return 1
        if feature.per not in (sizes or {}):
            known = ", ".join(map(repr, sizes or {})) or "none"
            raise ValueError(f"feature {feature.name!r}: per = {feature.per!r}; this schema has: {known}")
        return (sizes or {})[feature.per]

    def writers(self, sizes: Sizes | None = None) -> list[Writer]:
        """Each feature's source with the position of its values on the last axis."""
        columns = self.columns(sizes)
        return [
            (f.source, slice(at.start, at.stop) if f.per else at.start)
            for f, at in ((feature, columns[feature.name]) for feature in self.features)
        ]


def write(writers: Sequence[Writer], out: Any, state: Any) -> None:
    """Fill the last axis of ``out`` with the features of a state."""
    for source, at in writers:
        out[..., at] = source(state)


class Schema:
    """The features of every kind of node, as given to one family of networks."""

    def __init__(self, name: str, sentence: str, tables: Mapping[str, FeatureTable]) -> None:
        """``tables``: by kind of node, which is also the field of ``Inputs`` that holds its columns."""
        self.name, self.sentence, self.tables = name, sentence, dict(tables)
        #: Identities of the features, by kind of node; a model's card keeps this list.
        self.features: dict[str, list[str]] = {
            kind: [feature.identity for feature in table.features] for kind, table in tables.items()
        }
        self.digest = digest_of(self.features)

    def selection(self, wanted: Mapping[str, Sequence[str]], sizes: Sizes, who: str) -> dict[str, list[int]]:
        """Columns of the features that a model knows, by kind of node; empty if it knows exactly this schema's.

        A model trained before a feature was added does not receive it. A model is rejected if it knows a feature that
        no longer exists or now has another unit.
        """
        self.check(wanted, who)
        if dict(wanted) == self.features:
            return {}
        chosen: dict[str, list[int]] = {}
        for kind, table in self.tables.items():
            columns = dict(zip(self.features[kind], table.columns(sizes).values(), strict=True))
            chosen[kind] = [column for identity in wanted.get(kind, ()) for column in columns[identity]]
        return chosen

    def check(self, wanted: Mapping[str, Sequence[str]], who: str) -> None:
        """Raise CheckpointMismatch, naming the features, unless this version provides all ``wanted`` ones."""
        missing = [
            f"{identity} of {kind}"
            for kind, identities in wanted.items()
            for identity in identities
            if identity not in self.features.get(kind, ())
        ]
        if missing:
            raise CheckpointMismatch(
                f"{who}: its features differ from those of schema {self.name!r} in this version; not made any more: "
                f"{', '.join(missing)}. Retrain it ('tapfinger models rebuild') or use the version that made it"
            )

    def difference(self, other: Mapping[str, Sequence[str]]) -> list[str]:
        """The differences between ``other`` and this schema, in words."""
        found = []
        for kind in dict.fromkeys([*self.features, *other]):
            mine, theirs = self.features.get(kind, []), list(other.get(kind, ()))
            found += [f"without {identity} of {kind}" for identity in mine if identity not in theirs]
            found += [f"with {identity} of {kind}" for identity in theirs if identity not in mine]
            if mine != theirs and sorted(mine) == sorted(theirs):
                found.append(f"another order of the features of {kind}")
        return found


def digest_of(features: Mapping[str, Sequence[str]]) -> str:
    """Short digest of names, order, columns and units."""
    text = json.dumps({kind: list(identities) for kind, identities in features.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
