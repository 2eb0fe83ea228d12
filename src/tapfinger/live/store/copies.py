"""Copies of a store in a file: making one while a coordinator runs, and putting one back."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.live.agent.leases import replace_file
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
    if _mark(source).exists() and not source.is_file():
        raise ConfigError(f"putting a copy back as {source} was cut short; start the coordinator, which finishes it")
    if not source.is_file():
        raise ConfigError(f"there is no store {source}; a store in PostgreSQL is copied with pg_dump")
    if target.exists():
        raise ConfigError(f"{target} exists; choose another name")
    part = _part(target, os.getpid())
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
            _sync(part)
            part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def put_back(copy: Path, store: Path) -> Path | None:
    """Put a copy in the place of a store that nobody uses. Returns where the earlier store is now, if there was one.

    Agents may know of tasks and epochs that came after the copy, so some numbers are left out, and the next leader
    waits for what they say. Wherever this is cut short, ``finish`` leaves the whole of one of the two stores, and none
    is lost.
    """
    finish(store)
    fresh = _fresh(store)
    copy_store(copy, fresh)
    opened = Store(fresh)
    try:
        opened.lead("", opened.epoch + EPOCHS, "tapfinger restore")
    finally:
        opened.close()
    with explaining(store):
        _sync(fresh)
        replace_file(_mark(store), {"aside": _unused(store).name}, sync=True)
    return finish(store)


def finish(store: Path) -> Path | None:
    """Finish what was cut short of putting a copy back; the directory must be locked. Returns as ``put_back`` does.

    The new store is whole once there is a mark; until then the earlier one is in its place.
    """
    fresh, mark = _fresh(store), _mark(store)
    with explaining(store):
        if not mark.exists():
            for left in (
                *(fresh.with_name(f"{fresh.name}{suffix}") for suffix in BESIDE),
                *_parts(fresh),
                *_parts(mark),
            ):
                left.unlink(missing_ok=True)
            return None
        aside = store.with_name(_noted(mark) or _unused(store).name)
        if fresh.exists():
            # What SQLite keeps beside the earlier store would spoil the new one, so it must be away before.
            for suffix in BESIDE:
                old = store.with_name(f"{store.name}{suffix}")
                if old.exists():
                    old.rename(aside.with_name(f"{aside.name}{suffix}"))
            _sync(store.parent)
            fresh.rename(store)
            _sync(store.parent)
        mark.unlink()
        _sync(store.parent)
    return aside if aside.exists() else None


def _fresh(store: Path) -> Path:
    """The copy that is to become the store."""
    return store.with_name(f"{store.name}.new")


def _mark(store: Path) -> Path:
    """The file that is there while a whole copy is put in the place of the store; says where the earlier one goes."""
    return store.with_name(f"{store.name}.restoring")


def _noted(mark: Path) -> str:
    """Name of the file that the earlier store becomes; empty if nothing of use is noted."""
    try:
        name = json.loads(mark.read_text(encoding="utf-8"))["aside"]
    except (ValueError, KeyError, TypeError):
        return ""
    return name if isinstance(name, str) and Path(name).name == name else ""


def _unused(store: Path) -> Path:
    """A name for an earlier store that none has yet."""
    first = store.with_name(f"{store.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    names = (first if n == 1 else first.with_name(f"{first.name}-{n}") for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def _part(target: Path, pid: object) -> Path:
    return target.with_name(f".{target.name}.{pid}")


def _parts(target: Path) -> list[Path]:
    """What copies that were cut short have left."""
    return list(target.parent.glob(_part(target, "*").name))


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that is no store, or of a newer version."""
    try:
        ((version,),) = database.execute("SELECT max(version) FROM migrations").fetchall()
    except sqlite3.OperationalError as error:
        raise damaged(path, error) from None
    if not isinstance(version, int) or version > len(MIGRATIONS):
        raise ConfigError(f"{path} has schema {version}, this version of TapFinger knows {len(MIGRATIONS)}")
