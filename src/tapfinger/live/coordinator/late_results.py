"""Attempts that counted as lost and of which their agents may still tell how they really ended."""

from __future__ import annotations

from collections.abc import Iterable

from tapfinger.live.protocol import events
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.messages import AttemptId, Outcome

#: Most attempts that are remembered. Beyond that, the results of the oldest are ignored without a note.
MOST = 10_000
#: Number of latest events in which a new coordinator looks for such attempts of its predecessor.
LINES = 5_000


class LateResults:
    """Remembers attempts that counted as lost, also after the end of their tasks: a result is noted once."""

    def __init__(self, lost: Iterable[AttemptId] = ()) -> None:
        """``lost``: those of the predecessor."""
        self._lost = dict.fromkeys(lost)  # oldest first

    def add(self, ident: AttemptId) -> None:
        """Remember an attempt that counts as lost from now on."""
        self._lost[ident] = None
        if len(self._lost) > MOST:
            del self._lost[next(iter(self._lost))]

    def take(self, ident: AttemptId) -> bool:
        """Whether this attempt counts as lost and is heard of for the first time since."""
        known = ident in self._lost
        self._lost.pop(ident, None)
        return known


def ended_by_itself(outcome: Outcome) -> bool:
    """Whether an attempt may have done all its work: also one that exited with a code just as it was told to stop."""
    exited = outcome.code is not None and outcome.code >= 0
    return outcome.result in ("finished", "failed") or (outcome.result == "stopped" and exited)


def lost_in(history: Iterable[LiveEvent]) -> list[AttemptId]:
    """Attempts that counted as lost by the end of these events, and whose result was not heard."""
    found: dict[AttemptId, None] = {}
    for event in history:
        ident = (event.task or 0, event.attempt or 0)
        if isinstance(event, events.AttemptEnded) and event.result == "lost":
            found[ident] = None
        elif isinstance(event, events.AttemptRefused | events.AttemptRecovered):
            found.pop(ident, None)
    return list(found)
