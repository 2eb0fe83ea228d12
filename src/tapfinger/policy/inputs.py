"""Observation -> arrays of the network: one schema for training and running, numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

#: Raised whenever the meaning or number of a column changes; checkpoints carry it and refuse another.
SCHEMA = "types-3"

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Amounts, counts and slots are divided by these, so that inputs are about one.
AMOUNT_UNIT = 16.0
_COUNT = 10.0
_SLOTS = 10.0


class Inputs(NamedTuple):
    """A batch of B states: N clusters, K pending places, M pending nodes, S running per cluster, R resources."""

    cluster: Any  # float32 (B, N, Fc)
    pending: Any  # float32 (B, M, Fp): one node per waiting task, shared by its clusters
    pending_mask: Any  # bool (B, M): real tasks
    running: Any  # float32 (B, N, S, Fr)
    running_mask: Any  # bool (B, N, S)
    node: Any  # int64 (B, N, K): index into M, 0 where there is none
    place_mask: Any  # bool (B, N, K): places with a task
    pair: Any  # float32 (B, N, K, Fq): features of (cluster, task)
    startable: Any  # bool (B, N, K)
    minimum: Any  # int64 (B, N, K, R): lower corner of the legal allocations
    largest: Any  # int64 (B, N, K, R): upper corner, 0 where not startable


class InputMaker:
    """Turns observations of one set of clusters and types into network inputs."""

    def __init__(self, capacity: Ints, minimum: Ints, accelerator: int) -> None:
        """``capacity`` (N, R) and ``minimum`` (T, R); ``accelerator``: index of the gpu."""
        self._capacity = capacity.astype(np.float32)
        self._types, self._resources = minimum.shape
        self._minimum = minimum
        self._accelerator = accelerator

    def make(self, obs: Any) -> Inputs:
        """``obs``: sim.layout.Observations, or an observation.GraphObs with a leading batch axis."""
        amounts = self._resources
        place_mask = obs.task >= 0
        node = np.maximum(obs.node, 0)
        real = obs.pending_features[:, :, -1] == 0.0
        adjacency = self._adjacency(node, place_mask, real.shape[1])
        running_mask = np.arange(obs.running_features.shape[2]) < obs.running_count[:, :, None]
        kind = obs.pending_features[:, :, amounts : amounts + self._types].argmax(axis=2)  # (B, M)
        minimum = np.take_along_axis(
            self._minimum[kind][:, None], node[:, :, :, None], axis=2
        )  # (B, N, K, R) of the task in each place
        pending = np.concatenate(
            [
                obs.pending_features[:, :, :amounts] / AMOUNT_UNIT,
                obs.pending_features[:, :, amounts:-1],
                np.minimum(obs.age / _SLOTS, 3.0)[:, :, None],
                adjacency.mean(axis=1)[:, :, None],
            ],
            axis=2,
            dtype=np.float32,
        )
        running = obs.running_features.copy()
        running[..., :amounts] /= AMOUNT_UNIT
        running[..., -1] = np.minimum(running[..., -1] / _SLOTS, 3.0)
        return Inputs(
            cluster=self._cluster(obs),
            pending=pending,
            pending_mask=real,
            running=running,
            running_mask=running_mask,
            node=node,
            place_mask=place_mask,
            pair=pair_features(
                obs.cluster_features[:, :, self._accelerator],
                node,
                place_mask,
                obs.startable,
                obs.largest,
                real.shape[1],
            ),
            startable=obs.startable,
            minimum=np.where(place_mask[..., None], minimum, 0),
            largest=obs.largest,
        )

    def _adjacency(self, node: Ints, place_mask: Bools, nodes: int) -> Floats:
        """(B, N, M): 1 where the node is in the cluster's pending set."""
        batch, clusters, _ = node.shape
        adjacency = np.zeros((batch, clusters, nodes), dtype=np.float32)
        b, n, k = np.nonzero(place_mask)
        adjacency[b, n, node[b, n, k]] = 1.0
        return adjacency

    def _cluster(self, obs: Any) -> Floats:
        free = obs.cluster_features[:, :, :-1]
        capacity = np.broadcast_to(self._capacity, free.shape)
        fullness = free / np.maximum(capacity, 1.0)
        queue = np.minimum(obs.waiting / _COUNT, 3.0)[..., None]
        backlog = np.minimum(obs.cluster_features[:, :, -1:] / _COUNT, 3.0)
        count = np.minimum(obs.running_count / _COUNT, 3.0)[..., None]
        emptier = emptier_first(free[..., self._accelerator]).mean(axis=2, dtype=np.float32)[..., None]
        return np.concatenate(
            [free / AMOUNT_UNIT, capacity / AMOUNT_UNIT, fullness, queue, backlog, count, emptier], axis=2, dtype=np.float32
        )


def pair_features(gpu: Floats, node: Ints, place_mask: Bools, startable: Bools, largest: Ints, nodes: int) -> Floats:
    """Of every (cluster, pending task): what a cluster must know not to want what another will get.

    Place in the queue, and among those that can start; whether it can start; how many other clusters could start it,
    and how many of them are emptier; room; whether the two are matched. ``gpu`` (B, N): free accelerators.
    """
    batch, clusters, places = node.shape
    can = np.zeros((batch, clusters, nodes), dtype=np.float32)
    b, n, k = np.nonzero(startable)
    can[b, n, node[b, n, k]] = 1.0
    starters = np.broadcast_to(can.sum(axis=1)[:, None], can.shape)
    others = np.take_along_axis(starters, node, axis=2) - startable
    emptier = np.take_along_axis(emptier_first(gpu).astype(np.float32) @ can, node, axis=2)
    parts = [
        np.broadcast_to(np.arange(places, dtype=np.float32) / _COUNT, node.shape),
        (np.cumsum(startable, axis=2) - startable) / _COUNT,
        startable,
        others == 0,
        others / clusters,
        emptier / clusters,
    ]
    meant = match(gpu, node, startable, nodes)[..., None]
    pair = np.concatenate([np.stack(parts, axis=3), largest / AMOUNT_UNIT, meant], axis=3, dtype=np.float32)
    return np.where(place_mask[..., None], pair, np.float32(0.0))


def match(gpu: Floats, node: Ints, startable: Bools, nodes: int) -> Bools:
    """(B, N, K): a simple division of the tasks among the clusters, each at most one.

    The emptiest cluster has its oldest task that can start, the next one its oldest of the rest, and so on. A hint, no
    order: with it, clusters that decide at the same time can keep out of each other's way.
    """
    batch, clusters, _ = node.shape
    rows, order = np.arange(batch), np.argsort(-gpu, axis=1, kind="stable")
    taken = np.zeros((batch, nodes), dtype=np.bool_)
    meant = np.zeros(startable.shape, dtype=np.bool_)
    for rank in range(clusters):
        n = order[:, rank]
        mine = node[rows, n]
        left = startable[rows, n] & ~taken[rows[:, None], mine]
        place = left.argmax(axis=1)
        found = left[rows, place]
        meant[rows, n, place] = found
        taken[rows, mine[rows, place]] |= found
    return meant


def emptier_first(gpu: Floats) -> Bools:
    """(B, N, N'): whether N' comes before N, by free accelerators and then by index.

    No two clusters have the same rank: empty ones, which see the same tasks, can tell which of them is meant.
    """
    index = np.arange(gpu.shape[1])
    return np.asarray(
        (gpu[:, None, :] > gpu[:, :, None]) | ((gpu[:, None, :] == gpu[:, :, None]) & (index < index[:, None]))
    )


def batch_of_one(obs: Any) -> Any:
    """A single GraphObs with a leading batch axis."""
    return type(obs)(**{name: getattr(obs, name)[None] for name in obs.__dataclass_fields__})


def trim(inputs: Inputs) -> Inputs:
    """Only as many nodes, places and running rows as the fullest state has: padding costs as much as tasks do."""
    nodes = _used(inputs.pending_mask.any(axis=0))
    places = _used(inputs.place_mask.any(axis=(0, 1)))
    running = _used(inputs.running_mask.any(axis=(0, 1)))
    return inputs._replace(
        pending=inputs.pending[:, :nodes],
        pending_mask=inputs.pending_mask[:, :nodes],
        running=inputs.running[:, :, :running],
        running_mask=inputs.running_mask[:, :, :running],
        node=inputs.node[:, :, :places],
        place_mask=inputs.place_mask[:, :, :places],
        pair=inputs.pair[:, :, :places],
        startable=inputs.startable[:, :, :places],
        minimum=inputs.minimum[:, :, :places],
        largest=inputs.largest[:, :, :places],
    )


def _used(column: Bools) -> int:
    """Up to and with the last that is true; at least one, since some operations cannot do without."""
    return max(1, int(np.flatnonzero(column)[-1]) + 1 if column.any() else 1)
