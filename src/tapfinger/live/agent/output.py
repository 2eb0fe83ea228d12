"""Sends the output of tasks to the coordinator, a limited amount at a time, however many tasks there are."""

from __future__ import annotations

from dataclasses import dataclass

from tapfinger.live.backends.base import Run
from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.wire import CHUNK, LARGEST, LogChunk, LogSize

#: Most bytes of output of all tasks that are sent at once.
MOST = 8 * CHUNK
#: Most pieces that are sent at once.
PIECES = 200
#: Seconds until the output of a task is looked at again if there was nothing new, for each task of the agent: many
#: are looked at less often. At most half a second.
QUIET, LONGEST = 0.001, 0.5


@dataclass(slots=True)
class Shipping:
    """How much of the output of one attempt the coordinator has."""

    #: Bytes that the coordinator has; None until it has told.
    shipped: int | None = None
    #: Whether output was sent that the coordinator has not answered yet.
    asked: bool = False
    #: Whether the coordinator wants no more of it.
    full: bool = False
    #: When to look at it again.
    next: float = 0.0

    def forget(self) -> None:
        """After a new connection, the coordinator must be asked again how much it has."""
        self.shipped, self.asked = None, False

    def piece(self, run: Run, now: float, tasks: int) -> LogChunk | None:
        """The next piece to send, if there is one. ``tasks``: how many the agent has."""
        if self.full or self.asked or (now < self.next and self.shipped is not None):
            return None
        piece = None
        if self.shipped is None:
            piece = LogChunk(run.id, 0)
        else:
            self.next = now + min(LONGEST, QUIET * tasks)
            start, data = Spool(run.output).read(self.shipped, CHUNK)
            if start > LARGEST:  # the task has tampered with it, and no message can say it
                self.full = True
            elif data:
                piece = LogChunk(run.id, start, data.decode("latin-1"), start - self.shipped)
        self.asked = piece is not None
        return piece

    def arrived(self, size: LogSize) -> None:
        """Note how much the coordinator has."""
        self.shipped, self.full, self.asked, self.next = size.size, size.full, False, 0.0

    def complete(self, run: Run) -> bool:
        """Whether nothing is left to send."""
        try:
            return self.full or (self.shipped is not None and self.shipped >= Spool(run.output).end)
        except (OSError, ValueError):  # the task has tampered with it: there is nothing to wait for
            return True
