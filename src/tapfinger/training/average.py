"""The mean of the networks that a run goes through: it does better than most of them, for their errors differ."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from tapfinger.training.saved import load_state, save_state


class Average:
    """A network with the mean weights of all those added."""

    def __init__(self, network: nn.Module, path: Path | None = None) -> None:
        """Of networks like this one; goes on with what was saved under ``path``, if anything was."""
        self.network = copy.deepcopy(network)
        #: How many were added.
        self.count = 0
        if path is not None and path.exists():
            self.count = int(load_state(path, self.network)[0]["count"])

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Take one more into the mean."""
        self.count += 1
        mine, others = self.network.state_dict(), network.state_dict()
        for name, value in mine.items():
            if value.is_floating_point():
                value.lerp_(others[name], 1.0 / self.count)
            else:
                value.copy_(others[name])

    def save(self, path: Path) -> None:
        """Nothing, if nothing was added."""
        if self.count:
            save_state(path, self.network, {"count": self.count})
