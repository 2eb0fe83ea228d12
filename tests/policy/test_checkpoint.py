"""Checkpoints come back as they were, and whatever is wrong with one is said."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from policy.models import small_network
from safetensors.torch import load_file, save_file

from tapfinger.errors import CheckpointMismatch
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import NetworkConfig, as_tensors
from tapfinger.policy.checkpoint import CARD, WEIGHTS, card_of, load, save, shipped_checkpoint, take_over
from tapfinger.policy.encoding.profile_features import COLUMN_COUNTS, PROFILES
from tapfinger.policy.export import random_inputs as inputs_for


@pytest.mark.parametrize("name", ["full", "no-han", "no-pointer", "vanilla"])
def test_a_network_comes_back(name, tmp_path):
    network, config, card = small_network(network=name)
    save(tmp_path / "new", network, config, card)
    again, read = load(tmp_path / "new")
    assert not again.training
    inputs = as_tensors(inputs_for(config, 0, 2, 3, config.pending, 20, config.running, 16))
    for mine, other in zip(network(inputs), again(inputs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)
    assert (read.name, read.network, read.schema, read.seeds) == (f"small-{name}", name, "types", (0,))
    assert (read.task_types, read.resources) == (("insensitive", "sensitive"), ("cpu", "gpu"))
    assert read.capacities == [(16.0, 16.0)] * 3
    assert read.config == config.as_dict()
    assert read.scenario["name"] == "multi-3"
    assert read.versions["torch"] == torch.__version__
    assert {p.name for p in (tmp_path / "new").iterdir()} == {WEIGHTS, CARD}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save(tmp_path_factory.mktemp("good"), *small_network())


@pytest.fixture
def bad(good, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(good, tmp_path / "bad")


def change(folder, **fields):
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, **fields}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": "types-0"}, "field 'schema' of the card is 'types-0'"),
        ({"task_types": None}, "field 'task_types' of the card must be a list, got None"),
        ({"network": "wide"}, "'network' or 'config' cannot be used: there is no network 'wide'"),
        ({"config": {"hidden": 8}}, "missing 6 required positional arguments"),
        ({"weights_sha256": "0"}, "does not match field 'weights_sha256'"),
    ],
)
def test_a_card_that_does_not_fit(bad, fields, said):
    change(bad, **fields)
    with pytest.raises(CheckpointMismatch, match=said):
        load(bad)


def test_sizes_that_do_not_fit_name_the_weight(bad):
    card = json.loads((bad / CARD).read_text())
    change(bad, config={**card["config"], "hidden": 12})
    with pytest.raises(CheckpointMismatch, match=r"weight 'actor.* has shape .*, the card's config needs"):
        load(bad)


@pytest.mark.parametrize("name", [CARD, WEIGHTS])
def test_a_missing_or_damaged_file(bad, name):
    data = (bad / name).read_bytes()
    (bad / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointMismatch, match=name):
        load(bad)
    (bad / name).write_bytes(b"\xff" + data)
    with pytest.raises(CheckpointMismatch, match=name):
        load(bad)
    (bad / name).unlink()
    with pytest.raises(CheckpointMismatch, match=f"{name}: cannot be read"):
        load(bad)


def test_a_missing_weight_is_named(bad):
    tensors = load_file(bad / WEIGHTS)
    del tensors["critic.0.bias"]
    save_file(tensors, bad / WEIGHTS)
    change(bad, weights_sha256=hashlib.sha256((bad / WEIGHTS).read_bytes()).hexdigest())
    with pytest.raises(CheckpointMismatch, match=r"'critic\.0\.bias' is missing"):
        load(bad)


def universal():
    """The shipped network, wide enough for all features that there are now, and its card."""
    start = shipped_checkpoint("universal")
    widths = {f"{kind}_features": table.width(COLUMN_COUNTS) for kind, table in PROFILES.tables.items()}
    card = card_of(start)
    card = replace(card, config={**card.config, **widths}, features=PROFILES.features, schema_digest="")
    network = build(card.network, NetworkConfig(**card.config))
    take_over(network, start)
    return network, card


#: Features that a network was not trained with, by kind of node.
LATER = {"cluster": 3, "pending": 0, "running": 7, "pair": 5, "menu": 2}


def test_training_goes_on_although_features_were_added(tmp_path):
    network, card = universal()
    columns = {kind: table.columns(COLUMN_COUNTS) for kind, table in PROFILES.tables.items()}
    gone = {kind: list(columns[kind].values())[at] for kind, at in LATER.items()}
    kept = {kind: [c for at in columns[kind].values() if at != gone[kind] for c in at] for kind in LATER}
    weights = {
        **{f"encoder.enter.{kind}.weight": kind for kind in ("cluster", "pending", "running")},
        "encoder.pair_view.weight": "pair",
        "actor.allocation.size.weight": "menu",
    }
    tensors = dict(network.state_dict())
    for name, kind in weights.items():
        tensors[name] = tensors[name][:, kept[kind]]
    config = NetworkConfig(**{**card.config, **{f"{kind}_features": len(kept[kind]) for kind in LATER}})
    small = build(card.network, config)
    small.load_state_dict(tensors)
    known = {kind: [f for i, f in enumerate(names) if i != LATER[kind]] for kind, names in card.features.items()}
    save(tmp_path, small, config, replace(card, features=known, schema_digest=""))
    with pytest.raises(CheckpointMismatch, match="was trained with other features"):
        load(tmp_path)
    wide = build(card.network, NetworkConfig(**card.config))
    take_over(wide, tmp_path)
    for name, value in wide.state_dict().items():
        expected = network.state_dict()[name].clone()
        if name in weights:
            expected[:, list(gone[weights[name]])] = 0.0
        torch.testing.assert_close(value, expected, rtol=0, atol=0)


def test_training_does_not_go_on_from_features_that_are_gone(tmp_path):
    network, card = universal()
    known = {**card.features, "pair": [*card.features["pair"][:-1], "phase_of_the_moon [0 to 1]"]}
    save(tmp_path, network, NetworkConfig(**card.config), replace(card, features=known, schema_digest=""))
    with pytest.raises(CheckpointMismatch, match="not made any more: phase_of_the_moon"):
        take_over(build(card.network, NetworkConfig(**card.config)), tmp_path)
