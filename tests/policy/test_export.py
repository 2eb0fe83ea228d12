"""An exported model says what the network says, holds its card, and acts as the distributions do."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from policy.models import EAGER, small_network

from tapfinger.errors import CheckpointMismatch
from tapfinger.policy import export as exporting
from tapfinger.policy import exported
from tapfinger.policy.actions import Scores, best_actions
from tapfinger.policy.actor_critic import Outputs, as_tensors
from tapfinger.policy.distributions import draw
from tapfinger.policy.export import export, random_inputs
from tapfinger.policy.exported import load_model
from tapfinger.policy.files import change_card

#: The paper's own form for the three clusters.
PAPER = {"form": "paper", "allocation": "joint", "separate_actors": 3, "transformer_layers": 2}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("full", {"layers": 2}),
        ("full", {"allocation": "joint"}),
        ("full", {"separate_actors": 3}),
        ("no-han", {}),
        ("hints-only", {}),
        ("no-pointer", {}),
        ("vanilla", {}),
        ("full", PAPER),
        ("no-han", PAPER),
        ("no-pointer", PAPER),
        ("vanilla", PAPER),
    ],
)
def test_agrees_with_torch_and_holds_its_card(name, changes, tmp_path):
    network, config, card = small_network(network=name, void=0.0, **changes)
    network.train()
    path = export(network, config, card, tmp_path / "sub" / "m.onnx")
    assert network.training
    assert sorted(p.name for p in path.parent.iterdir()) == ["m.card.json", "m.onnx"]
    model = load_model(str(path))
    assert (model.card.network, model.card.config) == (name, config.as_dict())
    clusters = config.separate_actors or 5
    places, running = (config.pending, config.running) if name == "vanilla" else (7, 3)
    inputs = random_inputs(config, 99, 2, clusters, places, 17, running, 16)
    with torch.no_grad():
        want = network(as_tensors(inputs))
    got = model.run(inputs)
    for field, mine in got._asdict().items():
        np.testing.assert_allclose(mine, getattr(want, field).numpy(), rtol=1e-4, atol=1e-4, err_msg=field)
    # And whoever looks at whom, where there is a graph.
    assert model.layers == (config.layers if name in ("full", "no-pointer") else 0)
    if model.layers:
        with torch.no_grad():
            attention = network.encoder(as_tensors(inputs)).attention
        looks = np.array([[weights.numpy() for weights in layer] for layer in attention])
        np.testing.assert_allclose(model.attention(inputs), looks, atol=1e-5)
    # Same choices from the same scores.
    actions, terms = draw(want, as_tensors(inputs), config.accelerator)
    acts = best_actions(Scores(*(t.numpy() for t in want[:4])), inputs, config.accelerator)
    np.testing.assert_array_equal(acts.place, actions.place.numpy())
    np.testing.assert_array_equal(acts.amounts, actions.amounts.numpy())
    np.testing.assert_allclose(acts.score, terms.task.exp().numpy(), rtol=1e-5)


@pytest.mark.parametrize("resources", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_decoding_equals_draw_on_strong_scores(resources, seed):
    # Far from zero, so that the interaction between amounts decides.
    _, config, _ = small_network()
    accelerator = seed % resources
    config = type(config)(**{**config.as_dict(), "resources": resources, "accelerator": accelerator})
    inputs = random_inputs(config, seed, 5, 4, 6, 9, 3, 12)
    rng = np.random.default_rng(seed)
    shape = (5, 4, 6, resources, 13)
    task = np.where(inputs.startable, rng.normal(size=inputs.startable.shape), -np.inf)
    scores = Scores(
        np.concatenate([task, rng.normal(size=(5, 4, 1)) - 1.0], axis=2).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=(*shape, 4)).astype(np.float32) * 3,
        rng.normal(size=(*shape, 4)).astype(np.float32) * 3,
    )
    outputs = Outputs(*(torch.from_numpy(a) for a in scores), torch.zeros(5))
    actions, terms = draw(outputs, as_tensors(inputs), accelerator)
    acts = best_actions(scores, inputs, accelerator)
    np.testing.assert_array_equal(acts.place, actions.place.numpy())
    np.testing.assert_array_equal(acts.amounts, actions.amounts.numpy())
    np.testing.assert_allclose(acts.score, terms.task.exp().numpy(), rtol=1e-5)
    assert (acts.place < 6).any()
    assert (acts.place == 6).any()
    # Drawn tasks are startable or void, too, and come as often as their scores say.
    counts = np.zeros_like(task)
    for _ in range(50):
        drawn = best_actions(scores, inputs, accelerator, rng)
        b, n = np.nonzero(drawn.place < 6)
        assert inputs.startable[b, n, drawn.place[b, n]].all()
        np.add.at(counts, (b, n, drawn.place[b, n]), 1)
    likely = np.exp(task) / (np.exp(task).sum(axis=2, keepdims=True) + np.exp(scores.task_logits[..., -1:]))
    assert np.corrcoef(counts[inputs.startable], likely[inputs.startable])[0, 1] > 0.9


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_network_gone_wrong_is_void_or_legal(wrong):
    _, config, _ = small_network()
    inputs = random_inputs(config, 1, 3, 4, 6, 9, 3, 12)
    shape = (3, 4, 6, 2, 5)  # and too few columns for the amounts
    scores = Scores(
        np.full((3, 4, 7), wrong, dtype=np.float32),
        np.full(shape, wrong, dtype=np.float32),
        np.zeros((*shape, 2), dtype=np.float32),
        np.zeros((*shape, 2), dtype=np.float32),
    )
    assert (best_actions(scores, inputs, 1).place == 6).all()
    first = np.where(inputs.startable, 0.0, -np.inf)
    acts = best_actions(
        scores._replace(task_logits=np.concatenate([first, np.full((3, 4, 1), -50.0)], axis=2)), inputs, 1
    )
    if np.isnan(wrong):  # amounts that are no numbers count as much as such tasks
        assert (acts.place == 6).all()
        assert (np.isnan(acts.score) == inputs.startable.any(axis=2)).all()
        return
    b, n = np.nonzero(acts.place < 6)
    assert len(b)
    chosen = acts.amounts[b, n]
    assert (chosen >= inputs.minimum[b, n, acts.place[b, n]]).all()
    assert (chosen <= inputs.largest[b, n, acts.place[b, n]]).all()


def test_a_graph_that_does_not_agree_is_not_written(tmp_path, monkeypatch):
    network, config, card = small_network()
    other = small_network(seed=1)[0]
    real = exporting.graph_of
    monkeypatch.setattr(exporting, "graph_of", lambda _, *sizes: real(other, *sizes))
    with pytest.raises(CheckpointMismatch, match="differs from the network's"):
        export(network, config, card, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_ships_under_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(exported, "resources", SimpleNamespace(files=lambda _: tmp_path))
    (tmp_path / "models").mkdir()
    network, config, card = small_network(void=EAGER)
    assert export(network, config, card) == tmp_path / "models" / "small-full.onnx"


def test_another_card_leaves_the_graph_as_it_is(tmp_path):
    network, config, card = small_network(void=EAGER)
    path = export(network, config, card, tmp_path / "m.onnx")
    before, graph = load_model(str(path)), path.read_bytes()
    change_card(path, replace(before.card, evaluation={"mean": 1.5, "words": "x" * 500}))
    assert load_model(str(path)).card == replace(before.card, evaluation={"mean": 1.5, "words": "x" * 500})
    change_card(path, before.card)
    assert load_model(str(path)).card == before.card
    assert path.read_bytes() == graph


def test_a_file_with_its_card_inside_still_runs(tmp_path):
    network, config, card = small_network(void=EAGER)
    path = export(network, config, card, tmp_path / "m.onnx")
    wanted, graph = load_model(str(path)).card, path.read_bytes()
    # As they were written before cards lay beside the model, and before features had names.
    old = json.loads(wanted.to_json()) | {"schema": "types-3"}
    del old["features"], old["schema_digest"]
    metadata = onnx.ModelProto()
    digest = f"{len(graph)}:{hashlib.sha256(graph).hexdigest()}"
    onnx.helper.set_model_props(metadata, {exported.CARD_KEY: json.dumps(old), exported.GRAPH_KEY: digest})
    alone = tmp_path / "old.onnx"
    alone.write_bytes(graph + metadata.SerializeToString())
    assert load_model(str(alone)).card == wanted
    inputs = random_inputs(config, 1, 1, 3, 5, 9, 3, 16)
    for mine, other in zip(load_model(str(alone)).run(inputs), load_model(str(path)).run(inputs), strict=True):
        np.testing.assert_array_equal(mine, other)
    broken = graph[:2000] + bytes([graph[2000] ^ 1]) + graph[2001:]
    alone.write_bytes(broken + metadata.SerializeToString())
    with pytest.raises(CheckpointMismatch, match="damaged"):
        load_model(str(alone))
