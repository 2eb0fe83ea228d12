"""Whose a note and its process are: nobody is signalled because somebody else has written down his process's number.

A state directory may be another user's, who can write any number into it and put links anywhere.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import CoordinatorError
from tapfinger.live.state_dir import alive

#: What tells a process from every other one.
_IDENTITY = ("pid", "start", "boot")
#: Where pidfd_open(2) is not known or not allowed, as in old containers.
_NO_HANDLES = (errno.ENOSYS, errno.EPERM)


def is_trusted(directory: Path) -> bool:
    """Whether nobody but this user and root decides what is in a directory."""
    return directory.stat().st_uid in (0, os.geteuid())


def author(note: Path, within: Path, process: Mapping[str, Any]) -> int | None:
    """The user who has written the note of this process; None if no such note is to be found.

    ``within``: the state directory. In another user's, no link below it is followed, and the note has one name only:
    a note elsewhere is of another site.
    """
    try:
        handle = _open(note, within, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, encoding="utf-8") as file:
            about, found = os.fstat(file.fileno()), json.load(file)
        if about.st_nlink != 1 and not is_trusted(within):
            return None
        return about.st_uid if all(found[key] == process[key] for key in _IDENTITY) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def is_mine(directory: Path, within: Path) -> bool:
    """Whether a directory in a state directory is this user's: what is noted there may be believed."""
    try:
        handle = _open(directory, within, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return is_trusted(within) or os.fstat(handle).st_uid == os.geteuid()
    finally:
        os.close(handle)


def _open(path: Path, within: Path, flags: int) -> int:
    """Open a file below a directory. If that is another user's, links below it are not followed."""
    if is_trusted(within):
        return os.open(path, flags)
    handle = os.open(within, os.O_RDONLY | os.O_DIRECTORY)
    parts = path.relative_to(within).parts
    for number, part in enumerate(parts, start=1):
        last = number == len(parts)
        outer = handle
        try:
            handle = os.open(part, (flags if last else os.O_RDONLY | os.O_DIRECTORY) | os.O_NOFOLLOW, dir_fd=outer)
        finally:
            os.close(outer)
    return handle


def owners(pid: int) -> set[int]:
    """The users whose rights a process has, or could take; empty if there is no such process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return {int(word) for word in line.split()[1:]}
    return set()


def doubt(process: Mapping[str, Any], writer: int | None) -> str:
    """Why a process may not be signalled; empty if its own user has written the note. ``writer``: who has."""
    found = owners(process["pid"])
    if writer is None:
        return "it has no note here that could be believed"
    if found and found != {writer}:
        users = " and ".join(_user(one) for one in sorted(found))
        return f"it is a process of {users}, and the note about it is of {_user(writer)}"
    return ""


def send_noted(process: Mapping[str, Any], writer: int | None, number: int, name: str) -> None:
    """Signal the noted process and no other. Raises CoordinatorError if it may not be signalled."""
    pid: int = process["pid"]
    try:
        handle: int | None = os.pidfd_open(pid)  # is this process even if its pid is used again
    except ProcessLookupError:
        return
    except OSError as error:
        if error.errno not in _NO_HANDLES:
            raise
        handle = None
    try:
        if not alive(dict(process)):
            return
        if why := doubt(process, writer):
            raise CoordinatorError(left_alone(name, pid, why))
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise CoordinatorError(f"{name} (pid {pid}) belongs to another user, who must end it") from None
    finally:
        if handle is not None:
            os.close(handle)


def left_alone(name: str, pid: int, why: str) -> str:
    """A sentence about a process that is not signalled."""
    return f"{name} (pid {pid}) is left alone: {why}. If it is to end, its own user must end it"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def owner_of(directory: Path) -> str:
    """The user whose directory it is, as people are told."""
    return _user(directory.stat().st_uid)
