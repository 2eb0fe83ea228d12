"""Connections that the door has let in, counted until they end: in all, by address, and agents apart from people."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["people", "strangers", "agents"]


@dataclass(frozen=True, slots=True)
class GuestRoom:
    """How many connections of one kind there may be: in all, and from one address."""

    most: int
    each: int


class Guest(socket.socket):
    """A connection that says when it is closed, whoever closes it."""

    _left: Callable[[], None] | None = None

    def watch(self, left: Callable[[], None]) -> None:
        """Call ``left`` once, when the socket is closed."""
        self._left = left

    def close(self) -> None:
        """Close the socket."""
        super().close()
        left, self._left = self._left, None
        if left is not None:
            left()


class GuestBook:
    """Who is in. May be used from several threads.

    ``strangers`` are connections that say they are an agent's, until they have shown a token.
    """

    def __init__(self, rooms: dict[Kind, GuestRoom], proxy: str | None = None) -> None:
        """``proxy``: an address that stands for many, and has no limit of its own."""
        self._rooms = rooms
        self._proxy = proxy
        self._lock = threading.Lock()
        self._in: Counter[Kind] = Counter()
        self._from: Counter[tuple[Kind, str]] = Counter()
        self._strangers: dict[tuple[str, int], Callable[[], None]] = {}

    def enter(self, guest: Guest, kind: Kind, peer: tuple[str, int]) -> bool:
        """Let a guest in, if there is room."""
        address, room = peer[0], self._rooms[kind]
        with self._lock:
            crowded = self._from[kind, address] >= room.each and address != self._proxy
            if crowded or self._in[kind] >= room.most:
                return False
            self._add(kind, address, 1)
        stay: dict[str, Kind] = {"kind": kind}

        def prove() -> None:
            stay["kind"] = "agents"
            self._add("strangers", address, -1)
            self._add("agents", address, 1)

        def leave() -> None:
            with self._lock:
                self._strangers.pop(peer, None)
                self._add(stay["kind"], address, -1)

        if kind == "strangers":
            self._strangers[peer] = prove
        guest.watch(leave)
        return True

    def prove(self, peer: tuple[str, int]) -> None:
        """The guest from ``peer`` is an agent indeed."""
        with self._lock:
            prove = self._strangers.pop(peer, None)
            if prove is not None:
                prove()

    def count(self, kind: Kind) -> int:
        """Number of guests of this kind."""
        return self._in[kind]

    def _add(self, kind: Kind, address: str, number: int) -> None:
        self._in[kind] += number
        self._from[kind, address] += number
        if not self._from[kind, address]:
            del self._from[kind, address]
