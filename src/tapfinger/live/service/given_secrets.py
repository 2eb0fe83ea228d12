"""Values of secrets that are given with tasks: not too many, and not too long ones, also before they are saved."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from tapfinger.errors import TooMany
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.store.secrets import MAX_GIVEN, MAX_GIVEN_TEXT, TaskSecret
from tapfinger.live.store.store import Store

#: Seconds for which what the store has of an owner counts: to add it up takes milliseconds of the loop with the leases.
FRESH = 0.1
#: Most owners of whom it is remembered.
REMEMBERED = 1000


class GivenSecrets:
    """Counts them by owner. To be used on the service's loop."""

    def __init__(self, store: Store) -> None:
        """Everything so far is in the store."""
        self._store = store
        #: What is being saved, by owner: values and their characters. The store counts it only afterwards, and until
        #: then many more submissions may be accepted.
        self._values: Counter[str] = Counter()
        self._texts: Counter[str] = Counter()
        #: What the store has, by owner, and when it was last read.
        self._stored: dict[str, tuple[float, tuple[int, int]]] = {}

    def clear(self) -> None:
        """Forget what is not saved, since it will not be."""
        self._values.clear()
        self._texts.clear()
        self._stored.clear()

    def check_room(self, specs: Iterable[TaskSpec], owner: str, given: Mapping[str, str]) -> None:
        """Refuse values that are too many, or too long together."""
        added = [len(given[name]) for spec in specs for name in spec.secrets if name in given]
        if not added:
            return
        count, length = self._in_store(owner)
        count += len(added) + self._values[owner]
        length += sum(added) + self._texts[owner]
        advice = "keep those that many tasks use with 'tapfinger secret set'"
        if count > MAX_GIVEN:
            raise TooMany(f"{owner} may have given {MAX_GIVEN} secrets with tasks that have not ended; {advice}")
        if length > MAX_GIVEN_TEXT:
            raise TooMany(
                f"secrets that {owner} has given with tasks that have not ended may have {MAX_GIVEN_TEXT:,} characters "
                f"together, and with these they would have {length:,}; {advice}"
            )

    def _in_store(self, owner: str) -> tuple[int, int]:
        """Values that the store has, and their characters; perhaps some too many, of tasks that have just ended."""
        at, found = self._stored.get(owner, (-math.inf, (0, 0)))
        if time.monotonic() > at + FRESH:
            if len(self._stored) >= REMEMBERED:
                self._stored.clear()
            found = self._store.secrets.given(owner)
            self._stored[owner] = time.monotonic(), found
        return found

    def of(self, records: Iterable[TaskRecord], given: Mapping[str, str]) -> list[TaskSecret]:
        """The values to save with new tasks; to be told of by ``saved``."""
        made = [
            TaskSecret(record.owner, name, record.id, record.submitted, given[name])
            for record in records
            for name in record.spec.secrets
            if name in given
        ]
        for one in made:
            self._values[one.owner] += 1
            self._texts[one.owner] += len(one.value)
        return made

    def saved(self, secrets: Iterable[TaskSecret]) -> None:
        """These values are in the store now."""
        for one in secrets:
            self._values[one.owner] -= 1
            self._texts[one.owner] -= len(one.value)
            self._stored.pop(one.owner, None)  # which has more now
        self._values, self._texts = +self._values, +self._texts  # without owners who have none
