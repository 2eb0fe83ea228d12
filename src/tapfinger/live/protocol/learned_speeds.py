"""What the store keeps about a task type's speed: sums over runs, not single runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Learned:
    """One row of the store."""

    type: str
    #: Digest of the configured profile that learning began with; if that profile changes, learning starts over.
    digest: str
    #: Runs up to this time are counted, in seconds since the epoch.
    at: float
    state: Mapping[str, Any]
