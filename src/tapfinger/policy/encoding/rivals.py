"""Which clusters compete for a waiting task, as arrays: ranks, other possible starters, and a simple division."""

from __future__ import annotations

import numpy as np

from tapfinger.policy.encoding.inputs import Bools, Floats, Ints


def starters_of(rank: Ints, node: Ints, startable: Bools, nodes: int) -> tuple[Floats, Floats]:
    """(B, N, K) each: number of clusters that could start the task, and of those with at most this one's rank."""
    batch, clusters, _ = node.shape
    starters = np.zeros((batch, clusters, nodes), dtype=np.float32)
    at = flat_nodes(node, nodes, rank)
    starters.reshape(-1)[at[startable]] = 1.0
    np.cumsum(starters, axis=1, out=starters)
    return starters[:, -1].reshape(-1).take(flat_nodes(node, nodes)), starters.reshape(-1).take(at)


def flat_nodes(node: Ints, nodes: int, cluster: Ints | None = None) -> Ints:
    """Index of each node in the whole batch (B * M), or, with (B, N) ``cluster``, in an array (B, N, M)."""
    batch, clusters, _ = node.shape
    if cluster is not None:
        first = (np.arange(0, batch * clusters, clusters)[:, None] + cluster)[..., None] * nodes
    elif batch == 1:
        return node
    else:
        first = np.arange(0, batch * nodes, nodes)[:, None, None]
    return np.asarray(node + first)


def match(order: Ints, node: Ints, startable: Bools, nodes: int) -> Bools:
    """(B, N, K): a simple division of the tasks among the clusters, at most one each.

    The emptiest cluster gets its oldest startable task, the next one its oldest of the rest, and so on. This is a hint,
    not a command: with it, clusters that decide at the same time can keep out of each other's way.
    """
    meant = np.zeros(startable.shape, dtype=np.bool_)
    if len(order) == 1:  # numpy is slow for a single state
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
    """(B, N): clusters by free accelerators, most first, then by index.

    No two clusters share a rank: empty clusters, which see the same tasks, can tell which of them is meant.
    """
    return np.argsort(-gpu, axis=1, kind="stable")


def ranks(order: Ints) -> Ints:
    """(B, N): position of each cluster in the order."""
    return order.argsort(axis=1)
