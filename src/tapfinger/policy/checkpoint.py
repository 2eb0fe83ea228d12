"""Weights on disk: ``weights.safetensors`` and ``card.json`` in one directory. Loading them never executes code."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from tapfinger.errors import CheckpointMismatch, TapfingerError
from tapfinger.policy import files
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import ActorCritic, NetworkConfig
from tapfinger.policy.card import SCHEMAS, Card
from tapfinger.policy.encoding.features import digest_of
from tapfinger.policy.encoding.profile_features import COLUMN_COUNTS
from tapfinger.policy.encoding.type_features import PAPER_FEATURES
from tapfinger.policy.files import write_at_once, write_card

WEIGHTS = "weights.safetensors"
CARD = "card.json"


def save(directory: str | Path, network: nn.Module, config: NetworkConfig, card: Card) -> Path:
    """Write a checkpoint; an older one in the directory is replaced file by file, each atomically."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save_tensors({name: t.detach().cpu().contiguous() for name, t in network.state_dict().items()})
    write_at_once(folder / WEIGHTS, weights)
    write_card(folder / CARD, replace(card, config=config.as_dict()), files.WEIGHTS, weights)
    return folder


def load(directory: str | Path) -> tuple[ActorCritic, Card]:
    """The network, ready to run, and its card; raises CheckpointMismatch with what is wrong."""
    network, card = _read(Path(directory))
    schema = SCHEMAS[card.schema]
    if card.schema_digest not in (schema.digest, digest_of(PAPER_FEATURES)):
        raise CheckpointMismatch(
            f"{Path(directory) / CARD}: the network was trained with other features than those of schema "
            f"{schema.name!r} now: {'; '.join(schema.difference(card.features))}. Retrain it ('tapfinger models "
            "rebuild'), or train on from it ('tapfinger finetune')"
        )
    return network, card


def _read(folder: Path) -> tuple[ActorCritic, Card]:
    """As ``load``, whatever features the network was trained with."""
    card, fields = files.read_card_file(folder / CARD)
    weights = files.read_bytes(folder / WEIGHTS)
    files.check_digest(folder / WEIGHTS, weights, folder / CARD, fields, files.WEIGHTS)
    network = _build(card, folder / CARD)
    try:
        tensors = load_tensors(weights)
    except SafetensorError as error:
        raise CheckpointMismatch(f"{folder / WEIGHTS}: is damaged ({error}); copy it again") from None
    _fill(network, tensors, str(folder / WEIGHTS))
    return network.eval(), card


def shipped_checkpoint(name: str) -> Path:
    """Directory of a checkpoint that ships with the package, as a starting point for training."""
    folder = Path(str(resources.files("tapfinger") / "models" / name))
    if not folder.is_dir():
        raise CheckpointMismatch(
            f"no checkpoint {name!r} ships with this version; make one with 'tapfinger train {name}' and give "
            f"--start results/train/{name}/checkpoint"
        )
    return folder


def card_of(directory: str | Path) -> Card:
    """The card of a checkpoint, also of one that was trained before features were added."""
    return _read(Path(directory))[1]


def take_over(network: nn.Module, directory: str | Path) -> None:
    """Start ``network`` from the checkpoint of a similar one.

    It may have more rounds of reconsidering, and features that the checkpoint was not trained with; both begin without
    effect.
    """
    start, card = _read(Path(directory))
    tensors = start.state_dict()
    columns = SCHEMAS[card.schema].selection(card.features, _column_counts(card), str(directory))
    for name, value in network.state_dict().items():
        if name.startswith("actor.chooser.rounds."):
            tensors.setdefault(name, torch.zeros_like(value))
        kind = _WEIGHTS_OF_FEATURES.get(name, "")
        if kind in columns and name in tensors and value.shape != tensors[name].shape:
            wider = torch.zeros_like(value)
            wider[:, columns[kind]] = tensors[name]
            tensors[name] = wider
    _fill(network, tensors, str(Path(directory) / WEIGHTS))


#: Weights with a column per feature, and the kind of node whose features they are.
_WEIGHTS_OF_FEATURES = {
    **{f"encoder.enter.{kind}.weight": kind for kind in ("cluster", "pending", "running")},
    "encoder.pair_view.weight": "pair",
    "actor.allocation.size.weight": "menu",
}


def _column_counts(card: Card) -> dict[str, int]:
    return {**COLUMN_COUNTS, "resource": len(card.resources), "task type": len(card.task_types)}


def _build(card: Card, source: Path) -> ActorCritic:
    try:
        return build(card.network, NetworkConfig(**card.config))
    except (TypeError, TapfingerError) as error:
        raise CheckpointMismatch(f"{source}: field 'network' or 'config' cannot be used: {error}") from None


def _fill(network: nn.Module, tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load the weights; the error names the first one that does not fit."""
    expected: dict[str, Any] = network.state_dict()
    for name in sorted({*expected, *tensors}):
        if name not in tensors or name not in expected:
            raise CheckpointMismatch(f"{source}: weight {name!r} is {'extra' if name in tensors else 'missing'}")
        if expected[name].shape != tensors[name].shape:
            got, want = tuple(tensors[name].shape), tuple(expected[name].shape)
            raise CheckpointMismatch(f"{source}: weight {name!r} has shape {got}, the card's config needs {want}")
    network.load_state_dict(tensors)
