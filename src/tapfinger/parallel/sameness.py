"""Whether a worker elsewhere would compute the same results: the same code with the same libraries."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tapfinger.digests import tree_digest

#: Libraries that results depend on.
_LIBRARIES = ("numpy", "numba", "onnxruntime", "torch")


@cache
def fingerprint() -> dict[str, str]:
    """What results depend on here, by name; packages that are not installed are left out."""
    found = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "the processor's kind": platform.machine(),
        "the source of tapfinger": tree_digest(Path(__file__).parents[1])[:12],
    }
    for package in ("tapfinger", *_LIBRARIES):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The differences between two machines, as text; empty if there are none.

    A package that one of them lacks is not a difference: a job that needs it will fail with a message.
    """
    both = [name for name in here if name in there and here[name] != there[name]]
    return ", ".join(f"{name} is {there[name]} there and {here[name]} here" for name in both)
