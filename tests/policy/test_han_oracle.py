"""Without the self term a layer is torch_geometric's HANConv, on random graphs of one state."""

from __future__ import annotations

import pytest
import torch
from policy.states import random_inputs

from tapfinger.policy.actor_critic import as_tensors
from tapfinger.policy.han import ATTENDING, HanEncoder, HanLayer, Nodes, edges_of

# torch_geometric scripts some of its functions when it is imported, which torch now calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

KINDS = ("cluster", "pending", "running", "shortcut")
PAIRS = (("running", "cluster"), ("pending", "cluster"), ("cluster", "shortcut"))
RELATIONS = [(a, "to", b) for a, b in PAIRS] + [(b, "to", a) for a, b in PAIRS]


def edge_index(inputs):
    """Index pairs of every relation of the single graph, made from the inputs place by place."""
    clusters, places = inputs.node.shape[1:]
    running = inputs.running_mask.shape[2]
    pairs = {
        ("running", "cluster"): [
            (n * running + s, n) for n in range(clusters) for s in range(running) if inputs.running_mask[0, n, s]
        ],
        ("pending", "cluster"): [
            (int(inputs.node[0, n, k]), n) for n in range(clusters) for k in range(places) if inputs.place_mask[0, n, k]
        ],
        ("cluster", "shortcut"): [(n, 0) for n in range(clusters)],
    }
    forward = {(a, "to", b): torch.tensor(v, dtype=torch.long).reshape(-1, 2).T for (a, b), v in pairs.items()}
    return forward | {(b, "to", a): index.flip(0) for (a, _, b), index in forward.items()}


def copy_weights(layer, conv):
    with torch.no_grad():
        for kind in KINDS:
            conv.proj[kind].weight.copy_(layer.project[kind].weight)
            conv.proj[kind].bias.copy_(layer.project[kind].bias)
        for source, _, target in RELATIONS:
            name = f"{source}-{target}"
            if name in ATTENDING:  # elsewhere there is one neighbour, and any weights give the same
                conv.lin_src[f"{source}__to__{target}"].copy_(layer.source[ATTENDING.index(name)].unsqueeze(0))
                conv.lin_dst[f"{source}__to__{target}"].copy_(layer.target[ATTENDING.index(name)].unsqueeze(0))
        conv.k_lin.load_state_dict(layer.semantic.state_dict())
        conv.q.copy_(layer.query.unsqueeze(0))


@pytest.mark.parametrize("seed", range(12))
def test_a_layer_without_self_term_is_hanconv(seed):
    from torch_geometric.nn import HANConv

    torch.manual_seed(seed)
    shape = {"clusters": 1 + seed % 5, "places": 1 + seed % 4, "running": 1 + seed % 3}
    inputs = as_tensors(random_inputs(seed, batch=1, **shape))
    nodes = Nodes(inputs.cluster, inputs.pending, inputs.running, torch.randn(1, 1, 3))
    width = {kind: getattr(nodes, kind).shape[-1] for kind in KINDS}
    layer = HanLayer(width, 16, 4, self_term=False)
    conv = HANConv(width, 16, (list(KINDS), RELATIONS), heads=4)
    copy_weights(layer, conv)

    ours, _ = layer(nodes, edges_of(inputs))
    features = {kind: getattr(nodes, kind).reshape(-1, width[kind]) for kind in KINDS}
    theirs = conv(features, edge_index(inputs))
    # HANConv has no padding: its padded running rows are nodes without edges, whose output nobody reads.
    real = {"running": inputs.running_mask[0].flatten()}
    for kind in KINDS:
        mine, other = getattr(ours, kind).reshape(-1, 16), theirs[kind]
        keep = real.get(kind, torch.ones(len(mine), dtype=torch.bool))
        torch.testing.assert_close(mine[keep], other[keep], atol=1e-5, rtol=1e-5)


def test_attention_sums_to_one_over_real_neighbours_only():
    inputs = as_tensors(random_inputs(3, batch=8))
    torch.manual_seed(0)
    width = {kind: getattr(inputs, kind).shape[-1] for kind in ("cluster", "pending", "running", "pair")}
    encoder = HanEncoder(width, 16, 4, 2)
    _, attention = encoder.nodes(inputs)
    joined = (edges_of(inputs).pending_bias == 0.0).float().unsqueeze(1).expand(-1, 4, -1, -1)
    some_task, some_cluster = joined.amax(dim=3), joined.amax(dim=2)
    assert 0.0 < some_task.mean() < 1.0
    assert 0.0 < some_cluster.mean() < 1.0
    assert len(attention) == 2
    for of_clusters, of_tasks in attention:
        torch.testing.assert_close(of_clusters.sum(dim=3), torch.ones_like(some_task))
        assert (of_clusters[some_task.bool()].masked_select(joined[some_task.bool()] == 0.0) == 0.0).all()
        torch.testing.assert_close(of_tasks.sum(dim=2), some_cluster)
        assert (of_tasks.masked_select(joined == 0.0) == 0.0).all()
