"""Digests of files and folders, to tell whether two have the same contents."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

#: Folders with more files than this hold data, not source, and are left out.
MAX_FILES = 1000


def file_digest(path: Path) -> bytes:
    """SHA-256 of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@cache
def tree_digest(folder: Path, without: tuple[str, ...] = ()) -> str:
    """Digest of all source files below a folder, except paths that begin with one of ``without``."""
    digest = hashlib.sha256()
    for root, folders, files in os.walk(folder):
        # Sorted order; skip compiled code, repositories, environments and large data folders.
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
        if len(files) > MAX_FILES or "pyvenv.cfg" in files:
            folders.clear()
            continue
        for path in (Path(root, file) for file in sorted(files)):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not name.startswith(without):
                digest.update(name.encode() + file_digest(path))
    return digest.hexdigest()
