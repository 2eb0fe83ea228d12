"""States in chunks of like size: most have two or three waiting tasks, so most of a padded batch is padding.

A minibatch is sorted by how full its states are and cut into chunks, each trimmed to its fullest state. Gradients
add up over the chunks, so the result is that of the whole minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tapfinger.policy.actor_critic import Outputs, as_tensors
from tapfinger.policy.distributions import Actions, Terms, evaluate
from tapfinger.policy.inputs import Inputs, trim

#: States per chunk: smaller ones have less padding, but every call of the network costs some milliseconds.
CHUNK = 128


class Chunk(NamedTuple):
    """Some rows of a set of states."""

    rows: npt.NDArray[np.int64]
    inputs: Inputs  # tensors, trimmed


def chunks(network: nn.Module, inputs: Inputs, rows: npt.NDArray[np.int64], size: int = CHUNK) -> Iterator[Chunk]:
    """The states of ``rows`` in chunks of like size, for ``network``."""
    keep_padding = getattr(network.encoder, "fixed_sizes", False)
    if len(rows) > size:
        rows = rows[np.argsort(inputs.pending_mask[rows].sum(axis=1), kind="stable")]
    for part in np.array_split(rows, -(-len(rows) // size)):
        some = Inputs(*(array[part] for array in inputs))
        yield Chunk(part, as_tensors(some if keep_padding else trim(some)))


def evaluate_rows(
    network: nn.Module,
    chunk: Chunk,
    choice: npt.NDArray[np.int64],
    amounts: npt.NDArray[np.int64],
    void: int,
    accelerator: int,
) -> tuple[Outputs, Terms]:
    """The network's outputs for a chunk, and the terms of what was done there; ``void``: place that stands for void."""
    place = torch.from_numpy(choice[chunk.rows])
    place = torch.where(place == void, chunk.inputs.startable.shape[2], place)
    outputs: Outputs = network(chunk.inputs)
    actions = Actions(place, torch.from_numpy(amounts[chunk.rows]))
    return outputs, evaluate(outputs, chunk.inputs, actions, accelerator)
