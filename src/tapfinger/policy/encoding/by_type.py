"""Encoder of schema ``types``: snapshots or batched worlds of one set of task types to inputs. numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tapfinger.core.contract import SchedulerContext, Snapshot
from tapfinger.core.model import Resources
from tapfinger.observation import GraphObs, Observer
from tapfinger.policy.encoding.base import BatchedWorlds, EncodedSnapshot, StateEncoder
from tapfinger.policy.encoding.features import write
from tapfinger.policy.encoding.inputs import Floats, Inputs, Ints, batch_of_one, rows_of
from tapfinger.policy.encoding.rivals import emptiest_first, flat_nodes, match, ranks, starters_of
from tapfinger.policy.encoding.type_features import AMOUNT_UNIT, TYPES, TypeState


class TypeEncoder(StateEncoder):
    """Encodes states of one set of clusters and task types.

    Each array is allocated once and its columns written into it: with few tasks, the number of numpy calls dominates.
    """

    schema = TYPES

    def __init__(
        self,
        context: SchedulerContext,
        pending: int = 10,
        task_types: Sequence[str] = (),
        padded: bool = False,
        known: Mapping[str, Sequence[str]] | None = None,
        who: str = "the model",
    ) -> None:
        """``task_types``: names in the order of the columns; the context's by default.

        ``padded``: whether snapshots keep places without a task, for networks that accept only one size of state.
        ``known`` and ``who``: as in StateEncoder.
        """
        by_name = {t.name: t for t in context.task_types}
        types = [by_name[name] for name in task_types or by_name]
        resources = len(context.resources.names)
        sizes = {"resource": resources, "task type": len(types)}
        super().__init__(sizes, pending, known, who)
        self._resources, self._padded = resources, padded
        self._accelerator = context.resources.accelerator
        self.observer = Observer(context.clusters, types, pending)
        capacity = np.array([c.capacity for c in context.clusters], dtype=np.int64)
        self._size = np.maximum(capacity, 1).astype(np.float32)
        self._capacity = (capacity / AMOUNT_UNIT).astype(np.float32)
        self._widths = {kind: table.width(sizes) for kind, table in TYPES.tables.items()}
        self._writers = {kind: table.writers(sizes) for kind, table in TYPES.tables.items()}

    def encode(self, snapshot: Snapshot) -> EncodedSnapshot:
        """As in StateEncoder."""
        return self._encoded(self.observer.observe(snapshot, self._padded))

    def encode_startable(self, snapshot: Snapshot) -> EncodedSnapshot | None:
        """As in StateEncoder."""
        obs = self.observer.observe(snapshot, self._padded)
        return self._encoded(obs) if obs.startable.any() else None

    def _encoded(self, obs: GraphObs) -> EncodedSnapshot:
        return EncodedSnapshot(obs.task, self.make(batch_of_one(obs)))

    def encode_batch(self, worlds: BatchedWorlds, live: Ints) -> Inputs:
        """As in StateEncoder."""
        return self.make(rows_of(worlds.observations, live))

    def decode(self, inputs: Inputs, cluster: int, place: int, amounts: list[int]) -> Resources:  # noqa: ARG002
        """Amounts already are allocations."""
        return Resources(amounts)

    def decode_batch(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:  # noqa: ARG002
        """Amounts already are allocations."""
        return amounts

    def make(self, obs: Any) -> Inputs:
        """Inputs from ``obs``: arrays with the fields of observation.GraphObs and a leading batch axis."""
        place_mask = obs.task >= 0
        node = np.maximum(obs.node, 0)
        tasks = obs.pending_features  # (B, M, R+T+1)
        nodes = tasks.shape[1]
        flat = flat_nodes(node, nodes)
        minimum = tasks.reshape(-1, tasks.shape[2]).take(flat, axis=0)[..., : self._resources].astype(np.int64)
        minimum *= place_mask[..., None]
        free = obs.cluster_features[:, :, :-1]
        state = self._state(obs, free, node, flat[place_mask])
        pair = self._table("pair", node.shape, state)
        pair *= place_mask[..., None]
        running = obs.running_features.shape[:3]
        return self._select(
            Inputs(
                cluster=self._table("cluster", free.shape[:2], state),
                pending=self._table("pending", tasks.shape[:2], state),
                pending_mask=tasks[:, :, -1] == 0.0,
                running=self._table("running", running, state),
                running_mask=np.arange(running[2]) < obs.running_count[:, :, None],
                node=node,
                place_mask=place_mask,
                pair=pair,
                startable=obs.startable,
                minimum=minimum,
                largest=obs.largest,
                copies=_copies(free[:, :, None], minimum),
                menu=np.empty((*node.shape, 0, 0), dtype=np.float32),
                size=np.empty((*node.shape, 0), dtype=np.int64),
            )
        )

    def _state(self, obs: Any, free: Floats, node: Ints, seen: Ints) -> TypeState:
        """``seen``: flat node of each task, once per pending set that holds it."""
        batch, nodes, _ = obs.pending_features.shape
        order = emptiest_first(free[:, :, self._accelerator])
        rank = ranks(order)
        everywhere, emptier = starters_of(rank, node, obs.startable, nodes)
        can = obs.startable.astype(np.float32)
        return TypeState(
            obs=obs,
            resources=self._resources,
            capacity=self._capacity,
            size=self._size,
            free=free,
            rank=rank,
            eligible=np.bincount(seen, minlength=batch * nodes).reshape(batch, nodes),
            can=can,
            others=everywhere - can,
            emptier=emptier - can,
            matched=match(order, node, obs.startable, nodes),
        )

    def _table(self, kind: str, shape: tuple[int, ...], state: TypeState) -> Floats:
        out = np.empty((*shape, self._widths[kind]), dtype=np.float32)
        write(self._writers[kind], out, state)
        return out


def _copies(free: Floats, minimum: Ints) -> Floats:
    """(B, N, K): number of copies of a task's minimum that fit into the free resources."""
    with np.errstate(divide="ignore"):
        each = np.where(minimum > 0, free // np.maximum(minimum, 1), 1e6)
    return np.asarray(each.min(axis=3), dtype=np.float32).clip(0.0, 1e6)
