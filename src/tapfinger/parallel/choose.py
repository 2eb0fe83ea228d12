"""Which pool the user's options ask for."""

from __future__ import annotations

from tapfinger.parallel.base import Pool
from tapfinger.parallel.local import InProcess, Processes


def open_pool(jobs: int = 1) -> Pool:
    """This process for one job at a time, else so many processes."""
    return InProcess() if jobs == 1 else Processes(jobs)
