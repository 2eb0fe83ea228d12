"""The end of an agent's lease, in a file: the processes that it started can read it even when the agent is dead."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tapfinger.live.backends.spool import make_anew, read_json

#: Length of the file with the end of a lease, in bytes.
LEASE_LENGTH = 128


def boot_clock() -> float:
    """Seconds since this machine booted, including time asleep. All processes see the same clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Identifier of this boot of the machine: times of another boot are meaningless."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def write_lease(path: Path, until: float) -> str:
    """Write the end of the lease atomically: readers see the old or the new one.

    On a full disk it is written over the old one, which needs no room: the length never changes. Returns why the disk
    has not taken another file; empty if it has.
    """
    text = json.dumps({"boot": boot_id(), "until": until}).ljust(LEASE_LENGTH)
    try:
        _replace(path, text)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        handle = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(handle, text.encode(), 0)
        finally:
            os.close(handle)
        return str(error)
    return ""


def read_lease(path: Path) -> float:
    """The end of the lease on the boot clock; 0 if there is none, or if it is from another boot."""
    try:
        lease = read_json(path, 2 * LEASE_LENGTH)
        return float(lease["until"]) if lease["boot"] == boot_id() else 0.0
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0.0


def replace_file(path: Path, data: object, sync: bool = False) -> None:
    """Write JSON so that no reader sees a half-written file. ``sync``: the file is on disk when this returns."""
    _replace(path, json.dumps(data), sync)


def _replace(path: Path, text: str, sync: bool = False) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        with os.fdopen(make_anew(part), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()  # on a full disk it would take the room that the next one needs
        raise
    if sync:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
