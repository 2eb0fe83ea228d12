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


class Columns(NamedTuple):
    """Columns of each kind of features."""

    cluster: tuple[int, ...]
    pending: tuple[int, ...]
    pair: tuple[int, ...]


#: What tells a cluster of the others without a graph: its rank, who else sees or could start a task, the match.
HINTS = Columns(cluster=(-1,), pending=(-1,), pair=(3, 4, 5, -1))


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
    copies: Any  # float32 (B, N, K): how many copies of the task's minimum fit, the prior of Bayes' rule
    # With a menu there is one amount (R = 1), the place on it; without, these are empty.
    menu: Any  # float32 (B, N, K, C, Fm): features of the sizes that fit, fastest first
    size: Any  # int64 (B, N, K, C): which sizes these are, for the way back to allocations


class InputMaker:
    """Turns observations of one set of clusters and types into network inputs.

    Arrays are made once and their columns written into them: with few tasks, the number of numpy calls is what costs.
    """

    def __init__(self, capacity: Ints, minimum: Ints, accelerator: int) -> None:
        """``capacity`` (N, R) and ``minimum`` (T, R); ``accelerator``: index of the gpu."""
        types, amounts = minimum.shape
        self._resources = amounts
        self._accelerator = accelerator
        self._size = np.maximum(capacity, 1).astype(np.float32)
        #: Cluster features with those columns filled that never change.
        self._clusters = np.zeros((len(capacity), 3 * amounts + 4), dtype=np.float32)
        self._clusters[:, amounts : 2 * amounts] = capacity / AMOUNT_UNIT
        #: What each column of a task's features is divided by; the last one is a running task's slots.
        self._units = np.array([AMOUNT_UNIT] * amounts + [1.0] * types + [_SLOTS], dtype=np.float32)

    def make(self, obs: Any) -> Inputs:
        """``obs``: sim.layout.Observations, or an observation.GraphObs with a leading batch axis."""
        amounts = self._resources
        place_mask = obs.task >= 0
        node = np.maximum(obs.node, 0)
        tasks = obs.pending_features  # (B, M, R+T+1)
        flat = _flat(node, tasks.shape[1])
        order = emptiest_first(obs.cluster_features[:, :, self._accelerator])
        running = obs.running_features / self._units
        np.minimum(running[..., -1], 3.0, out=running[..., -1])
        minimum = tasks.reshape(-1, tasks.shape[2]).take(flat, axis=0)[..., :amounts].astype(np.int64)
        minimum *= place_mask[..., None]
        return Inputs(
            cluster=self._cluster(obs, order),
            pending=self._pending(obs, flat[place_mask]),
            pending_mask=tasks[:, :, -1] == 0.0,
            running=running,
            running_mask=np.arange(running.shape[2]) < obs.running_count[:, :, None],
            node=node,
            place_mask=place_mask,
            pair=pair_features(order, node, place_mask, obs.startable, obs.largest, tasks.shape[1]),
            startable=obs.startable,
            minimum=minimum,
            largest=obs.largest,
            copies=_copies(obs.cluster_features[:, :, None, :-1], minimum),
            menu=np.empty((*node.shape, 0, 0), dtype=np.float32),
            size=np.empty((*node.shape, 0), dtype=np.int64),
        )

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:  # noqa: ARG002 - as with a menu
        """Amounts are allocations."""
        return amounts

    def _pending(self, obs: Any, seen: Ints) -> Floats:
        """``seen``: flat node of each task in each pending set that it is in."""
        batch, nodes, width = obs.pending_features.shape
        pending = np.empty((batch, nodes, width + 1), dtype=np.float32)
        np.divide(obs.pending_features[..., :-1], self._units[:-1], out=pending[..., :-2])
        np.minimum(obs.age / _SLOTS, 3.0, out=pending[..., -2], casting="same_kind")
        clusters = np.bincount(seen, minlength=batch * nodes).reshape(batch, nodes)
        np.divide(clusters, len(self._clusters), out=pending[..., -1], casting="same_kind")
        return pending

    def _cluster(self, obs: Any, order: Ints) -> Floats:
        amounts, free = self._resources, obs.cluster_features[:, :, :-1]
        batch, clusters, _ = free.shape
        features = np.empty((batch, *self._clusters.shape), dtype=np.float32)
        features[...] = self._clusters
        np.divide(free, AMOUNT_UNIT, out=features[..., :amounts])
        np.divide(free, self._size, out=features[..., 2 * amounts : 3 * amounts])
        features[..., -4] = obs.waiting
        features[..., -3] = obs.cluster_features[:, :, -1]
        features[..., -2] = obs.running_count
        counts = features[..., -4:-1]
        np.minimum(np.divide(counts, _COUNT, out=counts), 3.0, out=counts)
        np.divide(ranks(order), clusters, out=features[..., -1], casting="same_kind")
        return features


def pair_features(order: Ints, node: Ints, place_mask: Bools, startable: Bools, largest: Ints, nodes: int) -> Floats:
    """Of every (cluster, pending task): what a cluster must know not to want what another will get.

    Place in the queue, and among those that can start; whether it can start; how many other clusters could start it,
    and how many of them are emptier; room; whether the two are matched. ``order`` (B, N): clusters, emptiest first.
    """
    clusters, places = node.shape[1:]
    everywhere, emptier = starters_of(order, node, startable, nodes)
    pair = np.empty((*node.shape, 7 + largest.shape[3]), dtype=np.float32)
    pair[..., 0] = np.arange(places)
    pair[..., 2] = startable
    can, others = pair[..., 2], pair[..., 4:6]
    np.subtract(can.cumsum(axis=2), can, out=pair[..., 1])
    pair[..., :2] /= _COUNT
    others[..., 0] = everywhere
    others[..., 1] = emptier
    others -= pair[..., 2:3]
    np.equal(others[..., 0], 0.0, out=pair[..., 3])
    others /= clusters
    pair[..., 6:-1] = largest
    pair[..., 6:-1] /= AMOUNT_UNIT
    pair[..., -1] = match(order, node, startable, nodes)
    pair *= place_mask[..., None]
    return pair


def _copies(free: Floats, minimum: Ints) -> Floats:
    """(B, N, K): how many copies of a task's minimum fit in what is free."""
    with np.errstate(divide="ignore"):
        each = np.where(minimum > 0, free // np.maximum(minimum, 1), 1e6)
    return np.asarray(each.min(axis=3), dtype=np.float32).clip(0.0, 1e6)


def starters_of(order: Ints, node: Ints, startable: Bools, nodes: int) -> tuple[Floats, Floats]:
    """(B, N, K) each: how many clusters could start the task, and how many of those up to and with this one's rank."""
    batch, clusters, _ = node.shape
    starters = np.zeros((batch, clusters, nodes), dtype=np.float32)
    at = _flat(node, nodes, ranks(order))
    starters.reshape(-1)[at[startable]] = 1.0
    np.cumsum(starters, axis=1, out=starters)
    return starters[:, -1].reshape(-1).take(_flat(node, nodes)), starters.reshape(-1).take(at)


def _flat(node: Ints, nodes: int, cluster: Ints | None = None) -> Ints:
    """Index of each node among those of the whole batch (B * M), or with (B, N) ``cluster`` in an array (B, N, M)."""
    batch, clusters, _ = node.shape
    if cluster is not None:
        first = (np.arange(0, batch * clusters, clusters)[:, None] + cluster)[..., None] * nodes
    elif batch == 1:
        return node
    else:
        first = np.arange(0, batch * nodes, nodes)[:, None, None]
    return np.asarray(node + first)


def match(order: Ints, node: Ints, startable: Bools, nodes: int) -> Bools:
    """(B, N, K): a simple division of the tasks among the clusters, each at most one.

    The emptiest cluster has its oldest task that can start, the next one its oldest of the rest, and so on. A hint, no
    order: with it, clusters that decide at the same time can keep out of each other's way.
    """
    meant = np.zeros(startable.shape, dtype=np.bool_)
    if len(order) == 1:  # numpy is slow where there is one state to go through
        _match_one(order[0].tolist(), node[0].tolist(), startable[0].tolist(), meant[0])
        return meant
    rows = np.arange(len(order))
    taken = np.zeros((len(order), nodes), dtype=np.bool_)
    for n in order.T:
        mine = node[rows, n]
        left = startable[rows, n] & ~taken[rows[:, None], mine]
        place = left.argmax(axis=1)
        found = left[rows, place]
        meant[rows, n, place] = found
        taken[rows, mine[rows, place]] |= found
    return meant


def _match_one(order: list[int], node: list[list[int]], startable: list[list[bool]], meant: Bools) -> None:
    taken: set[int] = set()
    for n in order:
        for place, can in enumerate(startable[n]):
            if can and node[n][place] not in taken:
                taken.add(node[n][place])
                meant[n, place] = True
                break


def emptiest_first(gpu: Floats) -> Ints:
    """(B, N): clusters by free accelerators, most first, and then by index.

    No two clusters have the same rank: empty ones, which see the same tasks, can tell which of them is meant.
    """
    return np.argsort(-gpu, axis=1, kind="stable")


def ranks(order: Ints) -> Ints:
    """(B, N): which place each cluster has in the order."""
    return order.argsort(axis=1)


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
        copies=inputs.copies[:, :, :places],
        menu=inputs.menu[:, :, :places],
        size=inputs.size[:, :, :places],
    )


def _used(column: Bools) -> int:
    """Up to and with the last that is true; at least one, since some operations cannot do without."""
    return max(1, int(np.flatnonzero(column)[-1]) + 1 if column.any() else 1)
