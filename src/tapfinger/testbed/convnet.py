"""A small ConvNet, and pictures to classify, generated from a seed."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from tapfinger.testbed.common import RunOptions
from tapfinger.testbed.parallel import Workers
from tapfinger.testbed.training import LossCurve, TrainingPlan, train

CLASSES, SIDE = 10, 32
#: Number of pictures for training and for validation, and the noise on them.
LEARN, VALIDATE, NOISE = 1920, 120, 1.0
#: Largest phase shift of the stripes, in radians: with arbitrary shifts, the loss would not fall at first.
SHIFT = 0.3
#: Approximate validation loss at the beginning, and the one to reach at scale 1.
FIRST, LAST = math.log(CLASSES), 0.25
#: The loss falls evenly.
CURVE = LossCurve(1.0)


class ConvNet(nn.Module):
    """Three convolutions, each halving the picture. No batch norm: its statistics would differ between workers."""

    def __init__(self, width: int = 32) -> None:
        """``width``: channels of the first layer."""
        super().__init__()
        sizes = (3, width, 2 * width, 2 * width)
        blocks: list[nn.Module] = []
        for before, after in pairwise(sizes):
            blocks += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.AvgPool2d(2)]
        self.features = nn.Sequential(*blocks)
        self.head = nn.Linear(sizes[-1] * (SIDE // 8) ** 2, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.features(pictures).flatten(1))  # type: ignore[no-any-return]


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stripes under noise: a class is a direction and a width of stripes; the colour is random."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    direction = (labels % 5) * (math.pi / 5)
    waves = torch.where(labels < 5, 3.0, 6.0)
    phase = torch.rand(count, generator=draw) * SHIFT
    axis = torch.linspace(0.0, 1.0, SIDE)
    across = torch.cos(direction)[:, None, None] * axis[None, None, :]
    along = torch.sin(direction)[:, None, None] * axis[None, :, None]
    stripes = torch.sin(2 * math.pi * waves[:, None, None] * (across + along) + phase[:, None, None])
    colour = torch.rand(count, 3, generator=draw)
    noise = torch.randn(count, 3, SIDE, SIDE, generator=draw)
    return stripes[:, None] * colour[:, :, None, None] + NOISE * noise, labels


def loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of the losses over the pictures."""
    return functional.cross_entropy(model(inputs), labels, reduction="sum")


def plan(options: RunOptions) -> TrainingPlan:
    """The whole training plan, generated from the seed."""
    torch.manual_seed(options.seed)
    model = ConvNet()
    learn, validate = pictures(LEARN, 2 * options.seed), pictures(VALIDATE, 2 * options.seed + 1)
    return TrainingPlan(
        model,
        loss,
        *learn,
        *validate,
        batch=96,
        learning_rate=1e-3,
        every=3,
        epochs=12,
        target=CURVE.at(FIRST, LAST, options.scale),
        floor=0.0,
        curve=CURVE,
    )


def work(workers: Workers, options: RunOptions) -> int:
    """Train."""
    return train(workers, options, plan(options))
