"""Network -> an ONNX file with its card next to it, both checked against torch before they are written."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tapfinger.errors import CheckpointMismatch
from tapfinger.policy.actor_critic import NetworkConfig, Outputs, Positional, as_tensors
from tapfinger.policy.card import Card
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.exported import ACTING, NetworkGraph, attention_names, models_folder
from tapfinger.policy.files import GRAPH, card_file, write_at_once, write_card
from tapfinger.policy.han import Attention

OPSET = 17

#: Largest difference from torch that is accepted, absolute and relative.
TOLERANCE = 1e-4

#: Free axes of each input, starting with the first.
_AXES = {
    "cluster": "BN",
    "pending": "BM",
    "pending_mask": "BM",
    "running": "BNS",
    "running_mask": "BNS",
    "menu": "BNKC",
}
_OTHER_AXES = "BNK"

#: (B, N, K, M, S, units) of the states used for checking; the first is also used for tracing.
_SIZES = ((2, 3, 5, 11, 4, 16), (1, 1, 2, 1, 1, 3), (3, 6, 10, 40, 8, 32), (1, 20, 4, 50, 2, 8))


def export(network: nn.Module, config: NetworkConfig, card: Card, path: str | Path | None = None) -> Path:
    """Write the model. Without a path, it joins the models shipped with the package, under the card's name."""
    target = models_folder() / f"{card.name}.onnx" if path is None else Path(path)
    full = replace(card, config=config.as_dict())
    was_training = network.training
    network.eval()
    try:
        graph = graph_of(network, config, _sizes(config, card)[0])
        check_agreement(network, config, full, graph, str(target))
    finally:
        network.train(was_training)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_at_once(target, graph)
    write_card(card_file(target), full, GRAPH, graph)
    return target


class _Acting(nn.Module):
    """The network without its critic: a runtime computes everything in a file, even outputs that nobody requests."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.form = Positional(network)

    def forward(self, *fields: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.form(*fields)
        return (*outputs[: len(ACTING)], *outputs[len(Outputs._fields) :])


def graph_of(network: nn.Module, config: NetworkConfig, sizes: tuple[int, ...] = _SIZES[0]) -> bytes:
    """The network as an ONNX graph. ``sizes``: of the traced state; they matter only if the network fixes some."""
    inputs = random_inputs(config, 0, *sizes)
    form, tensors = _Acting(network), tuple(as_tensors(inputs))
    with torch.no_grad():
        layers = (len(form(*tensors)) - len(ACTING)) // len(Attention._fields)  # 0 without a graph
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        file = Path(folder) / "graph.onnx"
        # The classic exporter warns that it is deprecated; the new one cannot keep all these sizes free.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        torch.onnx.export(
            form,
            tensors,
            file,
            input_names=list(Inputs._fields),
            output_names=[*ACTING, *attention_names(layers)],
            dynamic_axes={name: dict(enumerate(_AXES.get(name, _OTHER_AXES))) for name in Inputs._fields},
            opset_version=OPSET,
            dynamo=False,
        )
        return file.read_bytes()


def check_agreement(network: nn.Module, config: NetworkConfig, card: Card, graph: bytes, source: str) -> None:
    """Raise unless graph and network agree on random states of several sizes."""
    exported = NetworkGraph(graph, source)
    for seed, sizes in enumerate(_sizes(config, card)):
        inputs = random_inputs(config, seed, *sizes)
        with torch.no_grad():
            wanted = network(as_tensors(inputs))
        for name, mine in exported.run(inputs)._asdict().items():
            other = getattr(wanted, name).numpy()
            if mine.shape != other.shape or not np.allclose(mine, other, rtol=TOLERANCE, atol=TOLERANCE):
                raise CheckpointMismatch(
                    f"{source}: output {name!r} of the exported graph differs from the network's for sizes {sizes}; "
                    "a part of it does not export, nothing was written"
                )


def _sizes(config: NetworkConfig, card: Card) -> list[tuple[int, ...]]:
    """The sizes to check, with the ones that this network fixes filled in."""
    fixed: dict[int, int] = {}
    if config.separate_actors:
        fixed[1] = config.separate_actors
    if card.network == "vanilla":
        fixed |= {2: config.pending, 4: config.running}
    if config.allocation == "joint":
        fixed[5] = config.units
    return [tuple(fixed.get(i, size) for i, size in enumerate(sizes)) for sizes in _SIZES]


def random_inputs(
    config: NetworkConfig, seed: int, batch: int, clusters: int, places: int, nodes: int, running: int, units: int
) -> Inputs:
    """Consistent random inputs: some places empty, some tasks not startable, ranges of amounts up to ``units``."""
    rng = np.random.default_rng(seed)
    shape = (batch, clusters, places)
    place_mask = np.arange(places) < np.minimum(rng.integers(0, places + 1, (batch, clusters, 1)), nodes)
    # Different nodes for the places of a cluster, if there are enough.
    node = rng.random((batch, clusters, max(nodes, places))).argsort(axis=2)[..., :places] % nodes
    startable = place_mask & (rng.random(shape) < 0.7)
    minimum = rng.integers(0, 3, (*shape, config.resources)) * place_mask[..., None]
    largest = np.minimum(minimum + rng.integers(0, units + 1, minimum.shape), units) * startable[..., None]

    def features(*sizes: int) -> Any:
        return rng.normal(size=sizes).astype(np.float32)

    return Inputs(
        cluster=features(batch, clusters, config.cluster_features),
        pending=features(batch, nodes, config.pending_features),
        pending_mask=np.ones((batch, nodes), dtype=np.bool_),
        running=features(batch, clusters, running, config.running_features),
        running_mask=rng.random((batch, clusters, running)) < 0.5,
        node=node * place_mask,
        place_mask=place_mask,
        pair=features(*shape, config.pair_features) * place_mask[..., None].astype(np.float32),
        startable=startable,
        minimum=np.minimum(minimum, units) * (config.menu_features == 0),
        largest=largest,
        copies=rng.integers(0, 9, shape).astype(np.float32) * startable,
        menu=features(*shape, units + 1 if config.menu_features else 0, config.menu_features),
        size=np.zeros((*shape, 0), dtype=np.int64),
    )
