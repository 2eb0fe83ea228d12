"""Tasks that were submitted before with a key that is used again: the store has them, or will have them soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tapfinger.errors import ConfigError
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.store.store import Store

#: Tasks that are read at a time: some have a megabyte of arguments.
PORTION = 50

#: Tasks by owner and key.
Keyed = dict[tuple[str, str], TaskRecord]


class EarlierTasks:
    """Finds them by their keys. To be used on the service's loop, which does not read stored ones itself."""

    def __init__(self, store: Store) -> None:
        """Every task so far is in the store."""
        self._store = store
        self._unsaved: Keyed = {}
        #: What was saved since, for each look in the store that is under way.
        self._looks: list[Keyed] = []
        self._thread = ThreadPoolExecutor(1, "keys")

    def close(self) -> None:
        """Wait for the look that is under way."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def clear(self) -> None:
        """Forget what is not saved, since it will not be."""
        self._unsaved.clear()

    def made(self, records: Iterable[TaskRecord]) -> Keyed:
        """Note new tasks. Returns those that have a key, for ``saved``."""
        keyed = {(one.owner, one.spec.key): one for one in records if one.spec.key is not None}
        self._unsaved |= keyed
        return keyed

    def saved(self, keyed: Keyed) -> None:
        """Tasks are in the store now."""
        for look in self._looks:
            look |= keyed
        for pair in keyed:
            self._unsaved.pop(pair, None)

    def glance(self, owner: str, specs: Collection[TaskSpec]) -> dict[str, int] | None:
        """Ids of earlier tasks by key; None if some are in the store, so that ``look`` has to tell.

        Raises ConfigError if a key was used for another task.
        """
        wanted = _by_key(specs)
        rest = [key for key in wanted if (owner, key) not in self._unsaved]
        if rest and self._store.has_keys(owner, rest):
            return None
        return _same(owner, wanted, self._unsaved)

    async def look(self, owner: str, specs: Collection[TaskSpec], spent: Callable[[float], None]) -> dict[str, int]:
        """Ids of earlier tasks by key, all that there are when it returns; the store is read in a thread.

        ``spent`` is called there with the seconds that it has worked. Raises ConfigError if a key was used for another
        task.
        """
        wanted = _by_key(specs)
        if not wanted:
            return {}
        since: Keyed = {}
        self._looks.append(since)
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self._stored, owner, wanted, spent)
        finally:
            self._looks = [one for one in self._looks if one is not since]
        return found | _same(owner, wanted, since) | _same(owner, wanted, self._unsaved)

    def _stored(self, owner: str, wanted: Mapping[str, TaskSpec], spent: Callable[[float], None]) -> dict[str, int]:
        found: dict[str, int] = {}
        keys, began = list(wanted), time.thread_time()
        try:
            for first in range(0, len(keys), PORTION):
                some = self._store.by_keys(owner, keys[first : first + PORTION])
                found |= _same(owner, wanted, {(owner, key): record for key, record in some.items()})
        finally:
            spent(time.thread_time() - began)
        return found


def _by_key(specs: Iterable[TaskSpec]) -> dict[str, TaskSpec]:
    return {spec.key: spec for spec in specs if spec.key is not None}


def _same(owner: str, wanted: Mapping[str, TaskSpec], among: Keyed) -> dict[str, int]:
    """Ids of those of them that are the wanted tasks."""
    found: dict[str, int] = {}
    for key, spec in wanted.items():
        if (record := among.get((owner, key))) is not None:
            check_same(record.spec, spec)
            found[key] = record.id
    return found


def check_same(earlier: TaskSpec, spec: TaskSpec) -> None:
    """Raise ConfigError if a key is used for two tasks that are not the same."""
    if earlier != spec:
        raise ConfigError(f"key {spec.key!r} was used for another task; use another key")
