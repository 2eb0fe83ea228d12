"""Texts about typed events, for people. No other module puts events into words.

The HTTP interface (and so the command line and the dashboard) and the log use them. No code parses these texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from tapfinger.live.protocol import events
from tapfinger.live.protocol.events import Amounts, LiveEvent


def sizes(amounts: Amounts) -> str:
    """``2 cpu, 0 gpu``: every resource."""
    return ", ".join(f"{value:g} {name}" for name, value in amounts.items())


def some(amounts: Amounts) -> str:
    """``2 cpu``: resources with amount 0 are left out."""
    return ", ".join(f"{value:g} {name}" for name, value in amounts.items() if value) or "nothing"


def seconds(value: float) -> str:
    """A duration with its unit."""
    if value < 120.0:
        return f"{value:.0f} s" if value >= 10.0 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200.0 else f"{value / 3600:.1f} h"


def silence(last_heard: object) -> str:
    """How long an agent is silent; ``last_heard``: seconds ago, None if never or unknown."""
    return f"silent, last heard {seconds(last_heard)} ago" if isinstance(last_heard, int | float) else "silent"


def grounds(known: events.Grounds) -> str:
    """Why a task got its cluster and size, from what was known at that time."""
    text = f"{seconds(known.expected)} expected"
    if known.minimum != known.maximum:
        text += (
            f" ({seconds(known.at_minimum)} with {some(known.minimum)}, "
            f"{seconds(known.at_maximum)} with {some(known.maximum)})"
        )
    if known.data:
        text += f", and its data would be there in {seconds(known.data)}"
    others = known.others
    rivals = f"{others} {'other' if others == 1 else 'others'} waited" if others else "nothing else waited"
    choice = f"{known.fitting} clusters had room" if known.fitting != 1 else "no other cluster had room"
    return f"{text}; {rivals}, {some(known.free)} free there, {choice}; decided by {known.by}"


def _granted(event: events.Granted) -> str:
    why = event.note if event.grounds is None else grounds(event.grounds)
    return ": ".join(filter(None, (sizes(event.allocation), why)))


def _ended(event: events.AttemptEnded) -> str:
    code = "" if event.code is None else f" with code {event.code}"
    return f"{event.result}{code}{f': {event.reason}' if event.reason else ''}"


def _ran_short(event: events.RanShort) -> str:
    return (
        f"{event.held:g} {event.resource} were not enough: from now on it gets at least {event.least:g}, and so do its "
        "owner's other tasks of this type"
    )


def _requeued(event: events.Requeued) -> str:
    if event.until is None:
        return ""
    times = "once" if event.setbacks == 1 else f"{event.setbacks} times in a row"
    return f"rests for {seconds(event.until - event.at)}: it ended early and without success {times}"


def _capacity(event: events.CapacityCompared) -> str:
    if event.configured == event.reported:
        return f"configuration and agent agree again: {some(event.configured)}"
    return (
        f"{some(event.configured)} are configured, and its agent has {some(event.reported)}; of each resource the "
        "smaller amount counts"
    )


def _older(event: events.OlderStore) -> str:
    return (
        f"{event.sign}: an older copy of the store was put in its place. What was submitted, cancelled or ended after "
        "that copy was made is not known any more; attempts that are not in it are stopped, and tasks whose end is not "
        f"in it are run again. It goes on with epoch {event.epoch}"
    )


def _drift(event: events.SpeedDrift) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(event.since))
    return f"{event.type}: tasks take {event.factor:.3g} times as long as before, since {since}"


_DETAILS: dict[type[LiveEvent], Callable[[Any], str]] = {
    events.Granted: _granted,
    events.AttemptResizing: lambda event: sizes(event.allocation),
    events.AttemptResized: lambda event: sizes(event.allocation),
    events.AttemptEnded: _ended,
    events.RanShort: _ran_short,
    events.Requeued: _requeued,
    events.AttemptRefused: lambda event: f"old attempt: {event.result}",
    events.AttemptRecovered: lambda _event: "it had counted as lost, and its agent says how it ended",
    events.Warned: lambda event: cast(str, event.text),
    events.AgentJoined: lambda event: cast(str, event.agent),
    events.AgentAway: lambda event: cast(str, event.reason),
    events.CapacityCompared: _capacity,
    events.OlderStore: _older,
    events.SchedulerFault: lambda event: cast(str, event.text),
    events.SpeedDrift: _drift,
    events.SpeedForgotten: lambda event: (
        f"{event.type}: its configured profile is another one, so what was learnt of it is forgotten"
    ),
    events.OtherEvent: lambda event: cast(str, event.words),
}


def detail(event: LiveEvent) -> str:
    """The details of an event besides its kind, task and cluster; often empty."""
    say = _DETAILS.get(type(event))
    return "" if say is None else say(event)


def shown(event: LiveEvent) -> dict[str, Any]:
    """An event as the HTTP interface shows it: as text for people, and its own fields as ``data`` for programs."""
    return {
        "at": event.at,
        "kind": event.kind,
        "task": event.task,
        "attempt": event.attempt,
        "cluster": event.cluster,
        "detail": detail(event),
        "data": events.own_fields(event),
    }


def sentence(event: LiveEvent) -> str:
    """An event as a line of the log."""
    about = {"task": event.task, "attempt": event.attempt, "cluster": event.cluster}
    said = detail(event)
    parts = [f"{name}={value}" for name, value in about.items() if value is not None]
    return " ".join([event.kind, *parts, *([f"({said})"] if said else [])])
