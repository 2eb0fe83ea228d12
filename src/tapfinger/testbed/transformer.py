"""A small Transformer language model, and text of a grammar generated from a seed."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from tapfinger.testbed.common import RunOptions
from tapfinger.testbed.parallel import Workers
from tapfinger.testbed.training import LossCurve, TrainingPlan, train

#: Number of letters, and how many of them may follow a given one.
LETTERS, FOLLOW = 64, 4
#: Letters per piece of text; number of pieces for training and for validation.
LENGTH, LEARN, VALIDATE = 64, 1920, 96
#: Loss to reach at scale 1, in nats per letter above the grammar's entropy.
LAST = 0.1
#: The loss falls ever more slowly: its excess over the entropy falls roughly exponentially.
CURVE = LossCurve(0.0)


class Language(nn.Module):
    """Causal attention over the letters so far."""

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 4) -> None:
        """``width``: of the stream between layers."""
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        # No dropout: the same seed must give the same losses for any number of workers.
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)
        ahead = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
        self.register_buffer("ahead", ahead, persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits of the next letter at every place."""
        stream = self.letters(text) + self.places[: text.shape[1]]
        mask = self.get_buffer("ahead")[: text.shape[1], : text.shape[1]]
        return self.head(self.layers(stream, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def grammar(seed: int) -> torch.Tensor:
    """Probabilities of the next letter after each letter; shape (letter, next)."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.rand(LETTERS, LETTERS, generator=draw).topk(FOLLOW, dim=-1).indices
    weights = 0.2 + torch.rand(LETTERS, FOLLOW, generator=draw)
    return torch.zeros(LETTERS, LETTERS).scatter_(-1, chosen, weights / weights.sum(-1, keepdim=True))


def text(rules: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Pieces of text, one letter longer than the model sees at once."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(LETTERS, (count, LENGTH + 1), generator=draw)
    for place in range(1, LENGTH + 1):
        found[:, place] = torch.multinomial(rules[found[:, place - 1]], 1, generator=draw).squeeze(1)
    return found


def entropy(rules: torch.Tensor, pieces: torch.Tensor) -> float:
    """The smallest mean loss that any model can reach on these pieces, in nats per letter."""
    return float(-rules[pieces[:, :-1]].gather(-1, pieces[:, 1:, None]).log().mean())


def loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum over the pieces of the mean over their letters."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), reduction="sum") / LENGTH


def plan(options: RunOptions) -> TrainingPlan:
    """The whole training plan, generated from the seed."""
    torch.manual_seed(options.seed)
    model = Language()
    rules = grammar(options.seed)
    learn, validate = text(rules, LEARN, 2 * options.seed), text(rules, VALIDATE, 2 * options.seed + 1)
    floor = entropy(rules, validate)
    return TrainingPlan(
        model,
        loss,
        learn[:, :-1],
        learn[:, 1:],
        validate[:, :-1],
        validate[:, 1:],
        batch=48,
        learning_rate=6e-4,
        every=5,
        epochs=20,
        target=floor + CURVE.at(math.log(LETTERS) - floor, LAST, options.scale),
        floor=floor,
        curve=CURVE,
    )


def work(workers: Workers, options: RunOptions) -> int:
    """Train."""
    return train(workers, options, plan(options))
