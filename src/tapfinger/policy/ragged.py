"""Padded arrays, and the rows of them that are in use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """The rows of a padded array that are in use."""

    at: Tensor  # (rows,) indices into the flattened array
    mask: Tensor  # bool, with the array's shape without its columns

    @classmethod
    def of(cls, mask: Tensor) -> Rows:
        """The rows in ``mask``."""
        return cls(mask.flatten().nonzero().squeeze(1), mask)

    def pack(self, padded: Tensor) -> Tensor:
        """(..., columns) -> (rows, columns)."""
        return padded.reshape(-1, padded.shape[-1]).index_select(0, self.at)

    def pad(self, rows: Tensor, nothing: float = 0.0) -> Tensor:
        """(rows, columns) -> (..., columns): the inverse of ``pack``."""
        padded = rows.new_full((self.mask.numel(), rows.shape[1]), nothing).index_copy_(0, self.at, rows)
        return padded.reshape(*self.mask.shape, -1)

    def parents(self) -> Tensor:
        """(rows,): index of each row's parent in an array without the last axis."""
        return torch.div(self.at, self.mask.shape[-1], rounding_mode="floor")

    def numbers(self) -> Tensor:
        """Index of each position of the array among the packed rows; that of another row where it is empty."""
        return (self.mask.flatten().cumsum(0) - 1).clamp(min=0).reshape(self.mask.shape)

    def mean(self, rows: Tensor) -> Tensor:
        """Mean over the last axis of a (B, M) mask: (B, columns), like masked_mean."""
        total = rows.new_zeros(len(self.mask), rows.shape[1]).index_add_(0, self.parents(), rows)
        return total / self.mask.sum(dim=1, keepdim=True).clamp(min=1).to(rows.dtype)
