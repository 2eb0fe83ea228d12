"""Rules of the protocol that a history alone can show to be broken: rests, and how often a task is tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tapfinger.live.protocol import events
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.records import TaskSpec

#: Seconds; as in the package, but written down again: the rule is checked, not the constant.
LONG = 600.0
RESTS = (1.0, 4.0, 16.0, 64.0, 256.0, 900.0)
#: Most attempts in an hour, unless one of them ran for long.
MOST = 10


class Broken(AssertionError):  # noqa: N818 - as its siblings in the package
    """An invariant does not hold."""


@dataclass
class _Story:
    """A task's attempts so far."""

    #: When attempts were granted, since one of them ran for long.
    grants: list[float] = field(default_factory=list)
    started: float | None = None
    setbacks: int = 0
    earliest: float = 0.0


def check_rests(history: Iterable[LiveEvent]) -> None:
    """No attempt begins before its task has rested, and no task is tried too often."""
    stories: dict[int, _Story] = {}
    for line in history:
        if line.task is None:
            continue
        story = stories.setdefault(line.task, _Story())
        if isinstance(line, events.Granted):
            if line.at < story.earliest - 1e-6:
                raise Broken(f"task {line.task} should rest until {story.earliest}, and was granted at {line.at}")
            story.grants.append(line.at)
            story.started = None
            _check_hour(line.task, story.grants)
        elif isinstance(line, events.AttemptStarted):
            story.started = line.at
        elif isinstance(line, events.AttemptRecovered):
            story.setbacks -= 1
        elif isinstance(line, events.AttemptEnded) and line.result != "finished":
            if story.started is not None and line.at - story.started >= LONG:
                story.setbacks, story.grants = 0, []
            else:
                story.setbacks += 1
            rest = RESTS[min(story.setbacks, len(RESTS)) - 1] if story.setbacks else 0.0
            story.earliest = line.at + rest


def _check_hour(task: int, grants: Sequence[float]) -> None:
    last = [at for at in grants if at > grants[-1] - 3600.0]
    if len(last) > MOST:
        raise Broken(f"task {task} made {len(last)} attempts within an hour")


#: Least and most cpus of each type of the site of ``protocol.py``, and how often a task may run out of them.
CPUS = {"small": (1, 4, 3), "large": (3, 6, 2)}


def check_needs(history: Iterable[LiveEvent], specs: Mapping[int, TaskSpec]) -> None:
    """What ran out of a resource gets twice as much, and so does what begins after it; none of it goes on for ever."""
    least: dict[str, float] = {}
    times: Counter[int] = Counter()
    for line in history:
        if line.task is None or line.task not in specs:  # an older copy of the disk may not know it any more
            continue
        kind = specs[line.task].type
        low, most, often = CPUS[kind]
        if isinstance(line, events.RanShort):
            times[line.task] += 1
            least[kind] = max(least.get(kind, low), line.least)
            if line.least < min(2 * line.held, most) or line.least <= line.held or times[line.task] > often:
                raise Broken(f"task {line.task} ran out {times[line.task]} times, now with {line.held}: {line.least}")
        elif isinstance(line, events.Granted) and line.allocation["cpu"] < least.get(kind, low):
            raise Broken(f"task {line.task} gets {line.allocation}, and {kind} tasks need {least[kind]}")
