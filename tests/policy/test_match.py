"""The hints by which clusters keep out of each other's way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tapfinger.config import load_scenario
from tapfinger.observation import GraphObs
from tapfinger.policy.encoding.by_type import TypeEncoder
from tapfinger.policy.encoding.inputs import batch_of_one
from tapfinger.policy.encoding.rivals import emptiest_first, match, ranks
from tapfinger.policy.encoding.type_features import PAIR
from tapfinger.workloads.world import build_world


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
    world = build_world(load_scenario("multi-3", ["clusters.edge.count=2"]))
    minimum = np.array([t.minimum for t in world.task_types])
    kinds = np.eye(2, dtype=np.float32)
    mask = np.array([[True, True], [True, False]])  # the second cluster sees only task 1
    obs = GraphObs(
        cluster_features=np.array([[16, 8, 0], [16, 4, 0]], dtype=np.float32),
        pending_features=np.array([[*minimum[0], *kinds[0], 0], [*minimum[1], *kinds[1], 0]], dtype=np.float32),
        running_features=np.zeros((2, 1, 5), dtype=np.float32),
        running_count=np.zeros(2, dtype=np.int64),
        task=np.where(mask, 7, -1),
        node=np.array([[0, 1], [1, -1]]),
        startable=mask,
        largest=np.array([[[2, 8], [2, 8]], [[2, 4], [0, 0]]]),
        waiting=np.array([2, 1]),
        age=np.zeros(2, dtype=np.int64),
        running_progress=np.full((2, 1), -1.0, dtype=np.float32),
        others=np.zeros((2, 2), dtype=np.float32),
        others_lately=np.zeros((2, 2), dtype=np.float32),
        staging=np.zeros((2, 2), dtype=np.int64),
    )
    pair = TypeEncoder(world.context(0)).make(batch_of_one(obs)).pair[0]
    columns = PAIR.columns({"resource": 2})
    expected = {
        "place": [[0, 0.1], [0, 0]],
        "startable_before": [[0, 0.1], [0, 0]],
        "startable": [[1, 1], [1, 0]],
        "only_here": [[1, 0], [0, 0]],
        "other_starters": [[0, 0.5], [0.5, 0]],
        "emptier_starters": [[0, 0], [0.5, 0]],
        "largest": [[[0.125, 0.5], [0.125, 0.5]], [[0.125, 0.25], [0, 0]]],
        "matched": [[1, 0], [1, 0]],
    }
    assert list(expected) == list(columns)
    for name, values in expected.items():
        np.testing.assert_allclose(pair[..., columns[name]].squeeze(), values, err_msg=name)
