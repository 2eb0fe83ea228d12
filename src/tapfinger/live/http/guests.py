"""Connections that the door has let in, counted until they end: in all, by address, and agents apart from people."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from tapfinger.live.http.crowd import Crowd
from tapfinger.live.http.known_addresses import KnownAddresses, origin_of

Kind = Literal["people", "strangers", "agents"]

#: Seconds that a stranger has to show a token before its place may go to another one like it.
GRACE = 1.0


@dataclass(frozen=True, slots=True)
class GuestRoom:
    """How many connections of one kind there may be: in all, and from one address."""

    most: int
    each: int


class Guest(socket.socket):
    """A connection that says when it is closed, whoever closes it."""

    _left: Callable[[], None] | None = None

    def __init__(self, *given: Any, **more: Any) -> None:
        """As a socket is made."""
        super().__init__(*given, **more)
        self._closing = threading.Lock()

    def watch(self, left: Callable[[], None]) -> None:
        """Call ``left`` once, when the socket is closed."""
        self._left = left

    def close(self) -> None:
        """Close the socket."""
        with self._closing:
            super().close()
        left, self._left = self._left, None
        if left is not None:
            left()

    def hang_up(self) -> None:
        """End the connection; whoever serves it sees that and closes the socket. May be called from any thread."""
        with self._closing, suppress(OSError):  # its number is nobody else's before it is closed
            if self.fileno() >= 0:
                self.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class _Seat:
    """A guest's place."""

    guest: Guest
    #: As what it is counted; None once it is not any more.
    kind: Kind | None
    origin: str
    since: float


class GuestBook:
    """Who is in. May be used from several threads.

    ``strangers`` are connections that say they are an agent's, until they have shown a token. Where there are too many
    of them, newcomers get the places of others (``Crowd``): nobody can hold all places, and from addresses of agents
    there is always a way in.
    """

    def __init__(
        self,
        rooms: dict[Kind, GuestRoom],
        proxy: str | None = None,
        known: KnownAddresses | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``proxy``: an address that stands for many, and has no limit of its own. ``known``: addresses of agents."""
        self._rooms = rooms
        self._proxy = proxy
        self.known = known or KnownAddresses()
        self._clock = clock
        self._lock = threading.Lock()
        self._in: Counter[Kind] = Counter()
        self._from: Counter[tuple[Kind, str]] = Counter()
        self._strangers: Crowd[_Seat] = Crowd()
        self._unproven: dict[tuple[str, int], _Seat] = {}

    def enter(self, guest: Guest, kind: Kind, peer: tuple[str, int]) -> bool:
        """Let a guest in, if there is room, or room can be made."""
        stay = _Seat(guest, kind, origin_of(peer[0]), self._clock())
        with self._lock:
            if not self._has_room(kind, stay.origin, peer[0]):
                if kind != "strangers" or (gone := self._who_leaves(stay, peer[0])) is None:
                    return False
                self._remove(gone)
                gone.guest.hang_up()
            self._add(kind, stay.origin, 1)
            if kind == "strangers":
                self._strangers.add(stay.origin, stay)
                self._unproven[peer] = stay

        def leave() -> None:
            with self._lock:
                if self._unproven.get(peer) is stay:
                    del self._unproven[peer]
                self._remove(stay)

        guest.watch(leave)
        return True

    def _has_room(self, kind: Kind, origin: str, address: str) -> bool:
        room = self._rooms[kind]
        crowded = self._from[kind, origin] >= room.each and address != self._proxy
        return not crowded and self._in[kind] < room.most

    def _who_leaves(self, newcomer: _Seat, address: str) -> _Seat | None:
        """The stranger whose place a newcomer gets; None if it gets none."""
        origin = newcomer.origin
        if self._from["strangers", origin] >= self._rooms["strangers"].each and address != self._proxy:
            found = self._strangers.oldest(origin)
        else:
            found = self._strangers.makes_room(origin, self.known.__contains__)
        if found is None or (found.origin not in self.known and origin in self.known):
            return found
        return found if newcomer.since >= found.since + GRACE else None

    def prove(self, peer: tuple[str, int]) -> None:
        """The guest from ``peer`` is an agent indeed."""
        with self._lock:
            stay = self._unproven.pop(peer, None)
            if stay is not None and stay.kind == "strangers":
                self._remove(stay)
                stay.kind = "agents"
                self._add("agents", stay.origin, 1)
        if stay is not None:
            self.known.note(stay.origin)

    def count(self, kind: Kind) -> int:
        """Number of guests of this kind."""
        return self._in[kind]

    def _remove(self, stay: _Seat) -> None:
        if stay.kind is not None:
            self._add(stay.kind, stay.origin, -1)
        if stay.kind == "strangers":
            self._strangers.remove(stay.origin, stay)
        stay.kind = None

    def _add(self, kind: Kind, origin: str, number: int) -> None:
        self._in[kind] += number
        self._from[kind, origin] += number
        if not self._from[kind, origin]:
            del self._from[kind, origin]
