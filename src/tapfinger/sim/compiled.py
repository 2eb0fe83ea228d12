"""Compilation of the kernels, with a cache on disk that notices changes in any of their sources.

numba looks only at the file a function stands in. Kernels call each other across files and hold constants
of others, so a change in one would leave the machine code of its callers as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

_HERE = Path(__file__).parent
_CONSTANTS = (_HERE.parent / "core" / "model.py", _HERE.parent / "profiles" / "efficient_sizes.py")
_SOURCES = (*sorted(_HERE.glob("*.py")), *_CONSTANTS)


def _drop_stale(cache: Path) -> None:
    """Forget compiled code of other sources than the present ones."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
    stamp = cache / "kernels.stamp"
    # Where nothing can be written there is nothing of ours to be stale either.
    with contextlib.suppress(OSError):
        if not stamp.exists() or stamp.read_text() != digest:
            cache.mkdir(exist_ok=True)
            for index in cache.glob("*.nbi"):
                index.unlink(missing_ok=True)
            stamp.write_text(digest)


_drop_stale(_HERE / "__pycache__")


def compiled(function: Callable[..., Any]) -> Any:
    """Compile when first called, or load from the cache."""
    return njit(function, cache=True)


def inlined(function: Callable[..., Any]) -> Any:
    """As part of its callers: handing arrays over to another function takes longer than a short one's work."""
    return njit(function, cache=True, inline="always")
