"""Spans: nodes of a cluster as one more cluster, for tasks that may span nodes. How allocations are split is said here.

A span has no resources of its own: what is free there is what its nodes have free together. A task on it holds a part
of each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tapfinger.core.model import Resources

#: What a task on a span holds of each of its nodes, in their order; empty for tasks on other clusters.
Parts = tuple[Resources, ...]


class HasNodes(Protocol):
    """A cluster, as far as spans are concerned."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """Indices of the nodes of a span; empty for all others."""
        ...


class HasRoom(HasNodes, Protocol):
    """A ``ClusterView``, as far as spans are concerned."""

    @property
    def up(self) -> bool:
        """Whether anything can be placed there."""
        ...

    @property
    def capacity(self) -> Resources:
        """Its total resources."""
        ...

    @property
    def free(self) -> Resources:
        """What nobody holds."""
        ...


class Holder(Protocol):
    """A task as far as spans are concerned: a ``TaskView``."""

    @property
    def id(self) -> int:
        """Its id."""
        ...

    @property
    def parts(self) -> Parts:
        """What it holds of each node."""
        ...


def pooled(rooms: Sequence[Resources], up: Iterable[bool] | None = None) -> Resources:
    """What these nodes have free together; one that is down, or on which more is held than there is, has nothing."""
    there = (True,) * len(rooms) if up is None else tuple(up)
    return Resources(
        [
            sum(amount for amount, here in zip(amounts, there, strict=True) if here and amount > 0)
            for amounts in zip(*rooms, strict=True)
        ]
    )


def split(amounts: Resources, rooms: Sequence[Resources], capacity: Resources, before: Parts = ()) -> Parts:
    """Divide an allocation among nodes with this room, so that it is on few of them.

    The node that can give most of it comes first, measured in shares of the span's ``capacity``; of several the
    fullest one, which leaves whole nodes to others; then the first one. It gives all it can. So goes the rest.

    ``before``: what the task holds of each node already; it keeps what it can of that.
    """
    if before:
        kept = split(amounts, [part.at_most(room) for part, room in zip(before, rooms, strict=True)], capacity)
        rest = amounts - pooled(kept)
        more = split(rest, [room - part for room, part in zip(rooms, kept, strict=True)], capacity)
        return tuple(part + extra for part, extra in zip(kept, more, strict=True))
    left, parts = amounts, [amounts - amounts] * len(rooms)
    while not left.none:
        best, most, fullest = -1, 0.0, 0.0
        for k, room in enumerate(rooms):
            if not parts[k].none:
                continue
            gives = free = 0.0
            for amount, have, whole in zip(left, room, capacity, strict=True):
                if whole:
                    gives += min(amount, max(0, have)) / whole
                    free += max(0, have) / whole
            if gives > most or (gives == most > 0.0 and free < fullest):
                best, most, fullest = k, gives, free
        if best < 0:
            break  # whoever asks has checked that there is room
        parts[best] = Resources([min(amount, max(0, have)) for amount, have in zip(left, rooms[best], strict=True)])
        left = left - parts[best]
    return tuple(parts)


def nodes_of(clusters: Sequence[HasNodes]) -> dict[int, tuple[int, ...]]:
    """The nodes of every span, by its index."""
    return {n: cluster.nodes for n, cluster in enumerate(clusters) if cluster.nodes}


class Rooms:
    """What is free on each cluster while a plan takes from it and gives back; spans follow their nodes."""

    def __init__(self, clusters: Sequence[HasRoom]) -> None:
        """Begin with what is free now."""
        self._clusters = clusters
        self.left = [cluster.free for cluster in clusters]
        #: The nodes of every span, by its index.
        self.spans = nodes_of(clusters)
        self._span_of = {n: span for span, nodes in self.spans.items() for n in nodes}
        #: What tasks that were resized hold of nodes, by id.
        self.parts: dict[int, Parts] = {}

    def __getitem__(self, index: int) -> Resources:
        """What is left on this cluster."""
        return self.left[index]

    def sharing(self, index: int) -> Sequence[int]:
        """This cluster and all whose room changes with its own."""
        if index in self.spans:
            return (index, *self.spans[index])
        return (index, self._span_of[index]) if index in self._span_of else (index,)

    def take(self, index: int, amounts: Resources, before: Parts = ()) -> Parts:
        """Take these amounts; return the parts of each node, if it is a span. ``before``: as of ``split``."""
        nodes = self.spans.get(index)
        if nodes is None:
            self.left[index] = self.left[index] - amounts
            self._follow(self._span_of.get(index))
            return ()
        rooms = [self.left[n] if self._clusters[n].up else amounts - amounts for n in nodes]
        parts = split(amounts, rooms, self._clusters[index].capacity, before)
        for n, part in zip(nodes, parts, strict=True):
            self.left[n] = self.left[n] - part
        self._follow(index)
        return parts

    def give(self, index: int, amounts: Resources, parts: Parts = ()) -> None:
        """Give back what a task on this cluster holds, with the parts of it."""
        nodes = self.spans.get(index)
        if nodes is None:
            self.left[index] = self.left[index] + amounts
            self._follow(self._span_of.get(index))
            return
        for n, part in zip(nodes, parts, strict=True):
            self.left[n] = self.left[n] + part
        self._follow(index)

    def start(self, index: int, task: Holder, amounts: Resources) -> None:
        """A task is to start on this cluster."""
        if parts := self.take(index, amounts):
            self.parts[task.id] = parts

    def resize(self, index: int, task: Holder, now: Resources, then: Resources) -> None:
        """A task on this cluster, planned to hold ``now``, is to hold ``then``; it keeps what it can of its parts."""
        if index not in self.spans:
            self.left[index] = self.left[index] + now - then
            self._follow(self._span_of.get(index))
            return
        if parts := self.parts.get(task.id, task.parts):  # a task that is paused may have none
            self.give(index, now, parts)
        self.parts[task.id] = self.take(index, then, task.parts)

    def moved(self, task: Holder) -> bool:
        """Whether a task that was resized is planned to hold other parts than it does now."""
        return self.parts.get(task.id, task.parts) != task.parts

    def _follow(self, span: int | None) -> None:
        if span is not None:
            nodes = self.spans[span]
            self.left[span] = pooled([self.left[n] for n in nodes], [self._clusters[n].up for n in nodes])


def linked(spans: Mapping[int, tuple[int, ...]], clusters: int) -> list[tuple[int, ...]]:
    """For every cluster, those whose free resources change with its own: itself, its span, the nodes of its span."""
    of: list[tuple[int, ...]] = [(n,) for n in range(clusters)]
    for span, nodes in spans.items():
        of[span] = (span, *nodes)
        for n in nodes:
            of[n] = (n, span)
    return of
