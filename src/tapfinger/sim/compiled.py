"""Compilation of the kernels, with a cache on disk that notices changes in any of their sources.

numba looks only at the file that defines a function. Kernels call each other and use constants across files, so after a
change in one file the machine code of its callers would be stale.
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
    """Delete compiled code that was made from other sources than the present ones."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
    stamp = cache / "kernels.stamp"
    # If nothing can be written there, there is no stale code of ours either.
    with contextlib.suppress(OSError):
        if not stamp.exists() or stamp.read_text() != digest:
            cache.mkdir(exist_ok=True)
            for index in cache.glob("*.nbi"):
                index.unlink(missing_ok=True)
            stamp.write_text(digest)


_drop_stale(_HERE / "__pycache__")


#: Options of numba for functions that make no arrays. Whoever calls from Python holds the arrays, so references to them
#: are not counted: counting the dozens of a world in every call and loop took ten times as long as the work itself.
_UNCOUNTED: dict[str, Any] = {"cache": True, "_nrt": False}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile when first called, or load from the cache. For functions that make no arrays."""
    return njit(function, **_UNCOUNTED)


def allocating(function: Callable[..., Any]) -> Any:
    """As ``compiled``, for functions that make arrays."""
    return njit(function, cache=True)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile as part of its callers: passing arrays to a short function takes longer than its work."""
    return njit(function, inline="always", **_UNCOUNTED)
