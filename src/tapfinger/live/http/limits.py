"""Limits for each requester: token buckets, which refill over time, and bytes that may be held at once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: Most buckets that are remembered; the least recently used one is dropped, and would be full when used again.
MOST = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Buckets:
    """Token buckets by name."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        """``rate``: requests per second that a bucket regains, up to ``burst``."""
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def _bucket(self, name: str) -> _Bucket:
        """The bucket, refilled until now."""
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(self._burst, now)
            if len(self._buckets) > MOST:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._rate)
        bucket.at = now
        return bucket

    def take(self, name: str, amount: float = 1.0) -> float:
        """Take from the bucket. Returns 0, or the seconds to wait if not enough is left (nothing is taken)."""
        bucket = self._bucket(name)
        if bucket.left < amount:
            return (amount - bucket.left) / self._rate
        bucket.left -= amount
        return 0.0

    def spend(self, name: str, amount: float) -> None:
        """Take what was used, known only afterwards; the bucket may be overdrawn, by one burst at most."""
        bucket = self._bucket(name)
        bucket.left = max(-self._burst, bucket.left - amount)


class Reserve:
    """Bytes that all requesters may hold together, and each of them a share of it."""

    def __init__(self, most: int, share: int) -> None:
        """``most``: bytes in all; ``share``: bytes of one requester."""
        self._most = most
        self._share = share
        self._held: Counter[str] = Counter()
        self._total = 0

    def take(self, name: str, amount: int) -> bool:
        """Take this many bytes, if there is room. A requester that holds nothing may take more than its share."""
        held = self._held[name]
        if (self._total and self._total + amount > self._most) or (held and held + amount > self._share):
            return False
        self._held[name] += amount
        self._total += amount
        return True

    def give_back(self, name: str, amount: int) -> None:
        """Give back what was taken."""
        self._total -= amount
        self._held[name] -= amount
        if not self._held[name]:
            del self._held[name]
