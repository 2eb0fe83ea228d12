"""What a backend says about the end of a run, in a form that every coordinator takes.

Some of it comes from the task's side: from its driver on another machine, or from files that it may have changed. One
number that the coordinator refuses would be part of every report, and cut the whole cluster off.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from pydantic import TypeAdapter, ValidationError

from tapfinger.live.protocol.messages import Outcome

_OUTCOMES = TypeAdapter(Outcome)


def sound(outcome: Outcome) -> Outcome:
    """The outcome as a coordinator would read it; a failure if it would not."""
    try:
        reason = outcome.reason.encode(errors="replace").decode()
        return _OUTCOMES.validate_python(asdict(replace(outcome, reason=reason)))
    except (ValidationError, AttributeError, TypeError):
        return Outcome("failed", reason="it has ended, and what its backend says of how makes no sense")
