"""Measures how many cores are used by processes that are not of this agent's tasks, from ``/proc``.

The processor time of the cores, less that of the agent and of everything it has started. The kernel adds the time of
a process that has ended to its parent's, so nothing of a task's time is missing when its processes end. One look reads
one small file for each process of the machine.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tapfinger.live.backends import supervise

#: Seconds over which the use is smoothed.
SMOOTHED = 20.0
#: How far the smoothed use must be from what was said last for another number of cores to be said.
SLACK = 0.6
#: Least seconds between two looks that are compared: clock ticks are a hundredth of a second.
APART = 1.0
#: Positions in a line of ``/proc/stat`` of time in which a core was not idle: user, nice, system, irq, softirq, steal.
_BUSY = (1, 2, 3, 6, 7, 8)
#: Positions in ``supervise.process_facts`` of a process: its time, and that of its children that have ended.
_TIMES = slice(11, 15)


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Processor time up to a moment, in seconds."""

    at: float
    #: Of all processes on the cores.
    busy: float
    #: Of the agent and its tasks.
    own: float
    #: Process ids of tasks' supervisors that an earlier agent has started.
    inherited: frozenset[int] = frozenset()


class Bystanders:
    """The cores that others use, smoothed over some seconds."""

    def __init__(self, spare: int, read: Callable[[], CoreTimes]) -> None:
        """``spare``: cores among those that ``read`` looks at which no task is given; others may have them."""
        self._spare = spare
        self._read = read
        self._last: CoreTimes | None = None
        self._mean: float | None = None
        self._said = 0

    def look(self) -> int | None:
        """Whole cores that others use now; None before that is known."""
        now, last = self._read(), self._last
        if last is None or now.inherited != last.inherited:
            self._last = now  # when the task of an earlier agent ends, its time is gone
        elif now.at - last.at >= APART:
            self._last = now
            self._compare(last, now)
        return None if self._mean is None else self._said

    def _compare(self, last: CoreTimes, now: CoreTimes) -> None:
        own, seconds = now.own - last.own, now.at - last.at
        if own < 0.0:
            return  # a process has ended while they were read, and was missed or counted twice
        used = max(0.0, (now.busy - last.busy - own) / seconds - self._spare)
        share = 1.0 - math.exp(-seconds / SMOOTHED)
        self._mean = used if self._mean is None else self._mean + share * (used - self._mean)
        if abs(self._mean - self._said) > SLACK:
            self._said = round(self._mean)


def core_times(cores: Collection[int], inherited: Iterable[int]) -> CoreTimes:
    """Read the times of these cores, of this process, and of supervisors that an earlier agent has started."""
    ticks = os.sysconf("SC_CLK_TCK")
    busy = 0
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            words = line.split()
            number = words[0].removeprefix("cpu")
            if number.isdecimal() and int(number) in cores:
                busy += sum(int(words[n]) for n in _BUSY)
    at, children, times = time.monotonic(), dict[int, list[int]](), dict[int, int]()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                facts = supervise.process_facts(entry)
            except OSError:
                continue  # it has ended meanwhile
            children.setdefault(int(facts[1]), []).append(int(entry))
            times[int(entry)] = sum(map(int, facts[_TIMES]))
    mine = _with_descendants([os.getpid()], children)
    left = frozenset(inherited) - mine
    own = mine | _with_descendants(left, children)
    return CoreTimes(at, busy / ticks, sum(times.get(pid, 0) for pid in own) / ticks, left)


def _with_descendants(roots: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    found: set[int] = set()
    new = set(roots)
    while new:
        found |= new
        new = {child for pid in new for child in children.get(pid, ())} - found
    return found
