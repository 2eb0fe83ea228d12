"""The door: a thread that owns the port, counts who comes in, and shows everyone to the right event loop.

Agents go to the loop that keeps leases, all others to the loop for people. The door tells them apart by their first
bytes, which it looks at without taking them. Nobody is let in before there is a whole head of a request, or a whole
greeting of TLS, to look at; who says nothing is sent away after a while, or earlier, if others need the place.
"""

from __future__ import annotations

import logging
import resource
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tapfinger.live.http.agents import AGENT_PATH
from tapfinger.live.http.crowd import Crowd
from tapfinger.live.http.guests import Guest, GuestBook, GuestRoom, Kind
from tapfinger.live.http.known_addresses import KnownAddresses, origin_of
from tapfinger.live.http.limits import Buckets
from tapfinger.live.http.tls import AGENT_PROTOCOL, offers

logger = logging.getLogger(__name__)

#: Seconds in which a connection must say what it wants.
FIRST_BYTES = 10.0
#: Bytes that the door looks at. A longer head is somebody's; h11 refuses it.
LOOKED_AT = 16 * 1024
#: Connections taken from the queue at a time.
BATCH = 64
#: Seconds without accepting after it has failed, and seconds between two lines of the log about it.
PAUSE, LOG_PAUSE = 0.5, 60.0
#: Connections of strangers who say they are agents: from one address per second, and at once.
KNOCKS, KNOCKS_AT_ONCE = 50.0, 300.0
#: The same from all addresses together from which no agent has shown a token lately: each costs about a millisecond of
#: the loop with the leases.
UNKNOWN, UNKNOWN_AT_ONCE = 200.0, 600.0
#: Handles that are kept for the store, logs and the like.
SPARE = 128
#: Most connections: waiting at the door; people's; of those who say they are agents; and room kept for agents.
WAITING, PEOPLE, STRANGERS, AGENTS = 512, 1000, 256, 4096


def raise_handles() -> int:
    """Allow this process as many files as the system lets it have. Returns their number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def rooms(handles: int) -> tuple[int, dict[Kind, GuestRoom]]:
    """Connections that may wait, and those of each kind, with this many files."""
    share = max(8, handles - SPARE) / (WAITING + PEOPLE + STRANGERS + AGENTS)
    waiting, people, strangers = (max(2, min(most, int(most * share))) for most in (WAITING, PEOPLE, STRANGERS))
    return waiting, {
        "people": GuestRoom(people, max(2, people // 4)),
        "strangers": GuestRoom(strangers, max(2, strangers // 2)),
    }


@dataclass(slots=True, eq=False)
class _Waiting:
    guest: Guest
    peer: tuple[str, int]
    origin: str
    until: float
    #: Bytes seen so far.
    seen: int = 0


class Door:
    """Listens, looks, counts and hands over."""

    def __init__(
        self,
        listener: socket.socket,
        encrypted: bool,
        people: Callable[[Guest], None],
        agents: Callable[[Guest], None],
        proxy: str | None = None,
        known: KnownAddresses | None = None,
    ) -> None:
        """``people`` and ``agents`` take connections over; ``proxy``: an address that stands for many.

        ``known``: addresses from which agents have shown a token.
        """
        self._listener = listener
        self._encrypted = encrypted
        self._halls: dict[Kind, Callable[[Guest], None]] = {"people": people, "strangers": agents}
        self._most, found = rooms(raise_handles())
        self.book = GuestBook(found, proxy, known)
        self._knocks = Buckets(KNOCKS, KNOCKS_AT_ONCE, time.monotonic)
        self._unknown = Buckets(UNKNOWN, UNKNOWN_AT_ONCE, time.monotonic)
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()  # by file handle, oldest first
        self._crowd: Crowd[_Waiting] = Crowd()  # the same by address
        self._selector = selectors.DefaultSelector()
        self._closed_until = 0.0
        self._logged = -LOG_PAUSE
        self._wake, self._waker = socket.socketpair()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)

    def open(self) -> None:
        """Start to let people in."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more; those who are in may stay."""
        self._ended = True
        self._waker.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for waiting in self._waiting.values():
            waiting.guest.close()
        self._selector.close()
        for one in (self._listener, self._wake, self._waker):
            one.close()

    # ------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        while not self._ended:
            try:
                self._turn()
            except Exception:  # whatever a guest has done, others must get in
                logger.exception("the door failed; it goes on")
                time.sleep(PAUSE)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is self._listener:
                self._accept()
            elif (waiting := self._waiting.get(key.fd)) is not None:
                self._look(waiting)
        now = time.monotonic()
        while self._waiting and (oldest := next(iter(self._waiting.values()))).until < now:
            self._dismiss(oldest)
        if self._closed_until and now >= self._closed_until:
            self._closed_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _patience(self) -> float:
        """Seconds until something must be done anyway."""
        if self._closed_until:
            return PAUSE
        oldest = next(iter(self._waiting.values()), None)
        return FIRST_BYTES if oldest is None else max(0.0, oldest.until - time.monotonic()) + 0.01

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file handles, or no memory, are left
                self._selector.unregister(self._listener)
                self._closed_until = time.monotonic() + PAUSE
                if time.monotonic() >= self._logged + LOG_PAUSE:
                    self._logged = time.monotonic()
                    logger.warning("no connection can be accepted for now: %s", error.strerror)
                return
            origin = origin_of(str(peer[0]))
            if len(self._waiting) >= self._most:
                if (gone := self._crowd.makes_room(origin, self.book.known.__contains__)) is None:
                    connection.close()
                    continue
                self._dismiss(gone)
            guest = Guest(fileno=connection.detach())
            guest.setblocking(False)
            waiting = _Waiting(guest, (str(peer[0]), int(peer[1])), origin, time.monotonic() + FIRST_BYTES)
            self._waiting[guest.fileno()] = waiting
            self._crowd.add(origin, waiting)
            self._selector.register(guest, selectors.EVENT_READ)
            self._look(waiting)  # most have spoken already

    def _look(self, waiting: _Waiting) -> None:
        try:
            data = waiting.guest.recv(LOOKED_AT, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._dismiss(waiting)
            return
        kind = kind_of(data, self._encrypted)
        if kind is not None:
            self._hand_over(waiting, kind)
        elif len(data) <= waiting.seen or (data[:1] != b"\x16") == self._encrypted:
            self._dismiss(waiting)  # it has hung up, or does not speak TLS
        else:
            waiting.seen = len(data)
            # Wake only when there is more: what was looked at stays there.
            waiting.guest.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(data) + 1)

    def _hand_over(self, waiting: _Waiting, kind: Kind) -> None:
        guest, peer = waiting.guest, waiting.peer
        if (kind == "strangers" and not self._may_knock(waiting.origin)) or not self.book.enter(guest, kind, peer):
            self._dismiss(waiting)
            return
        self._forget(waiting)
        with suppress(OSError):  # it has hung up; its loop finds out
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            # Small answers would otherwise wait 40 ms for the next.
            guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._halls[kind](guest)

    def _may_knock(self, origin: str) -> bool:
        """Whether one more stranger may come in now, from this address and from all that are not known."""
        if self._knocks.take(origin):
            return False
        return origin in self.book.known or not self._unknown.take("")

    def _forget(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting.guest.fileno(), None)
        self._crowd.remove(waiting.origin, waiting)
        with suppress(KeyError, ValueError):
            self._selector.unregister(waiting.guest)

    def _dismiss(self, waiting: _Waiting) -> None:
        self._forget(waiting)
        waiting.guest.close()


def kind_of(data: bytes, encrypted: bool) -> Kind | None:
    """Who sends these first bytes; None if there are too few of them."""
    if encrypted:
        # A record of TLS: its kind, version (2 bytes) and length (2 bytes), then the greeting.
        whole = len(data) >= 5 and len(data) >= min(LOOKED_AT, 5 + int.from_bytes(data[3:5], "big"))
        if data[:1] != b"\x16" or not whole:
            return None
        return "strangers" if offers(data, AGENT_PROTOCOL) else "people"
    if b"\r\n\r\n" not in data and b"\n\n" not in data and len(data) < LOOKED_AT:
        return None
    agent = data.startswith((f"GET {AGENT_PATH} ".encode(), f"GET {AGENT_PATH}?".encode()))
    return "strangers" if agent else "people"
