"""Files that ended tasks have left in their own directory: kept for a while, within a limit, oldest removed first."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tapfinger.live.agent.disk import GB, DiskRules
from tapfinger.live.agent.leases import boot_clock, boot_id, replace_file
from tapfinger.live.agent.trees import extent_of, make_open, remove_tree
from tapfinger.live.backends.base import TASK, WORK, Run
from tapfinger.live.backends.spool import read_json
from tapfinger.live.protocol.messages import AttemptId, Outcome

logger = logging.getLogger(__name__)

#: Name of the directory within the agent's.
RESULTS = "results"
#: Beginning of the names of directories that are being removed.
GONE = ".gone-"
#: Most seconds for removing a directory: at once, at each later turn of what is left of it, and all such turns of one
#: look together. A living task that has got hold of it may go on filling it. The same for measuring what is kept, which
#: may be hundreds of thousands of files: what was not seen after a whole turn counts nothing.
AT_ONCE, TURN, TURNS = 0.5, 5.0, 10.0
#: Most attempts whose files are kept, and the bytes that each counts at least: names and notes take room as well.
MOST, LEAST = 10_000, 4096


@dataclass(frozen=True, slots=True)
class _Entry:
    """The files of one attempt."""

    path: Path
    #: Seconds for which they have been kept.
    age: float
    #: Bytes on disk.
    size: int


class Results:
    """The directory with files of ended attempts, one directory ``TASK.ATTEMPT`` for each."""

    def __init__(self, directory: Path, rules: DiskRules) -> None:
        """``directory``: the agent's."""
        self._runs = directory / "runs"
        self._results = directory / RESULTS
        self._rules = rules
        #: What the notes say, by name, so that a look reads only those that are new.
        self._noted: dict[str, dict[str, Any]] = {}
        #: When what is left of removed directories had its latest turn, on the monotonic clock.
        self._turns: dict[Path, float] = {}

    def place(self, ident: AttemptId) -> Path:
        """Where the files of an attempt are kept after its end."""
        return self._results / f"{ident[0]}.{ident[1]}"

    def told(self, run: Run, outcome: Outcome) -> Outcome:
        """An outcome that also says where the files of the attempt are, and until when, if it has left any."""
        place = self.place(run.id)
        if not place.is_dir() and not (self._wanted(run) and self._can_keep()):
            return outcome
        until = time.time() + self._rules.keep_results_hours * 3600.0
        return replace(outcome, results=str(place), results_until=until)

    def _can_keep(self) -> bool:
        """Whether there is the directory for what is kept; on a full disk it cannot be made."""
        with suppress(OSError):
            self._results.mkdir(mode=0o700, exist_ok=True)
        return self._results.is_dir()

    def _wanted(self, run: Run) -> bool:
        """Whether there is something to keep. A limit of 0 keeps nothing."""
        keeps = self._rules.keep_results_hours > 0.0 and self._rules.max_results_gb > 0.0
        # Opened first: a directory that its task has closed can be neither read nor moved.
        opened = keeps and run.launch.cwd is None and make_open(run.visible) and make_open(run.work)
        return opened and _has_files(run.work)

    def keep(self, run: Run) -> None:
        """Keep the files of a run that may be forgotten, and remove the rest of its directory."""
        place = self.place(run.id)
        if self._wanted(run) and not place.exists():
            try:
                self._can_keep()
                run.work.rename(place)
            except OSError as error:
                logger.error("the files of task %d attempt %d could not be kept: %s", *run.id, error)
            else:
                self._noted.pop(place.name, None)
                self._kept(place, AT_ONCE)  # on a full disk nothing is noted, and it counts from the next look on
        self.discard(run.directory)

    def discard(self, path: Path, seconds: float = AT_ONCE) -> None:
        """Remove a directory. From the first moment on nobody finds it; what is not removed in time is left."""
        gone = _gone(self._results if path.parent == self._results else self._runs, path.name)
        try:
            path.rename(gone)
        except OSError:
            remove_tree(path, TURN)  # where it is no later turn would find it
        else:
            remove_tree(gone, seconds)
            self._turns[gone] = time.monotonic()

    def disown(self, ident: AttemptId) -> None:
        """Let nobody find what is kept of an attempt: with another store, another task is given its numbers.

        It is removed with the next look, since it may be large.
        """
        place = self.place(ident)
        with suppress(FileNotFoundError):
            place.rename(_gone(self._results, place.name))
            logger.warning("files of an earlier task %d attempt %d are removed: another one starts", *ident)
        with suppress(FileNotFoundError):
            self._note(place).unlink()
        self._noted.pop(place.name, None)

    def tidy(self, full: bool = False) -> None:
        """Remove what is too old or too much. ``full``: the disk needs room, so the oldest goes in any case."""
        self._prune(full)
        self._sweep()

    def _sweep(self) -> None:
        """Go on with what is left of removed directories: first what has waited longest, so each gets its turn."""
        left = [*self._below(self._runs, f"{GONE}*"), *self._below(self._results, f"{GONE}*")]
        self._turns = {path: self._turns.get(path, 0.0) for path in left}
        until = time.monotonic() + TURNS
        for path in sorted(left, key=self._turns.__getitem__):
            if (seconds := min(TURN, until - time.monotonic())) <= 0.0:
                return
            remove_tree(path, seconds)
            self._turns[path] = time.monotonic()

    def _prune(self, full: bool) -> None:
        until = time.monotonic() + TURNS
        places = self._below(self._results, "[0-9]*.[0-9]*")
        self._forget_gone({path.name for path in places})
        entries = sorted(self._entries(places), key=lambda entry: -entry.age)
        total = sum(entry.size for entry in entries)
        for later, entry in zip(range(len(entries) - 1, -1, -1), entries, strict=True):
            old, many = entry.age > self._rules.keep_results_hours * 3600.0, later >= MOST
            if old or full or many or total > self._rules.max_results_gb * GB:
                reasons = {"too old": old, "the disk is nearly full": full, "there are too many": many}
                why = next((reason for reason, holds in reasons.items() if holds), "all together are too large")
                logger.info("the files in %s are removed: %s", entry.path, why)
                self.discard(entry.path, max(0.0, min(AT_ONCE, until - time.monotonic())))
                with suppress(OSError):
                    self._note(entry.path).unlink()
                total -= entry.size
                full = False

    def _forget_gone(self, names: Set[str]) -> None:
        """Remove notes about what is not there any more. ``names``: of what is."""
        for gone in self._noted.keys() - names:
            self._noted.pop(gone, None)
        with suppress(OSError):
            for note in os.listdir(self._results):
                if fnmatchcase(note, ".[0-9]*.json") and note[1:].removesuffix(".json") not in names:
                    (self._results / note).unlink()

    def _entries(self, places: Iterable[Path]) -> list[_Entry]:
        found = []
        until = time.monotonic() + TURNS
        for path in places:
            kept = self._kept(path, min(TURN, max(0.0, until - time.monotonic())))
            # The wall clock may jump: within one boot of the machine it is not asked.
            age = boot_clock() - kept["at"] if kept["boot"] == boot_id() else time.time() - kept["wall"]
            found.append(_Entry(path, age, max(LEAST, kept["size"])))
        return found

    def _kept(self, path: Path, seconds: float) -> dict[str, Any]:
        """Since when an attempt's files are kept, and how large they are; measured for so many seconds, if need be."""
        known = self._noted.get(path.name) or self._read(path)
        if known is not None and (known["measured"] or seconds <= 0.0):
            return known
        extent = extent_of(path, seconds)
        # Where nothing is noted, it counts from now on.
        kept = dict(known or {"boot": boot_id(), "at": boot_clock(), "wall": time.time(), "size": 0.0})
        kept["size"] = max(kept["size"], float(extent.size))
        kept["measured"] = extent.complete or seconds >= TURN
        try:
            replace_file(self._note(path), kept)
        except OSError:
            return kept
        self._noted[path.name] = kept
        return kept

    def _read(self, path: Path) -> dict[str, Any] | None:
        """What is noted of an attempt's files; None if that is nothing of use."""
        try:
            saved = read_json(self._note(path))
            kept: dict[str, Any] = {name: float(saved[name]) for name in ("at", "wall", "size")}
            kept |= {"boot": str(saved["boot"]), "measured": saved.get("measured", True) is True}
        except (OSError, ValueError, KeyError, TypeError, OverflowError, AttributeError):
            return None
        self._noted[path.name] = kept
        return kept

    def _note(self, path: Path) -> Path:
        """File with when something was kept, and how large it is; out of reach of those who fetch files."""
        return path.with_name(f".{path.name}.json")

    def _below(self, directory: Path, pattern: str) -> list[Path]:
        try:
            with os.scandir(directory) as entries:  # which tells directories without a look at each
                found = [entry.path for entry in entries if fnmatchcase(entry.name, pattern) and _is_folder(entry)]
            return [Path(path) for path in found]
        except OSError:
            return []

    def find(self, ident: AttemptId) -> Path | None:
        """The directory with the files of an attempt, where they are kept or where it has worked."""
        kept, runs = self.place(ident), self._runs / f"{ident[0]}.{ident[1]}"
        # Twice: its files may be moved at this moment.
        for path in (kept, runs / TASK / WORK, runs / WORK, kept):
            with suppress(OSError):  # its task may have closed the directory above it
                if path.is_dir():
                    return path
        return None


def _gone(directory: Path, name: str) -> Path:
    """A new name for a directory that is removed."""
    return directory / f"{GONE}{name}-{secrets.token_hex(8)}"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _has_files(work: Path) -> bool:
    if work.is_symlink():  # the task has put it there, and what it leads to is not the task's
        return False
    try:
        with os.scandir(work) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
