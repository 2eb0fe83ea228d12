"""File systems of their own for tests: small ones, which can be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tapfinger.live.agent.disk import MB


@contextmanager
def small_disk(directory: Path, megabytes: int, files: int = 100_000) -> Iterator[Path]:
    """A small file system of its own for at most ``files`` files; skips where none can be mounted."""
    directory.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes={files},mode=0700", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(disk: Path) -> Path:
    """Write a file until nothing is left."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for piece in (b"x" * MB, b"x" * 4096):
            with suppress(OSError):  # no space is left
                while True:
                    file.write(piece)
    return path
