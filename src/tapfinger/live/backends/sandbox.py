"""Sandboxes of bubblewrap: a task sees the machine as before, but nothing of TapFinger and of other tasks.

A task in a sandbox has its own process numbers, so it can neither see nor signal what is outside. Private directories
are empty there, apart from what belongs to the task. It has no capabilities, and cannot gain rights (no setuid).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from tapfinger.errors import ConfigError

logger = logging.getLogger(__name__)

#: When tasks run in a sandbox: if the machine can, always (or the agent does not start), or never.
Isolation = Literal["auto", "required", "none"]

#: Seconds that making a sandbox may take when the agent starts.
PATIENCE = 20.0
#: What the kernel lets itself be changed by. Tasks of root, or with control groups of their user, could kill others.
_KERNEL = ("/sys", "/proc/sys", "/proc/sysrq-trigger")
#: Most links that a path leads over, as for the kernel.
_MOST_LINKS = 40
#: Errors that say that there is nothing for this user at a path.
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES)


@cache
def _vital() -> frozenset[Path]:
    """What no task can do without: no link of a task makes a sandbox hide it, or what it is in."""
    names = [sys.executable, os.__file__, __file__, "/bin/sh", "/etc", os.devnull, *_KERNEL]
    names += ["/usr/local", tempfile.gettempdir()]
    names += map(str, Path("/").glob("lib*"))  # also of other programs; of this interpreter:
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        names += {line[line.index("/") :] for line in lines if "/" in line}
    return frozenset(step for name in names for step in _way(name))


def _way(name: str) -> set[Path]:
    """A path, and where each link that it leads over is."""
    found = {Path(name)}
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(name))
        found.add(Path(folder, os.path.basename(name)))
        if not os.path.islink(name):
            break
        name = os.path.join(folder, os.readlink(name))
    return found


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How tasks are kept from what is private to the site."""

    #: Path of bubblewrap.
    program: str
    #: Directories and files that tasks must not see. Links are followed at every start: they may be replaced.
    hidden: tuple[Path, ...] = ()
    #: Directories that tasks may work in: no link makes them hidden.
    roots: tuple[Path, ...] = ()
    #: What they led to when this was made, which stays hidden: a task may be able to lead a link elsewhere.
    _first: frozenset[Path] = field(init=False, repr=False, compare=False)
    #: What was left aside, so that the log does not repeat it.
    _left: set[Path] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self) -> None:
        """Follow links for the first time."""
        object.__setattr__(self, "_first", frozenset(self._followed(self.hidden)))

    @property
    def _places(self) -> list[Path]:
        return sorted(self._followed((*self.hidden, *self._first)))

    def _followed(self, paths: Iterable[Path]) -> set[Path]:
        """What paths lead to, without what a link leads to and no task can do without."""
        found = set()
        for path in paths:
            place = Path(os.path.realpath(path))
            if place == Path(os.path.normpath(path)) or not self._is_vital(place):
                found.add(closed if (closed := _closed(place)) is not None else place)
            elif place not in self._left:
                self._left.add(place)
                logger.error(
                    "%s is to be hidden from tasks and leads to %s, without which no task could run: that is not "
                    "hidden; a task may have made this link",
                    path,
                    place,
                )
        return found

    def _is_vital(self, place: Path) -> bool:
        own = (step for name in (self.program, *map(str, self.roots)) for step in _way(name))
        kernel = any(place.is_relative_to(part) for part in ("/proc", "/sys"))
        return kernel or any(path.is_relative_to(place) for path in (*own, *_vital()))

    def command(self, shown: Path | None = None) -> list[str]:
        """The beginning of a command that runs in a new sandbox. ``shown``: a private directory that is the task's."""
        places = self._places
        kinds = {path: kind for path in places if (kind := _kind(path)) and not any(p in places for p in path.parents)}
        folders = [str(path) for path, kind in kinds.items() if stat.S_ISDIR(kind)]
        # PID 1 is our own: bubblewrap's would hide which signal has ended the task.
        words = [self.program, "--unshare-pid", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]
        words += ["--dev-bind", "/", "/"]
        for path in _movable(kinds):
            words += ["--dev-bind", str(path), str(path)]  # what is mounted cannot be moved
        words += ["--proc", "/proc"]
        for part in filter(os.path.exists, _KERNEL):
            words += ["--ro-bind", part, part]
        for cover in map(str, kinds):
            words += ["--tmpfs", cover] if cover in folders else ["--ro-bind", os.devnull, cover]
        if shown is not None:
            words += ["--bind", str(shown), str(shown)]
        for folder in folders:
            words += ["--remount-ro", folder]
        return [*words, "--chdir", "/"]

    def covers(self, path: Path) -> Path | None:
        """The hidden directory or file that keeps tasks from this path; None if they can see it."""
        return next((hidden for hidden in self._places if path.is_relative_to(hidden)), None)


def _kind(path: Path) -> int:
    """What is at a path, as the mode of a file; 0 if nothing is that this user could reach."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return 0


def _closed(path: Path) -> Path | None:
    """The directory that keeps this user from a path, if it is the user's own: a task could open it again."""
    try:
        path.lstat()
    except PermissionError:
        for folder in path.parents:
            with suppress(PermissionError):
                return folder if folder.stat().st_uid == os.geteuid() else None
    except OSError:
        pass
    return None


def _movable(covers: Iterable[Path]) -> list[Path]:
    """Directories above these that a task could move, and with them what would then be hidden no more."""
    above = {parent for path in covers for parent in path.parents if parent != parent.parent}
    return sorted(path for path in above if _may_change(path.parent))


def _may_change(folder: Path) -> bool:
    """Whether this user may change a directory, or permit itself to."""
    return os.access(folder, os.W_OK) or folder.stat().st_uid == os.geteuid()


def find_sandbox(isolation: Isolation, hidden: Iterable[Path], roots: Iterable[Path] = ()) -> Sandbox | None:
    """A sandbox that works for this user, or None, which is logged. ``roots``: directories that tasks may work in.

    Raises ConfigError if a sandbox is required, and if it works only without what is to be hidden.
    """
    if isolation == "none":
        return None
    places = tuple(path.absolute() for path in hidden)
    if any(os.path.normpath(path) in ("/", "//") for path in places):
        raise ConfigError("live.hidden names /, without which no task could run; name directories of the site alone")
    program = shutil.which("bwrap")
    fault = "bwrap is not installed (package bubblewrap)" if program is None else ""
    if program is not None:
        sandbox = Sandbox(program, places, tuple(roots))
        if not (fault := _try(sandbox.command())):
            _tell_doubts(places)
            return sandbox
        if places and not _try(Sandbox(program).command()):
            raise ConfigError(
                f"tasks cannot be isolated with all that is to be hidden from them ({', '.join(map(str, places))}): "
                f"{fault}; change live.hidden or --hide"
            )
    if isolation == "required":
        raise ConfigError(f'live.isolation = "required", but tasks cannot be isolated: {fault}')
    logger.warning(
        "tasks are not isolated: they can read and signal whatever user %d can, tokens and other tasks included; %s",
        os.getuid(),
        fault,
    )
    return None


def _tell_doubts(places: Iterable[Path]) -> None:
    """Log what may not be hidden as it is meant."""
    missing, unreachable, links = [], [], []
    for path in places:
        try:
            path.stat()
        except PermissionError:
            unreachable.append(str(path))
        except OSError:
            missing.append(str(path))
        links += [str(part) for part in (path, *path.parents) if _is_loose(part)]
    if missing:
        logger.warning(
            "%s is to be hidden from tasks and does not exist: tasks that start before it is made will see "
            "it; make it, or hide the directory that it will be in",
            ", ".join(missing),
        )
    if unreachable:
        logger.warning(
            "%s is to be hidden from tasks and cannot be reached by user %d, nor by its tasks",
            ", ".join(unreachable),
            os.getuid(),
        )
    if links:
        logger.warning(
            "%s is a link on the way to what is to be hidden from tasks, and tasks can replace it: when the agent "
            "starts again, only what it then leads to is hidden; name what it leads to as well",
            ", ".join(sorted(set(links))),
        )


def _is_loose(path: Path) -> bool:
    """Whether this is a link that this user may replace."""
    with suppress(OSError):
        return path.is_symlink() and _may_change(path.parent)
    return False


def _try(command: Sequence[str]) -> str:
    """Make a sandbox and leave it. Returns what went wrong."""
    try:
        tried = subprocess.run(
            [*command, "--", sys.executable, "-I", "-S", "-c", ""],  # as the first process of every task's sandbox
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = tried.stderr.decode(errors="replace").strip()
    return "" if tried.returncode == 0 else f"{command[0]} failed with {tried.returncode}: {said}"
