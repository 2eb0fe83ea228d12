"""Counts the memory of what tasks bring with them, so that no submitter can use up the coordinator's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tapfinger.errors import TooMany
from tapfinger.live.protocol.records import TaskSpec

#: Bytes in a megabyte, as ``max_waiting_mb`` has it.
MB = 1024 * 1024
#: Bytes of memory of a text beside its characters, about.
TEXT = 64
#: Most bytes of memory of a character beyond ASCII: four, and four more once it was encoded.
WIDE = 8


def memory_of(spec: TaskSpec) -> int:
    """Bytes of memory of a specification's texts, about; always the same for the same specification."""
    texts = (*spec.argv, *spec.env, *spec.env.values(), *spec.clusters, spec.cwd or "", spec.key or "", spec.name)
    whole = "".join(texts)
    size = TEXT * len(texts) + len(whole)
    if whole.isascii():
        return size
    return size + (WIDE - 1) * sum(len(text) for text in texts if not text.isascii())


class HeldTexts:
    """Memory of the specifications of all tasks that have not ended, by owner."""

    def __init__(self) -> None:
        """Start without tasks."""
        self._owners: Counter[str] = Counter()
        #: Bytes of all owners.
        self.total = 0

    def of(self, owner: str) -> int:
        """Bytes of this owner's tasks."""
        return self._owners[owner]

    def check_room(self, specs: Iterable[TaskSpec], owner: str, limit: int) -> None:
        """Refuse tasks that are too much: ``limit`` megabytes are for all owners, half of them for each."""
        size = sum(map(memory_of, specs))
        mine, total, most = self.of(owner) + size, self.total + size, limit * MB
        if total <= most and 2 * mine <= most:
            return
        whose, held, share = (f"{owner}'s ", mine, limit / 2) if 2 * mine > most else ("", total, limit)
        raise TooMany(
            f"arguments and environments of {whose}tasks that have not ended may take {share:g} MiB of memory "
            f"(half of max_waiting_mb for each owner), and with these they would take {held / MB:.0f}; wait until some "
            "have ended, or pass files instead"
        )

    def add(self, spec: TaskSpec, owner: str) -> None:
        """Note a task that waits or runs from now on."""
        size = memory_of(spec)
        self._owners[owner] += size
        self.total += size

    def remove(self, spec: TaskSpec, owner: str) -> None:
        """Note that a task has ended."""
        size = memory_of(spec)
        self.total -= size
        self._owners[owner] -= size
        if not self._owners[owner]:
            del self._owners[owner]
