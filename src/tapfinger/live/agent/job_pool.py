"""Threads that do what may take long, so that the agent's loop never waits for a disk or a backend."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tapfinger.live.protocol.messages import Report

logger = logging.getLogger(__name__)

#: What is left to do in the agent's loop once a job is done; returns reports to send.
Then = Callable[[], list[Report]]


@dataclass(slots=True, eq=False)
class Job:
    """Something to do in a thread. It returns what is left to do in the agent's loop."""

    work: Callable[[], Then]
    #: When a thread took it, on the monotonic clock; None while it waits.
    begun: float | None = None


class JobPool:
    """At most ``count`` threads, started when there is work. A job that hangs keeps its thread, and nothing else."""

    def __init__(self, name: str, count: int) -> None:
        """``name``: of the threads."""
        self._name, self._count = name, count
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        self._done: deque[Then] = deque()
        self._threads: list[threading.Thread] = []
        self._change = threading.Condition()
        self._closed = False
        #: Whether the machine has refused the latest thread.
        self._refused = False

    def do(self, work: Callable[[], Then]) -> Job:
        """Do this as soon as a thread is free."""
        job = Job(work)
        with self._change:
            self._waiting.append(job)
            self._man()
            self._change.notify_all()
        return job

    def _man(self) -> None:
        """Start the threads that are lacking. What the machine refuses now is tried again with the next call."""
        while len(self._active) + len(self._waiting) > len(self._threads) < self._count and not self._closed:
            # Daemons: an agent that is told to end does not wait for a backend that hangs.
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                if not self._refused:
                    logger.error("%s: %s; it is tried again", self._name, error)
                self._refused = True
                return
            self._refused = False
            self._threads.append(thread)

    def withdraw(self, job: Job) -> bool:
        """Take back a job that no thread has begun. Returns False if one has."""
        with self._change:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def settle(self, patience: float) -> list[Report]:
        """Wait until nothing is left to do, at most ``patience`` seconds; then finish what is done, in this thread."""
        with self._change:
            self._man()
            self._change.wait_for(lambda: not self._waiting and not self._active, patience if self._threads else 0.0)
        reports: list[Report] = []
        while self._done:
            reports += self._done.popleft()()
        return reports

    @property
    def in_hand(self) -> int:
        """Number of jobs that wait or are under way."""
        with self._change:
            return len(self._waiting) + len(self._active)

    @property
    def stranded(self) -> bool:
        """Whether jobs wait and there is no thread for any."""
        with self._change:
            return bool(self._waiting) and not self._threads

    def hanging(self, seconds: float) -> list[Job]:
        """Jobs that have been under way for so long."""
        limit = time.monotonic() - seconds
        with self._change:
            return [job for job in self._active if job.begun is not None and job.begun <= limit]

    def _serve(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = self._waiting.popleft()
                job.begun = time.monotonic()
                self._active.append(job)
            then: Then = list
            try:
                then = job.work()
            except (Exception, SystemExit):  # a thread that ends would take its place in the pool along
                logger.exception("%s: a job failed; the agent goes on", self._name)
            with self._change:
                self._done.append(then)
                self._active.remove(job)
                self._change.notify_all()

    def close(self, patience: float = 5.0) -> None:
        """Begin nothing more, and wait for what is under way, at most ``patience`` seconds."""
        with self._change:
            self._closed = True
            self._waiting.clear()
            self._change.notify_all()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
