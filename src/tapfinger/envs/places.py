"""What ``info`` tells of nodes, kinds of hardware and data; nothing on sites that have none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.core.feasibility import stranded
from tapfinger.core.model import Cluster
from tapfinger.core.spans import nodes_of
from tapfinger.core.state import EdgeState


class Places:
    """Names of clusters, nodes and kinds, and how they were used when ``look`` was called last."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        """Nothing is in use."""
        nodes, kinds = any(c.part_of for c in clusters), any(c.hardware for c in clusters)
        self._capacity = np.array([c.capacity for c in clusters], dtype=np.int64)
        self._span_of = {n: span for span, of in nodes_of(clusters).items() for n in of}
        self._capacity[[n for n, c in enumerate(clusters) if c.nodes]] = 0  # it is that of their nodes
        self._nodes = nodes
        self._kind = np.array([c.hardware for c in clusters])
        self._kinds = tuple(dict.fromkeys(c.hardware for c in clusters)) if kinds else ()
        #: Key -> the text of each cluster.
        self._names: dict[str, tuple[str, ...]] = {}
        if nodes or kinds:
            self._names["cluster"] = tuple(c.name for c in clusters)
        if nodes:
            self._names["whole_cluster"] = tuple(c.whole for c in clusters)
        if kinds:
            self._names["kind"] = tuple(c.hardware for c in clusters)
        #: (clusters, resources) units that are free where no waiting task fits.
        self._stranded: npt.NDArray[np.int64] = np.zeros_like(self._capacity)
        #: (clusters, resources) units that tasks hold.
        self._used: npt.NDArray[np.int64] = np.zeros_like(self._capacity)
        #: (clusters,) tasks that wait for data with what they hold.
        self._staging: npt.NDArray[np.int64] = np.zeros(len(self._capacity), dtype=np.int64)
        self._data = False

    def look(self, state: EdgeState) -> None:
        """Note what is in use, what is stranded, and who waits for data now."""
        self._data = state.data is not None
        if not self._names and not self._data:
            return
        views = state.cluster_views()
        if self._data:
            self._staging = np.array([sum(task.staging > 0 for task in view.running) for view in views])
        if self._nodes:
            waiting = state.kinds()
            spans = [views[self._span_of[n]] if n in self._span_of else None for n in range(len(views))]
            self._stranded = np.array(
                [stranded(view, waiting, span) for view, span in zip(views, spans, strict=True)], dtype=np.int64
            )
        if self._kinds:
            self._used = np.zeros_like(self._capacity)
            for view in views:
                for task in view.running:
                    self._used[view.index] += task.allocation  # of a span by kind, which its nodes have as well

    def of(self, n: int) -> dict[str, Any]:
        """What the info of one cluster's agent tells."""
        mine: dict[str, Any] = {key: names[n] for key, names in self._names.items()}
        mine |= {"staging": int(self._staging[n])} if self._data else {}
        return mine | ({"stranded": self._stranded[n]} if self._nodes else {}) | self._by_kind()

    def all(self) -> dict[str, Any]:
        """What the info of an agent for all clusters tells."""
        found: dict[str, Any] = {**self._names, **({"staging": self._staging} if self._data else {})}
        return found | ({"stranded": self._stranded} if self._nodes else {}) | self._by_kind()

    def _by_kind(self) -> dict[str, Any]:
        if not self._kinds:
            return {}
        shares = {}
        for kind in self._kinds:
            mine = self._kind == kind
            shares[kind] = self._used[mine].sum(axis=0) / np.maximum(1, self._capacity[mine].sum(axis=0))
        return {"utilisation_per_kind": shares}
