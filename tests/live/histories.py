"""Checks many random histories of the whole protocol at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from live.protocol import play

#: Kinds of events that have to occur: otherwise the troubles were too mild to prove anything.
TROUBLES = (
    *("finished", "failed", "cancelled", "lost", "requeued", "silent", "refused"),
    *("away", "capacity", "recovered", "out of memory"),
)


def check_histories(seeds: Iterable[int], **changes: Any) -> None:
    """Play a history per seed; ``changes``: as for ``World``."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = play(seed, **changes)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(line.kind for line in world.disk.history)
    assert all(seen[kind] > 5 for kind in TROUBLES)
    assert seen["resized"] > 100
    assert (seen["older store"] > 5) == bool(changes.get("older"))
