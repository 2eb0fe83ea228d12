"""The directory of a reproduction: whether it can be written, and what an earlier run left there."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tapfinger import __version__
from tapfinger.errors import ConfigError
from tapfinger.evaluation.cells import installed
from tapfinger.evaluation.output import git_revision, write_json
from tapfinger.reproduce.figure_result import FigureResult
from tapfinger.reproduce.page import write_page

STATE = "reproduction.json"


def prepare_folder(folder: Path) -> None:
    """Create the directory and check that it can be written, before the runs; reject one with other contents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
        # Permissions are not enough: a read-only file system rejects everyone.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write into {folder}: {error.strerror}; give another directory with --out") from None
    if not empty and not (folder / STATE).is_file():
        # The state may be missing only because the first run was interrupted.
        if {path.name for path in folder.iterdir()} <= {"overhead.json", "training", "figures", "tables"}:
            return
        raise ConfigError(
            f"the directory {folder} holds other files and no {STATE} of a reproduction; give another with --out"
        )


def changed_since(folder: Path, cells: Mapping[str, str]) -> int:
    """Number of this directory's runs that would now differ, because of source, models or scenario."""
    try:
        before = json.loads((folder / STATE).read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return sum(name in cells and cells[name] != key for name, key in before.items())


def about(command: str, seconds: float, jobs: int, reused: int, total: int) -> dict[str, str]:
    """Facts about how a report was made."""
    versions = {"tapfinger": __version__, "python": platform.python_version(), **installed()}
    found = f"; {reused:,} were found in the store" if reused else ""
    return {
        "command": command,
        "time taken": f"{seconds / 60:.1f} minutes with {jobs} process{'es' * (jobs != 1)}, {total:,} runs{found}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "source revision": git_revision() or "not in a repository",
    }


def write_report(folder: Path, made: Sequence[FigureResult], cells: Mapping[str, str], how: Mapping[str, str]) -> None:
    """Write the page, and the state that later reveals stale results."""
    try:
        write_page(folder / "report.html", made, how)
    except OSError as error:
        raise ConfigError(f"cannot write {folder / 'report.html'}: {error.strerror}; give another with --out") from None
    verdicts = {
        each.measured.figure.name: [
            {"claim": item.claim.text, "paper": item.paper, "ours": item.ours, "verdict": item.verdict.value}
            for item in each.judged
        ]
        for each in made
    }
    write_json(folder / STATE, {"about": dict(how), "verdicts": verdicts, "cells": dict(cells)})
