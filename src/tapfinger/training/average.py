"""The mean of a run's networks: it does better than most of them, because their errors differ."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from tapfinger.training.saved import load_state, save_state


class Average:
    """A network with the mean weights of all networks added."""

    def __init__(self, network: nn.Module, path: Path | None = None) -> None:
        """For networks like this one; continues from the file at ``path``, if it exists."""
        self.network = copy.deepcopy(network)
        #: Number of networks added.
        self.count = 0
        if path is not None and path.exists():
            self.count = int(load_state(path, self.network)[0]["count"])

    @torch.no_grad()
    def add(self, network: nn.Module) -> None:
        """Add one network to the mean."""
        self.count += 1
        mine, others = self.network.state_dict(), network.state_dict()
        for name, value in mine.items():
            if value.is_floating_point():
                value.lerp_(others[name], 1.0 / self.count)
            else:
                value.copy_(others[name])

    def save(self, path: Path) -> None:
        """Write the mean; writes nothing if no network was added."""
        if self.count:
            save_state(path, self.network, {"count": self.count})
