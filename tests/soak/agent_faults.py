"""Faults of agents for the nemesis: a disk that is full for a while, and starts that raise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from live.disks import fill

from tapfinger.live.backends.base import Run
from tapfinger.live.backends.process import Process

#: File in an agent's directory: while it is there, nothing starts.
MOOD = "starts raise"
#: How to name the backend on an agent's command line (``tests`` must be on its Python path).
MOODY = "soak.agent_faults:Moody"


class Moody(Process):
    """Runs tasks as processes, and raises what nobody foresaw while its mood is bad."""

    def start(self, run: Run) -> None:
        """Start a task, or not."""
        if (self.context.directory / MOOD).exists():
            raise RuntimeError("a start that raises")
        super().start(run)


def starts_raise(agent: Path, pause: Callable[[], None]) -> None:
    """For a while every start of this agent raises; its backend must be ``MOODY``. Its tasks then fail with 127."""
    (agent / MOOD).touch()
    pause()
    (agent / MOOD).unlink()


def full_disk(agent: Path, pause: Callable[[], None]) -> None:
    """For a while nothing can be written on this agent's disk, a small one (``live.disks.small_disk``)."""
    filler = fill(agent)
    pause()
    filler.unlink()
