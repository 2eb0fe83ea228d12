"""Copies of a store in a file: making one while a coordinator runs, and putting one back."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.live.store.migrations import MIGRATIONS
from tapfinger.live.store.sqlite_faults import damaged, explaining
from tapfinger.live.store.store import COPY, Store

#: Epochs that are left out when an older copy of a store is put back: more than there are between two copies.
EPOCHS = 1_000
#: What SQLite keeps beside a file.
BESIDE = ("", "-wal", "-shm")


def copy_store(source: Path, target: Path) -> int:
    """Copy a store as it is at this moment, without what is unused in it. Returns the bytes of the copy.

    A coordinator may go on writing to it meanwhile. The copy says that it is one, however it is put back.
    """
    if not source.is_file():
        raise ConfigError(f"there is no store {source}; a store in PostgreSQL is copied with pg_dump")
    if target.exists():
        raise ConfigError(f"{target} exists; choose another name")
    part = target.with_name(f".{target.name}.{os.getpid()}")
    with explaining(target):
        # What tasks were given is in it, so only its owner may read it: a file that somebody has put there is not used.
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with explaining(source), closing(sqlite3.connect(source, isolation_level=None, timeout=60.0)) as database:
            _check(database, source)
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of the copy
            database.execute("VACUUM INTO ?", (str(part),))
        with explaining(target):
            with closing(sqlite3.connect(part, isolation_level=None)) as database:
                database.execute("INSERT OR REPLACE INTO meta VALUES (?, 'true')", (COPY,))
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def put_back(copy: Path, store: Path) -> Path | None:
    """Put a copy in the place of a store that nobody uses. Returns where the earlier store is now, if there was one.

    Agents may know of tasks and epochs that came after the copy, so some numbers are left out, and the next leader
    waits for what they say.
    """
    fresh = store.with_name(f"{store.name}.new")
    for suffix in BESIDE:
        store.with_name(f"{fresh.name}{suffix}").unlink(missing_ok=True)
    copy_store(copy, fresh)
    opened = Store(fresh)
    try:
        opened.lead("", opened.epoch + EPOCHS, "tapfinger restore")
    finally:
        opened.close()
    aside = store.with_name(f"{store.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    had = store.exists()
    with explaining(store):
        for suffix in BESIDE:
            old = store.with_name(f"{store.name}{suffix}")
            if old.exists():
                old.rename(aside.with_name(f"{aside.name}{suffix}"))
        fresh.rename(store)
        folder = os.open(store.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return aside if had else None


def _check(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is no store, or of a newer version."""
    try:
        ((version,),) = database.execute("SELECT max(version) FROM migrations").fetchall()
    except sqlite3.OperationalError as error:
        raise damaged(path, error) from None
    if not isinstance(version, int) or version > len(MIGRATIONS):
        raise ConfigError(f"{path} has schema {version}, this version of TapFinger knows {len(MIGRATIONS)}")
