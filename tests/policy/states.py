"""Random network inputs for the tests of the policy."""

from __future__ import annotations

import numpy as np

from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.encoding.type_features import TYPES
from tapfinger.profiles.greedy_options import ADVISERS


def random_inputs(seed, batch=4, clusters=3, places=5, nodes=None, running=4, resources=2, units=16, menu=0):
    """Consistent random inputs: every task a node, shared by the clusters it waits for.

    ``menu``: features of a size, if sizes are chosen from menus.
    """
    rng = np.random.default_rng(seed)
    nodes = nodes or clusters * places
    node = np.zeros((batch, clusters, places), dtype=np.int64)
    place_mask = np.zeros((batch, clusters, places), dtype=np.bool_)
    pending_mask = np.zeros((batch, nodes), dtype=np.bool_)
    for b in range(batch):
        count = rng.integers(0, nodes + 1)
        pending_mask[b, :count] = True
        for n in range(clusters):
            mine = np.flatnonzero(rng.random(count) < 0.6)[:places]
            node[b, n, : len(mine)] = mine
            place_mask[b, n, : len(mine)] = True
    startable = place_mask & (rng.random(place_mask.shape) < 0.7)
    minimum = rng.integers(0, 4, (*node.shape, resources)) * place_mask[..., None]
    largest = np.minimum(minimum + rng.integers(0, units, minimum.shape), units) * startable[..., None]

    if menu:  # one amount: the place on a menu of six sizes, of which the first ones fit
        minimum = np.zeros((*node.shape, 1), dtype=np.int64)
        largest = rng.integers(0, 6, minimum.shape) * startable[..., None]

    tables = (PROFILES if menu else TYPES).tables
    sizes = {"resource": resources, "task type": 2, "adviser": len(ADVISERS)}
    width = {kind: table.width(sizes) for kind, table in tables.items()}

    def features(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return Inputs(
        cluster=features(batch, clusters, width["cluster"]),
        pending=features(batch, nodes, width["pending"]),
        pending_mask=pending_mask,
        running=features(batch, clusters, running, width["running"]),
        running_mask=rng.random((batch, clusters, running)) < 0.5,
        node=node,
        place_mask=place_mask,
        pair=features(batch, clusters, places, width["pair"]),
        startable=startable,
        minimum=minimum,
        largest=largest,
        copies=rng.integers(0, 9, node.shape).astype(np.float32) * startable,
        menu=features(*node.shape, 6 if menu else 0, menu),
        size=np.zeros((*node.shape, 6 if menu else 0), dtype=np.int64),
    )
