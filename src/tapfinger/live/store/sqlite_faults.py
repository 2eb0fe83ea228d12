"""Failures of the embedded database, told to people: what is wrong, with which file, and the way back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tapfinger.errors import StoreFailed

_KEPT = "Everything that was acknowledged is kept"


def damaged(path: Path, what: object) -> StoreFailed:
    """A store whose content cannot be used."""
    return StoreFailed(
        f"{path} is damaged and cannot be used as a store: {' '.join(str(what).split())}. Put a copy back: tapfinger "
        f"restore COPY --state {path.parent}. Without a copy, move it away to begin with an empty one"
    )


#: What SQLite and the file system raise; of a schema that is garbage, not even the message can be decoded.
FAULTS = (sqlite3.DatabaseError, OSError, UnicodeDecodeError)
#: Mistakes of the program, which are no faults of a file.
MISTAKES = (sqlite3.IntegrityError, sqlite3.ProgrammingError)


def explained(path: Path, error: Exception) -> StoreFailed:
    """What a failure of SQLite or of the file system means for the store."""
    if isinstance(error, OSError):
        return _unwritable(path, error.strerror or str(error))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFailed(f"{path} cannot be written: the disk is full. Make room and start again. {_KEPT}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return _unwritable(path, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreFailed(
            f"{path} is locked by another program, such as a copy that is being made or an open sqlite3. End that "
            f"program and start again. {_KEPT}"
        )
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL):
        return StoreFailed(
            f"{path} cannot be read or written: {error}. Look for a full or failing disk, then start again. {_KEPT}"
        )
    return damaged(path, error)


def _unwritable(path: Path, why: str) -> StoreFailed:
    return StoreFailed(
        f"{path} cannot be used as a store: {why}. The coordinator's user must be able to read and write the file and "
        f"the directory {path.parent}; then start again. {_KEPT}"
    )


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Tell failures of the database in words. Mistakes of the program stay as they are."""
    try:
        yield
    except MISTAKES:
        raise
    except FAULTS as error:
        raise explained(path, error) from None
