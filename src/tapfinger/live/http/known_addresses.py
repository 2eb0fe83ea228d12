"""Addresses from which agents have shown a token lately: whatever comes from elsewhere, these get a place."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from tapfinger.live.agent.leases import replace_file

logger = logging.getLogger(__name__)

#: Seconds for which an address is remembered, and seconds after which the file is brought up to date.
LASTS, REFRESH = 7 * 86400.0, 3600.0
#: Most addresses; the one that was not heard of for longest is dropped.
MOST = 1024


class KnownAddresses:
    """Kept in a file, since all agents come again at once when a coordinator was started again."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """``path``: of the file; None to remember only in memory. A file that cannot be read counts as empty."""
        self._path = path
        self._clock = clock
        self._saved = 0.0
        self._last: OrderedDict[str, float] = OrderedDict()  # when a token was shown last, oldest first
        try:
            found = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
            for address, at in sorted(found.items(), key=lambda pair: float(pair[1]))[-MOST:]:
                self._last[address] = float(at)
        except (OSError, ValueError, TypeError, AttributeError):
            self._last.clear()

    def __contains__(self, address: str) -> bool:
        """Whether an agent has shown a token from this address in the last days."""
        at = self._last.get(address)
        return at is not None and self._clock() - at < LASTS

    def note(self, address: str) -> None:
        """An agent has shown a token from this address."""
        now = self._clock()
        new = address not in self
        self._last[address] = now
        self._last.move_to_end(address)
        if len(self._last) > MOST:
            self._last.popitem(last=False)
        if self._path is not None and (new or now >= self._saved + REFRESH):
            self._saved = now
            try:
                replace_file(self._path, dict(self._last))
            except OSError as error:
                logger.warning("the addresses of agents cannot be kept in %s: %s", self._path, error.strerror)


def origin_of(address: str) -> str:
    """What counts as one address: with IPv6 whoever has one has the 2^64 that begin alike."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
