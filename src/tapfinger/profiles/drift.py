"""Detects that a task type has become faster or slower: new code, other data, a slower disk.

Each run is compared with earlier ones at the same allocation (``Belief.surprise``). As long as nothing changes, these
numbers are independent and standard normal, whatever the surface looks like, so a two-sided cumulative sum of the
excess over SLACK stays small: by Siegmund's formula it reaches ALARM once in several hundred thousand runs. A change
drives it there within a few runs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tapfinger.core.model import Resources
from tapfinger.profiles.beliefs import Belief, Timed

#: Surprise, in standard deviations, that is not unusual, however long it lasts.
SLACK: Final = 0.5

#: Cumulative sum from which the speed counts as changed.
ALARM: Final = 12.0

#: Largest surprise that one run may contribute: a few runs that hang are no change of the type.
MOST: Final = 3.0

#: Number of latest runs remembered one by one: after a change, those since then still count, those before do not.
LATEST: Final = 60


@dataclass(frozen=True, slots=True)
class Drift:
    """A change of speed."""

    #: Seconds of a task now, divided by its seconds before.
    factor: float
    #: Number of latest runs made since the change.
    runs: int


class Tracked:
    """A belief that forgets a type's old speed when the speed has changed."""

    def __init__(self, belief: Belief) -> None:
        """Start with no runs seen."""
        self.belief = belief
        self._latest: deque[Timed] = deque(maxlen=LATEST)
        self._surprises: deque[float | None] = deque(maxlen=LATEST)
        #: Sums of deviations to the fast and to the slow side, and runs since each was last zero.
        self._sums = [0.0, 0.0]
        self._counts = [0, 0]

    def take(self, timed: Timed) -> Drift | None:
        """Record a run, or a part of one at one allocation; return the change of speed, if there is one."""
        surprise = self.belief.surprise(timed)
        self.belief.add(timed)
        self._latest.append(timed)
        self._surprises.append(surprise)
        for side, sign in enumerate((1.0, -1.0)):
            if surprise is not None:
                moved = sign * max(-MOST, min(MOST, surprise)) - SLACK
                self._sums[side] = max(0.0, self._sums[side] + moved)
            self._counts[side] = self._counts[side] + 1 if self._sums[side] else 0
        if max(self._sums) < ALARM:
            return None
        return self._change(self._since(self._counts[0 if self._sums[0] >= ALARM else 1]))

    def _since(self, most: int) -> int:
        """Likeliest number of runs made since the change, at most ``most``."""
        best, runs, total, count = 0.0, 1, 0.0, 0
        for n, surprise in enumerate(list(reversed(self._surprises))[:most], start=1):
            if surprise is not None:
                total, count = total + surprise, count + 1
                if total**2 / count > best:
                    best, runs = total**2 / count, n
        return runs

    def _change(self, runs: int) -> Drift:
        """Separate what was seen since the change from what was seen before it."""
        since = list(self._latest)[-runs:]
        for timed in since:
            self.belief.add(timed, -1.0)
        # Runs at allocations without other runs say nothing about the change.
        known = [(timed.share, self.belief.deviation(timed)) for timed in since]
        told = [(share, off) for share, off in known if off is not None]
        shift = sum(share * off for share, off in told) / sum(share for share, _ in told) if told else 0.0
        self.belief.changed(shift)
        for timed in since:
            self.belief.add(timed)
        self._latest = deque(since, maxlen=LATEST)
        self._surprises = deque([None] * len(since), maxlen=LATEST)
        self._sums, self._counts = [0.0, 0.0], [0, 0]
        return Drift(math.exp(-shift), runs)

    def state(self) -> dict[str, Any]:
        """Everything as plain data, for ``restore``."""
        both = zip(self._latest, self._surprises, strict=True)
        latest = [[list(t.allocation), t.log_rate, t.share, surprise, t.hardware] for t, surprise in both]
        return {**self.belief.state(), "sums": self._sums, "counts": self._counts, "latest": latest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned for the same profile."""
        self.belief.restore(state)
        self._sums, self._counts = list(map(float, state["sums"])), list(map(int, state["counts"]))
        # Rows that were saved before there were kinds of hardware end with the surprise.
        rows = [(*row, None)[:5] for row in state["latest"]]
        self._latest = deque((Timed(Resources(a), y, share, kind) for a, y, share, _, kind in rows), maxlen=LATEST)
        self._surprises = deque((surprise for *_, surprise, _ in rows), maxlen=LATEST)
