"""Errors of the coordinator's own that nobody foresaw: it starts over from its store, and is wary of what caused them.

Whoever sent what could not be handled is refused for a while, longer each time; nobody else has to wait. An error that
nobody sent, such as one of the passing of time, would come back: after a few of them the coordinator ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tapfinger.errors import AgentRefused, StoreUnavailable, TooMany
from tapfinger.live.coordinator import pauses
from tapfinger.live.coordinator.inputs import Cancel, Stimulus, Submit
from tapfinger.live.protocol.messages import Report

#: Seconds without an error after which whoever caused the last one is trusted again.
TRUSTED = 3600.0
#: Errors that nobody sent, in ``RECENT`` seconds, with which the coordinator goes on.
MOST, RECENT = 3, 600.0
#: Most causes that are remembered.
REMEMBERED = 1000

#: The name of the fault in the coordinator's health.
FAULT = "coordinator"


def starts_over() -> StoreUnavailable:
    """What those are told whose changes may or may not have been saved."""
    return StoreUnavailable(
        "the coordinator starts over from its store after an error of its own, which its log tells; whether this was "
        "saved is not known; try again in a moment"
    )


@dataclass(slots=True)
class _Cause:
    errors: int = 0
    until: float = 0.0
    last: float = 0.0


class Suspects:
    """Who has sent what could not be handled, and until when they are refused."""

    def __init__(self) -> None:
        """Start without any."""
        self._causes: dict[object, _Cause] = {}
        self._unsent: deque[float] = deque(maxlen=MOST)

    def check(self, stimulus: Stimulus, now: float) -> None:
        """Refuse what comes from where the last error came from, for a while."""
        cause = self._causes.get(_sender(stimulus)) if self._causes else None
        if cause is None or now >= cause.until:
            return
        text = (
            "what came last from here could not be handled, which is a fault of the coordinator; its log tells "
            f"more. Try again in {cause.until - now:.0f} s"
        )
        raise AgentRefused(text) if isinstance(stimulus, Report) else TooMany(text)

    def note(self, stimulus: Stimulus, now: float) -> bool:
        """Note an error in handling a stimulus. Returns whether the coordinator should start over, not end."""
        sender = _sender(stimulus)
        if sender is None:
            worn = len(self._unsent) == MOST and now - self._unsent[0] < RECENT
            self._unsent.append(now)
            return not worn
        cause = self._causes.pop(sender, None)
        if cause is None or now - cause.last > TRUSTED:
            cause = _Cause()
        cause.errors, cause.last = cause.errors + 1, now
        cause.until = now + pauses.rest(cause.errors)
        self._causes[sender] = cause
        if len(self._causes) > REMEMBERED:
            del self._causes[next(iter(self._causes))]  # the one that has been quiet for longest
        return True

    def calm(self, now: float) -> bool:
        """Whether there was no error lately."""
        lately = max((cause.last for cause in self._causes.values()), default=-RECENT)
        return now - max(lately, self._unsent[-1] if self._unsent else -RECENT) >= RECENT


def _sender(stimulus: Stimulus) -> object:
    """Whom a stimulus comes from, as far as it tells; None if from nobody."""
    if isinstance(stimulus, Report):
        return Report, stimulus.cluster
    if isinstance(stimulus, Submit):
        return Submit, stimulus.owner
    return (Cancel, stimulus.task) if isinstance(stimulus, Cancel) else None
