"""What the store keeps of a task type's speed: sums, not runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Learned:
    """One row."""

    type: str
    #: Of the profile that it began with: another one is another beginning.
    digest: str
    #: Up to when runs are counted.
    at: float
    state: Mapping[str, Any]
