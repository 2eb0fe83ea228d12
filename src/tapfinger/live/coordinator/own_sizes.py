"""Counts the sizes of their own that tasks have, so that no submitter can use them up.

To schedulers, each distinct pair of a task's own bounds is a separate task type with its own tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from tapfinger.errors import ConfigError

#: Most sizes of their own that all tasks together may have at a time.
MAX_SIZES = 300


class OwnSizes:
    """The own sizes of all tasks that wait or run; those of ended tasks do not count."""

    def __init__(self) -> None:
        """Start without tasks."""
        #: Size and owner of each task that has a size of its own.
        self._tasks: dict[int, tuple[str, str]] = {}
        #: By size: how many tasks of each owner have it.
        self._owners: dict[str, Counter[str]] = {}

    def __contains__(self, size: str) -> bool:
        """Whether any task has this size."""
        return size in self._owners

    def check_room(self, sizes: Set[str], owner: str) -> None:
        """Refuse sizes that are too many. An owner may have half of what the others leave, so some is always left."""
        fresh = sizes - self._owners.keys()
        if not fresh:
            return
        mine = sum(owner in owners for owners in self._owners.values())
        share = (MAX_SIZES - (len(self._owners) - mine)) // 2
        if mine + len(fresh) > share:
            raise ConfigError(
                f"tasks of {owner or 'one owner'} may have {share} different sizes of their own now (--min, --max); "
                f"they have {mine}, and {len(fresh)} more is too many; use sizes that are in use, or wait for their end"
            )

    def add(self, task: int, size: str, owner: str) -> None:
        """Note a task that waits or runs from now on."""
        self.remove(task)
        self._tasks[task] = size, owner
        self._owners.setdefault(size, Counter())[owner] += 1

    def remove(self, task: int) -> None:
        """Note that a task has ended."""
        if task in self._tasks:
            size, owner = self._tasks.pop(task)
            owners = self._owners[size]
            owners[owner] -= 1
            if not owners[owner]:
                del owners[owner]
            if not owners:
                del self._owners[size]

    def clear(self) -> None:
        """Forget all tasks."""
        self._tasks.clear()
        self._owners.clear()
