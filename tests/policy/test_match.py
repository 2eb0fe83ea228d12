"""The hints by which clusters keep out of each other's way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tapfinger.policy.inputs import emptiest_first, match, pair_features, ranks


def test_emptiest_has_the_oldest_and_the_next_one_the_rest() -> None:
    # Clusters 1 and 2 are equally empty: 1 comes first. Cluster 0 may take only task 0, which is gone by then.
    gpu = np.array([[2.0, 5.0, 5.0]], dtype=np.float32)
    node = np.array([[[0, 0], [0, 1], [0, 1]]])
    startable = np.array([[[True, False], [True, True], [True, True]]])
    assert match(emptiest_first(gpu), node, startable, 2).tolist() == [[[False, False], [True, False], [False, True]]]


@given(st.data())
def test_each_task_and_each_cluster_at_most_once_and_only_what_can_start(data: st.DataObject) -> None:
    clusters, places, nodes = (data.draw(st.integers(1, 5)) for _ in range(3))
    gpu = data.draw(arrays(np.float32, (2, clusters), elements=st.integers(0, 3).map(float)))
    order = np.stack([np.stack([np.arange(max(nodes, places)) for _ in range(clusters)]) for _ in range(2)])
    node = order[..., :places] % nodes
    startable = data.draw(arrays(np.bool_, node.shape)) & (np.arange(places) < nodes)
    rank = emptiest_first(gpu)
    meant = match(rank, node, startable, nodes)
    # One state goes another way than many, to the same end.
    for b in range(2):
        one = slice(b, b + 1)
        np.testing.assert_array_equal(match(rank[one], node[one], startable[one], nodes), meant[one])
    assert not (meant & ~startable).any()
    assert meant.sum(axis=2).max() <= 1
    for b in range(2):
        taken = node[b][meant[b]]
        assert len(set(taken.tolist())) == len(taken)
        # Nobody goes without while a task that it could start is left.
        for n in range(clusters):
            if not meant[b, n].any():
                assert set(node[b, n][startable[b, n]].tolist()) <= set(taken.tolist())


def test_ranks_are_strict() -> None:
    gpu = np.array([[4.0, 4.0, 7.0, 4.0]], dtype=np.float32)
    assert emptiest_first(gpu).tolist() == [[2, 0, 1, 3]]
    assert ranks(emptiest_first(gpu)).tolist() == [[1, 2, 0, 3]]


def test_pair_features_by_hand() -> None:
    gpu = np.array([[8.0, 4.0]], dtype=np.float32)
    node = np.array([[[0, 1], [1, 0]]])  # the second cluster sees only task 1
    mask = np.array([[[True, True], [True, False]]])
    startable = np.array([[[True, True], [True, False]]])
    largest = np.array([[[[2, 8], [2, 8]], [[2, 4], [0, 0]]]])
    found = pair_features(emptiest_first(gpu), node, mask, startable, largest, 2)
    # place, place among startable, startable, alone, others, emptier others, room (2), matched
    assert found[0, 0, 0].tolist() == [0, 0, 1, 1, 0, 0, 0.125, 0.5, 1]
    np.testing.assert_allclose(found[0, 0, 1], [0.1, 0.1, 1, 0, 0.5, 0, 0.125, 0.5, 0])
    np.testing.assert_allclose(found[0, 1, 0], [0, 0, 1, 0, 0.5, 0.5, 0.125, 0.25, 1])
    assert not found[0, 1, 1].any()
