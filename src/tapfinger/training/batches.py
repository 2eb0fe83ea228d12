"""States in chunks of similar size: most have two or three waiting tasks, so most of a padded batch is padding.

A minibatch is sorted by how full its states are and cut into chunks, each trimmed to its fullest state. Gradients
add up over the chunks, so the result is that of the whole minibatch. Chunks are independent, so threads share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tapfinger.policy.actor_critic import Answers, as_tensors
from tapfinger.policy.distributions import Actions, Terms, evaluate
from tapfinger.policy.encoding.inputs import Inputs, trim
from tapfinger.policy.fast_forward import answer

#: States per chunk: smaller chunks have less padding, but every call of the network costs a few milliseconds.
CHUNK = 256

#: Most numbers in the embeddings of a chunk's tasks, in one layer. For the gradient, a pass keeps about sixty times
#: as many: half a gigabyte per thread.
NUMBERS = 1 << 21


class Chunk(NamedTuple):
    """Some rows of a set of states."""

    rows: npt.NDArray[np.int64]
    inputs: Inputs  # tensors, trimmed


def chunks(network: nn.Module, inputs: Inputs, rows: npt.NDArray[np.int64], size: int = CHUNK) -> Iterator[Chunk]:
    """The states of ``rows`` in chunks of similar size; the fullest first, so that threads finish together."""
    keep_padding = getattr(network.encoder, "fixed_sizes", False)
    if torch.is_grad_enabled():  # otherwise nothing is kept
        size = min(size, max(1, NUMBERS // _numbers(network, inputs, rows)))
    if len(rows) > size:
        rows = rows[np.argsort(-inputs.pending_mask[rows].sum(axis=1), kind="stable")]
    for part in np.array_split(rows, -(-len(rows) // size)):
        some = Inputs(*(array[part] for array in inputs))
        yield Chunk(part, as_tensors(some if keep_padding else trim(some)))


def _numbers(network: nn.Module, inputs: Inputs, rows: npt.NDArray[np.int64]) -> int:
    """Number of values in the embeddings of the fullest state's tasks."""
    waiting, running = inputs.pending_mask[rows].sum(axis=1), inputs.running_mask[rows].sum(axis=(1, 2))
    critic: Any = network.critic
    return int((waiting + running).max(initial=1)) * int(critic[-1].in_features)


def evaluate_rows(
    network: nn.Module,
    chunk: Chunk,
    choice: npt.NDArray[np.int64],
    amounts: npt.NDArray[np.int64],
    void: int,
    accelerator: int,
) -> tuple[Answers, Terms]:
    """The network's answers for a chunk, and the terms of the actions taken; ``void``: place that stands for void."""
    place = torch.from_numpy(choice[chunk.rows])
    place = torch.where(place == void, chunk.inputs.startable.shape[2], place)
    answers = answer(network, chunk.inputs)
    actions = Actions(place, torch.from_numpy(amounts[chunk.rows]))
    return answers, evaluate(answers, chunk.inputs, actions, accelerator)


def add_gradients(
    network: nn.Module, parts: Iterable[Chunk], lose: Callable[[Chunk], tuple[Tensor, dict[str, float]]], threads: int
) -> dict[str, float]:
    """Add the gradient of every chunk's loss; return the sums of the metrics that ``lose`` returns with it.

    Each of the ``threads`` works on one chunk at a time. Sums are taken in the order of the chunks, so the number of
    threads does not affect the result.
    """
    weights = list(network.parameters())

    def learn(chunk: Chunk) -> tuple[tuple[Tensor | None, ...], dict[str, float]]:
        loss, known = lose(chunk)
        return torch.autograd.grad(loss, weights, allow_unused=True), known

    sums: dict[str, float] = {}
    with ThreadPoolExecutor(threads) as pool:
        for gradients, known in pool.map(learn, parts):
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
            for name, value in known.items():
                sums[name] = sums.get(name, 0.0) + value
    return sums
