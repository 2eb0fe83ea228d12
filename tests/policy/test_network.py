from __future__ import annotations

import numpy as np
import pytest
import torch
from policy.states import random_inputs

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.policy.ablations import NETWORKS, build
from tapfinger.policy.actor_critic import Outputs, as_tensors, config_for
from tapfinger.policy.encoding.inputs import Inputs

COLUMNS = 17
#: The paper's own form for the three clusters of these states.
PAPER = {"form": "paper", "allocation": "joint", "separate_actors": 3, "transformer_layers": 2}

VARIANTS = [
    ("full", {}),
    ("full", {"menu": 7, "rounds": 2}),
    ("full", {"allocation": "joint", "transformer_layers": 2}),
    ("full", {"separate_actors": 3}),
    ("no-han", {}),
    ("hints-only", {}),
    ("no-pointer", {}),
    ("vanilla", {}),
    ("full", PAPER),
    ("no-han", PAPER),
    ("no-pointer", PAPER),
    ("vanilla", PAPER),
]
EQUIVARIANT = [
    ("full", {}),
    ("full", {"menu": 7, "rounds": 2}),
    ("full", {"allocation": "joint"}),
    ("no-han", {}),
    ("hints-only", {}),
    ("no-pointer", {}),
]


def network(inputs, name="full", seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {name: value for name, value in changes.items() if name != "menu"}  # that is of the inputs
    return build(name, config_for(inputs, 1, **{"hidden": 16, **sizes}))


def run(net, inputs):
    with torch.no_grad():
        return net(as_tensors(Inputs(*map(np.ascontiguousarray, inputs))), columns=COLUMNS)


def assert_same(left, right):
    for name, a, b in zip(Outputs._fields, left, right, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_a_batch_is_its_stacked_singles(name, changes):
    inputs = random_inputs(1, batch=6, menu=changes.get("menu", 0))
    net = network(inputs, name, **changes)
    singles = [run(net, Inputs(*(array[b : b + 1] for array in inputs))) for b in range(6)]
    assert_same(run(net, inputs), Outputs(*(torch.cat(parts) for parts in zip(*singles, strict=True))))


@pytest.mark.parametrize(("name", "changes"), EQUIVARIANT)
def test_permuting_clusters_permutes_outputs(name, changes):
    inputs = random_inputs(2, clusters=4, menu=changes.get("menu", 0))
    net = network(inputs, name, **changes)
    order = [2, 0, 3, 1]
    shared = ("pending", "pending_mask")
    moved = Inputs(**{k: v if k in shared else v[:, order] for k, v in inputs._asdict().items()})
    plain = run(net, inputs)
    expected = Outputs(*(part[:, order] for part in plain[:-1]), value=plain.value)
    assert_same(run(net, moved), expected)


@pytest.mark.parametrize(("name", "changes"), EQUIVARIANT)
def test_permuting_places_permutes_outputs(name, changes):
    inputs = random_inputs(3, menu=changes.get("menu", 0))
    net = network(inputs, name, **changes)
    order = [4, 1, 0, 3, 2]
    placed = ("node", "place_mask", "pair", "startable", "minimum", "largest", "copies", "menu", "size")
    moved = Inputs(**{k: v[:, :, order] if k in placed else v for k, v in inputs._asdict().items()})
    plain = run(net, inputs)
    expected = Outputs(
        plain.task_logits[:, :, [*order, 5]], *(part[:, :, order] for part in plain[1:-1]), value=plain.value
    )
    assert_same(run(net, moved), expected)


def test_permuting_nodes_changes_nothing():
    inputs = random_inputs(4)
    net = network(inputs)
    nodes = inputs.pending.shape[1]
    order = np.random.default_rng(0).permutation(nodes)
    where = np.argsort(order)
    moved = inputs._replace(
        pending=inputs.pending[:, order], pending_mask=inputs.pending_mask[:, order], node=where[inputs.node]
    )
    assert_same(run(net, moved), run(net, inputs))


def pad(array, axis, extra, fill):
    shape = list(array.shape)
    shape[axis] = extra
    return np.concatenate([array, np.full(shape, fill, dtype=array.dtype)], axis=axis)


@pytest.mark.parametrize(("name", "changes"), EQUIVARIANT)
def test_more_padding_changes_nothing_whatever_it_holds(name, changes):
    inputs = random_inputs(5, menu=changes.get("menu", 0))
    net = network(inputs, name, **changes)
    padded = Inputs(
        cluster=inputs.cluster,
        pending=pad(inputs.pending, 1, 4, 50.0),
        pending_mask=pad(inputs.pending_mask, 1, 4, False),
        running=pad(inputs.running, 2, 3, -50.0),
        running_mask=pad(inputs.running_mask, 2, 3, False),
        **{
            name: pad(getattr(inputs, name), 2, 2, fill)
            for name, fill in {
                "node": 0,
                "place_mask": False,
                "pair": 50.0,
                "startable": False,
                "minimum": 0,
                "largest": 0,
                "copies": 0.0,
                "menu": 50.0,
                "size": 0,
            }.items()
        },
    )
    plain, out = run(net, inputs), run(net, padded)
    assert torch.isneginf(out.task_logits[:, :, 5:7]).all()
    same = Outputs(out.task_logits[:, :, [*range(5), 7]], *(part[:, :, :5] for part in out[1:-1]), value=out.value)
    assert_same(same, plain)


def test_what_dummies_hold_does_not_matter():
    inputs = random_inputs(6)
    net = network(inputs)
    dirty = inputs._replace(
        pending=np.where(inputs.pending_mask[..., None], inputs.pending, np.float32(9.0)),
        running=np.where(inputs.running_mask[..., None], inputs.running, np.float32(9.0)),
        pair=np.where(inputs.place_mask[..., None], inputs.pair, np.float32(9.0)),
    )
    plain, out = run(net, inputs), run(net, dirty)
    torch.testing.assert_close(out.task_logits, plain.task_logits)
    torch.testing.assert_close(out.value, plain.value)
    real = torch.from_numpy(inputs.place_mask)
    torch.testing.assert_close(out.amount_logits[real], plain.amount_logits[real])


def two_tasks_alike(seed=7):
    """One cluster, two waiting tasks that differ in nothing but their features."""
    inputs = random_inputs(seed, batch=1, clusters=1, places=2, nodes=2)
    on = np.ones_like(inputs.place_mask)
    return inputs._replace(
        pending_mask=np.ones_like(inputs.pending_mask),
        node=np.array([[[0, 1]]]),
        place_mask=on,
        startable=on,
        pair=np.repeat(inputs.pair[:, :, :1], 2, axis=2),
        minimum=np.full_like(inputs.minimum, 1),
        largest=np.full_like(inputs.largest, 8),
    )


@pytest.mark.parametrize("name", ["full", "no-han"])
def test_pending_tasks_of_different_type_differ(name):
    inputs = two_tasks_alike()
    nets = [network(inputs, name, seed) for seed in range(3)]
    places = [net.encoder(as_tensors(inputs)).places for net in nets]
    assert max((place[0, 0, 0] - place[0, 0, 1]).abs().max() for place in places) > 0.01
    outs = [run(net, inputs) for net in nets]
    assert max(abs(out.task_logits[0, 0, 0] - out.task_logits[0, 0, 1]) for out in outs) > 1e-3
    assert max((out.amount_logits[0, 0, 0] - out.amount_logits[0, 0, 1]).abs().max() for out in outs) > 1e-3
    twins = inputs._replace(pending=np.repeat(inputs.pending[:, :1], 2, axis=1))
    for net in nets:
        out = run(net, twins)
        torch.testing.assert_close(out.task_logits[0, 0, 0], out.task_logits[0, 0, 1])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_critic_can_be_negative_and_positive(name):
    inputs = random_inputs(8, batch=16)
    values = torch.cat([run(network(inputs, name, seed=seed), inputs).value for seed in range(8)])
    assert values.min() < 0.0 < values.max()


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_an_empty_system_and_its_gradients_are_finite(name, changes):
    inputs = random_inputs(9)
    nothing = inputs._replace(
        pending_mask=np.zeros_like(inputs.pending_mask),
        running_mask=np.zeros_like(inputs.running_mask),
        node=np.zeros_like(inputs.node),
        place_mask=np.zeros_like(inputs.place_mask),
        startable=np.zeros_like(inputs.startable),
        minimum=np.zeros_like(inputs.minimum),
        largest=np.zeros_like(inputs.largest),
    )
    net = network(inputs, name, **changes)
    out = net(as_tensors(nothing))
    assert torch.isneginf(out.task_logits[:, :, :-1]).all()
    assert torch.isfinite(out.task_logits[:, :, -1]).all()
    (torch.log_softmax(out.task_logits, 2)[:, :, -1].sum() + out.value.sum() + out.amount_logits.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_every_parameter_of_the_full_network_learns():
    inputs = random_inputs(10)
    net = network(inputs)
    out = net(as_tensors(inputs))
    finite = out.task_logits.masked_fill(torch.isneginf(out.task_logits), 0.0)
    sum(part.square().sum() for part in (finite, *out[1:])).backward()
    idle = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # The shortcut enters with zero features: the first layer's matrices for it have nothing to multiply.
    assert idle == ["encoder.layers.0.project.shortcut.weight", "encoder.layers.0.own.shortcut.weight"]


def test_the_number_of_columns_follows_the_largest_amount_and_changes_no_score():
    inputs = random_inputs(11, units=12)
    net = network(inputs)
    free = net(as_tensors(inputs))
    assert free.amount_logits.shape[-1] == inputs.largest.max() + 1
    fixed = net(as_tensors(inputs), columns=40)
    torch.testing.assert_close(fixed.amount_logits[..., : free.amount_logits.shape[-1]], free.amount_logits)


@pytest.mark.parametrize("resources", [1, 3])
def test_the_factored_head_takes_any_number_of_resources(resources):
    inputs = random_inputs(12, resources=resources, units=200)
    torch.manual_seed(0)
    net = build("full", config_for(inputs, 0, hidden=16))
    out = net(as_tensors(inputs))
    assert out.amount_logits.shape == (4, 3, 5, resources, inputs.largest.max() + 1)
    assert torch.isfinite(out.amount_logits).all()


def test_separate_actors_give_equal_clusters_different_answers():
    inputs = random_inputs(13, batch=1)
    alike = Inputs(
        **{
            k: v if k in ("pending", "pending_mask") else np.repeat(v[:, :1], 3, axis=1)
            for k, v in inputs._asdict().items()
        }
    )
    shared, own = run(network(alike), alike), run(network(alike, separate_actors=3), alike)
    torch.testing.assert_close(shared.task_logits[:, 0], shared.task_logits[:, 1])
    assert abs(own.task_logits[0, 0, -1] - own.task_logits[0, 1, -1]) > 1e-4


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"hidden": 30}, ConfigError, "multiple of heads"),
        ({"allocation": "jointt"}, UnknownNameError, "Did you mean 'joint'"),
        ({"allocation": "joint", "resources": 3}, ConfigError, "needs 2 resources"),
        ({"accelerator": 2}, ConfigError, "not an index"),
        ({"preset": "gpu"}, UnknownNameError, "preset"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(changes, error, says):
    with pytest.raises(error, match=says):
        config_for(random_inputs(0), **{"accelerator": 1, **changes})


def test_the_paper_preset_has_the_papers_sizes():
    config = config_for(random_inputs(0), 1, "paper")
    assert (config.hidden, config.heads, config.layers, config.transformer_layers) == (256, 4, 6, 2)
    assert type(config)(**config.as_dict()) == config
