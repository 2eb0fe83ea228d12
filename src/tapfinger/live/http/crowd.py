"""Who makes room where there is too little: a crowd from one address before others, strangers before the known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Crowd(Generic[Item]):
    """Things that came from addresses; of each address oldest first."""

    def __init__(self) -> None:
        """Nobody is there."""
        self._by_origin: dict[str, dict[int, Item]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def count(self, origin: str) -> int:
        """How many came from there."""
        return len(self._by_origin.get(origin, ()))

    def add(self, origin: str, item: Item) -> None:
        """One more has come."""
        self._by_origin.setdefault(origin, {})[id(item)] = item
        self._count += 1

    def remove(self, origin: str, item: Item) -> bool:
        """One has left. Returns whether it was there."""
        among = self._by_origin.get(origin, {})
        if among.pop(id(item), None) is None:
            return False
        self._count -= 1
        if not among:
            del self._by_origin[origin]
        return True

    def oldest(self, origin: str) -> Item | None:
        """The one from there that came first."""
        return next(iter(self._by_origin.get(origin, {}).values()), None)

    def makes_room(self, origin: str, is_known: Callable[[str], bool]) -> Item | None:
        """Who must leave for somebody from ``origin``; None if nobody need, and the newcomer has to.

        The oldest of the address with the most of them, the newcomer counted. Those of known addresses stay while there
        are others, and never leave for a newcomer who is not known.
        """
        unknown = [other for other in self._by_origin if not is_known(other)]
        if not unknown and not is_known(origin):
            return None
        return self.oldest(self._heaviest(unknown or self._by_origin, origin))

    def _heaviest(self, origins: Iterable[str], newcomer: str) -> str:
        """The address with the most; of several, the one that has been there for longest."""
        return max(origins, key=lambda other: len(self._by_origin[other]) + (other == newcomer), default="")
