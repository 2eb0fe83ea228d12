"""Sandboxes of bubblewrap: a task sees the machine as before, but nothing of TapFinger and of other tasks.

A task in a sandbox has its own process numbers, so it can neither see nor signal what is outside. Private directories
are empty there, apart from what belongs to the task. It has no capabilities, and cannot gain rights (no setuid).
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How tasks are kept from what is private to the site."""

    #: Path of bubblewrap.
    program: str
    #: Directories and files that tasks must not see. Links are followed at every start: they may be replaced.
    hidden: tuple[Path, ...] = ()

    @property
    def _places(self) -> list[Path]:
        return sorted({path.resolve() for path in self.hidden})

    def command(self, shown: Path | None = None) -> list[str]:
        """The beginning of a command that runs in a new sandbox. ``shown``: a private directory that is the task's."""
        places = self._places
        covers = [path for path in places if path.exists() and not any(p in places for p in path.parents)]
        folders = [str(path) for path in covers if path.is_dir()]
        # PID 1 is our own: bubblewrap's would hide which signal has ended the task.
        words = [self.program, "--unshare-pid", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]
        words += ["--dev-bind", "/", "/"]
        for path in _movable(covers):
            words += ["--dev-bind", str(path), str(path)]  # what is mounted cannot be moved
        words += ["--proc", "/proc"]
        for part in filter(os.path.exists, _KERNEL):
            words += ["--ro-bind", part, part]
        for path in covers:
            words += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", os.devnull, str(path)]
        if shown is not None:
            words += ["--bind", str(shown), str(shown)]
        for folder in folders:
            words += ["--remount-ro", folder]
        return [*words, "--chdir", "/"]

    def covers(self, path: Path) -> Path | None:
        """The hidden directory or file that keeps tasks from this path; None if they can see it."""
        return next((hidden for hidden in self._places if path.is_relative_to(hidden)), None)


def _movable(covers: Iterable[Path]) -> list[Path]:
    """Directories above these that a task could move, and with them what would then be hidden no more."""
    above = {parent for path in covers for parent in path.parents if parent != parent.parent}
    return sorted(path for path in above if _may_change(path.parent))


def _may_change(folder: Path) -> bool:
    """Whether this user may change a directory, or permit itself to."""
    return os.access(folder, os.W_OK) or folder.stat().st_uid == os.geteuid()


def find_sandbox(isolation: Isolation, hidden: Iterable[Path]) -> Sandbox | None:
    """A sandbox that works for this user, or None, which is logged. Raises ConfigError if one is required."""
    if isolation == "none":
        return None
    places = tuple(path.absolute() for path in hidden)
    if any(path.resolve() == Path("/") for path in places):
        raise ConfigError("live.hidden names /, without which no task could run; name directories of the site alone")
    program = shutil.which("bwrap")
    fault = "bwrap is not installed (package bubblewrap)" if program is None else ""
    if program is not None:
        sandbox = Sandbox(program, places)
        if not (fault := _try(sandbox.command())):
            if missing := [str(path) for path in places if not path.exists()]:
                logger.warning(
                    "%s is to be hidden from tasks and does not exist: tasks that start before it is made will see "
                    "it; make it, or hide the directory that it will be in",
                    ", ".join(missing),
                )
            return sandbox
    if isolation == "required":
        raise ConfigError(f'live.isolation = "required", but tasks cannot be isolated: {fault}')
    logger.warning(
        "tasks are not isolated: they can read and signal whatever user %d can, tokens and other tasks included; %s",
        os.getuid(),
        fault,
    )
    return None


def _try(command: Sequence[str]) -> str:
    """Make a sandbox and leave it. Returns what went wrong."""
    try:
        tried = subprocess.run(
            [*command, "--", "/bin/sh", "-c", "exit 0"],
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
