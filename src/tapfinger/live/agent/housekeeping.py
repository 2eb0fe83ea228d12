"""Keeps the agent's disk in order: results, what ended runs leave, and who is to blame when it is full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from tapfinger.live.agent.disk import MB, DiskRules, DiskWatch
from tapfinger.live.agent.job_pool import JobPool, Then
from tapfinger.live.agent.kept import KeptRun
from tapfinger.live.agent.leases import boot_clock
from tapfinger.live.agent.results import Results
from tapfinger.live.agent.trees import LOOK, Extent, extent_of, make_open
from tapfinger.live.protocol.messages import AttemptId, Outcome, Report

logger = logging.getLogger(__name__)

#: Seconds between two looks at the files that are kept; on a full disk it is looked at once a second.
TIDY = 30.0
#: Most seconds for measuring the directories of all attempts, one after the other.
LOOKS = 60.0


class Housekeeping:
    """What concerns the disk of an agent. A thread of its own removes and measures."""

    def __init__(self, directory: Path, rules: DiskRules, stop: Callable[[KeptRun], list[Report]]) -> None:
        """``stop``: ends a run at once; called in the agent's loop."""
        self.results = Results(directory, rules)
        self.disk = DiskWatch(directory, rules.min_free_mb)
        #: What is wrong with the disk; empty if nothing is.
        self.trouble = ""
        self.workers = JobPool("tidy", 1)
        self._stop = stop
        self._next = 0.0
        #: Whether a look waits or is under way.
        self._looking = False
        #: What was free before each attempt began.
        self._before: dict[AttemptId, Extent] = {}
        #: Attempts of which it was logged that they cannot be measured.
        self._doubted: set[AttemptId] = set()

    def begins(self, ident: AttemptId) -> None:
        """Note what is free before an attempt begins, or when it is found."""
        if self.disk.free is not None:
            self._before.setdefault(ident, self.disk.free)

    def heard(self, trouble: str) -> None:
        """Note what is wrong with the disk, and say it once."""
        if trouble != self.trouble:
            logger.log(logging.ERROR if trouble else logging.INFO, "%s", trouble or "the disk is well again")
            self.trouble, self._next = trouble, 0.0

    def told(self, kept: KeptRun, outcome: Outcome) -> Outcome:
        """An outcome with what the disk has to do with it."""
        if kept.verdict:
            return Outcome("failed", outcome.code, kept.verdict, outcome.output)
        return self.results.told(kept.run, outcome)

    def let_go(self, kept: KeptRun) -> None:
        """Keep what an ended run has left, and remove the rest."""
        discard, keep = partial(self.results.discard, kept.run.directory), partial(self.results.keep, kept.run)
        self._do(discard if kept.verdict else keep)

    def remove(self, path: Path) -> None:
        """Remove a directory."""
        self._do(partial(self.results.discard, path))

    def _do(self, work: Callable[[], None]) -> None:
        def done() -> Then:
            work()
            return list

        self.workers.do(done)

    def tidy(self, runs: Collection[KeptRun]) -> None:
        """Let a thread remove what is kept for too long, and find who is to blame for a full disk."""
        for kept in runs:
            self.begins(kept.run.id)
        now, full = boot_clock(), self.disk.full
        if now >= self._next and not self._looking:  # whatever else the thread has to do, it comes to this
            self._next, self._looking = now + (1.0 if full else TIDY), True
            there = {kept.run.id for kept in runs if not kept.ended}
            self._before = {ident: free for ident, free in self._before.items() if ident in there}
            self._doubted &= there
            free = self._before.values()
            before = Extent(max(each.size for each in free), max(each.files for each in free)) if free else None
            alive = [kept for kept in runs if not kept.ended and kept.starting is None]
            self.workers.do(partial(self._survey, alive, before, full))

    def _survey(self, runs: Sequence[KeptRun], before: Extent | None, full: bool) -> Then:
        try:
            return self._look(runs, before, full)
        finally:
            self._looking = False

    def _look(self, runs: Sequence[KeptRun], before: Extent | None, full: bool) -> Then:
        condemned = [kept for kept in runs if kept.verdict]
        for kept in condemned:  # it ends when its end can be written down, which needs room
            make_open(kept.run.visible)
            make_open(kept.run.work)  # else it could not be moved
            self.results.discard(kept.run.work)
        extents = self._measure(runs) if full and not condemned else {}
        blamed = self.disk.blame(extents, before)
        if found := next((kept for kept in runs if kept.run.id == blamed), None):
            return partial(self._blame, found, extents[found.run.id])  # at once: the rest is for the next look
        self.results.tidy(full and not condemned)
        return list

    def _measure(self, runs: Sequence[KeptRun]) -> dict[AttemptId, Extent]:
        """What each attempt has in its directory."""
        extents = {}
        until = time.monotonic() + LOOKS
        for kept in runs:
            ident = kept.run.id
            extent = extents[ident] = extent_of(kept.run.directory, max(0.0, min(LOOK, until - time.monotonic())))
            if not extent.complete and ident not in self._doubted:
                self._doubted.add(ident)
                logger.warning("what task %d attempt %d has put on the full disk cannot be measured", *ident)
        return extents

    def _blame(self, kept: KeptRun, extent: Extent) -> list[Report]:
        if kept.ended or not self.disk.full:
            return []
        kept.verdict = (
            f"the disk of its cluster was nearly full, and it had put {extent.size / MB:.0f} MB there, in "
            f"{extent.files} files, by far the most; they were removed"
        )
        logger.error("task %d attempt %d is ended: %s", *kept.run.id, kept.verdict)
        return self._stop(kept)
