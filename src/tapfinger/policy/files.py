"""Cards on disk: a card file next to a graph or to weights, tied to them by a digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tapfinger.errors import CheckpointMismatch
from tapfinger.policy.card import Card, read_card

#: Fields of a card file besides those of the card: digest of the graph or of the weights it belongs to.
GRAPH, WEIGHTS = "graph_sha256", "weights_sha256"


def card_file(model: Path) -> Path:
    """Path of a model's card: NAME.card.json next to NAME.onnx."""
    return model.with_suffix(".card.json")


def write_card(path: Path, card: Card, field: str, content: bytes) -> None:
    """Write a card file; ``content``: the graph or weights it belongs to, their digest is stored as ``field``."""
    _write(path, card, {field: hashlib.sha256(content).hexdigest()})


def read_card_file(path: Path) -> tuple[Card, dict[str, Any]]:
    """The card, and all fields of its file."""
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError:
        raise CheckpointMismatch(f"{path}: is not text; save or export it again") from None
    card = read_card(text, str(path))
    fields: dict[str, Any] = json.loads(text)
    return card, fields


def check_digest(path: Path, content: bytes, beside: Path, fields: dict[str, Any], field: str) -> None:
    """Raise unless a file has the content its card was written for."""
    if fields.get(field) != hashlib.sha256(content).hexdigest():
        raise CheckpointMismatch(
            f"{path}: does not match field {field!r} of {beside.name}: one of them is damaged or of another network; "
            "copy both files again"
        )


def change_card(model: Path, card: Card) -> None:
    """Give a model another card; its graph is unchanged."""
    beside = card_file(model)
    fields = read_card_file(beside)[1]
    _write(beside, card, {GRAPH: fields.get(GRAPH)})


def _write(path: Path, card: Card, more: dict[str, Any]) -> None:
    text = json.dumps({**asdict(card), **more}, indent=2, sort_keys=True)
    write_at_once(path, (text + "\n").encode())


def read_bytes(path: Path) -> bytes:
    """Content of a file of a model or checkpoint."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointMismatch(
            f"{path}: cannot be read ({error.strerror}); a model is NAME.onnx and NAME.card.json, a checkpoint "
            "card.json and weights.safetensors"
        ) from None


def write_at_once(path: Path, data: bytes) -> None:
    """Write a temporary file and rename it: readers see either the old file or the new one."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(data)
    beside.replace(path)
