"""One cell of a comparison (scenario, scheduler, seed): its identity, its run, and where results are kept.

A cell's key is a hash of everything its result depends on, so a stored cell is right or is not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tapfinger.config import Scenario, parse_scenario
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import SchedulerSpec
from tapfinger.records import EventLog, LogHeader, RunRecord
from tapfinger.registry import lookup
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import World, build_world

#: Stored cells that nobody has used for this long are removed.
KEEP_SECONDS = 30 * 24 * 3600

#: Parts of this package that cannot change a result, by the beginning of their path.
_NO_PART_IN_RESULTS = (
    "commands/",
    "cli.py",
    "__main__.py",
    *(f"evaluation/{name}.py" for name in ("gantt", "output", "plots", "report", "stats")),
)

RECORD = "record.npz"
EVENTS = "events.jsonl.gz"


@dataclass(frozen=True)
class Cell:
    """One run to be made, as plain data that another process can be handed."""

    #: Resolved scenario as JSON.
    scenario: str
    #: Directory that file names in the scenario are relative to.
    directory: str
    spec: SchedulerSpec
    seed: int
    key: str


def make_cells(scenario: Scenario, specs: Iterable[SchedulerSpec], seeds: Iterable[int]) -> list[Cell]:
    """All cells, seed by seed, so that an interrupted comparison has whole seeds."""
    resolved = scenario.resolved()
    text = json.dumps(resolved, sort_keys=True)
    common = hashlib.sha256(text.encode())
    common.update(f"{sys.version_info[:2]} {platform.machine()} {np.__version__}".encode())
    common.update(_tree_digest(Path(__file__).parents[1], _NO_PART_IN_RESULTS).encode())
    common.update(_code_digest("arrivals", scenario.arrivals.kind).encode())
    for path in _files_in(resolved, Path(scenario.directory)):
        common.update(_file_digest(path))
    of_spec = {}
    for spec in specs:
        digest = common.copy()
        digest.update(spec.text.encode())
        digest.update(_code_digest("scheduler", spec.name).encode())
        for path in _files_in(dict(spec.options), Path()):
            digest.update(_file_digest(path))
        of_spec[spec] = digest.hexdigest()
    return [
        Cell(text, scenario.directory, spec, seed, hashlib.sha256(f"{digest} {seed}".encode()).hexdigest()[:40])
        for seed in seeds
        for spec, digest in of_spec.items()
    ]


def _files_in(value: Any, directory: Path) -> Iterator[Path]:
    """Files that strings in plain data name: profiles, traces, weights."""
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _files_in(item, directory)
    elif isinstance(value, str) and value:
        path = directory / value
        with contextlib.suppress(OSError, ValueError):  # too long, or no path at all
            if path.is_file():
                yield path


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@cache
def _tree_digest(folder: Path, without: tuple[str, ...] = ()) -> str:
    """Contents of all files below a folder, but for compiled code and paths that begin with one of ``without``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and "__pycache__" not in path.parts and not name.startswith(without):
            digest.update(name.encode() + _file_digest(path))
    return digest.hexdigest()


def _code_digest(kind: str, name: str) -> str:
    """Source of a scheduler or workload from outside this package: its whole package, or its one file."""
    top = str(lookup(kind, name).__module__).partition(".")[0]
    file = getattr(import_module(top), "__file__", None)
    if top == __package__.partition(".")[0] or file is None:
        return ""
    path = Path(file)
    return _tree_digest(path.parent) if path.name == "__init__.py" else _file_digest(path).hex()


class CellStore:
    """Finished cells on disk: a directory per key, there as a whole or not at all."""

    def __init__(self, root: Path) -> None:
        """Cells below ``root``, which is made when the first one is kept."""
        self.root = root

    def folder(self, key: str) -> Path:
        """Where a cell is, or would be."""
        return self.root / key[:2] / key

    def has(self, key: str, with_events: bool) -> bool:
        """Whether the cell is finished (and its event log was kept)."""
        folder = self.folder(key)
        return (folder / RECORD).is_file() and (not with_events or (folder / EVENTS).is_file())

    def load(self, key: str) -> RunRecord:
        """The record of a finished cell."""
        folder = self.folder(key)
        os.utime(folder)  # used just now, for forget_old
        return RunRecord.load(folder / RECORD)

    def keep(self, key: str, made_in: Path) -> None:
        """Move a directory with a finished cell to its place."""
        folder = self.folder(key)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():  # kept without its event log, or by another process at the same time
            shutil.rmtree(folder, ignore_errors=True)
        try:
            made_in.rename(folder)
        except OSError:
            if not (folder / RECORD).is_file():
                raise
            shutil.rmtree(made_in)

    def forget_old(self) -> None:
        """Remove cells, and left-overs of broken runs, that nobody has used for long."""
        oldest = time.time() - KEEP_SECONDS
        for folder in self.root.glob("*/*"):
            with contextlib.suppress(OSError):
                if folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder)


@lru_cache(maxsize=2)
def _world(scenario: str, directory: str) -> World:
    return build_world(parse_scenario(json.loads(scenario), "resolved scenario", directory))


def run_cell(cell: Cell, store: CellStore, with_events: bool) -> None:
    """Run one cell and keep it."""
    world = _world(cell.scenario, cell.directory)
    made_in = store.root / "unfinished" / f"{cell.key}-{os.getpid()}"
    made_in.mkdir(parents=True, exist_ok=True)
    try:
        events = made_in / EVENTS if with_events else None
        run_once(world, cell.spec, cell.seed, events).save(made_in / RECORD)
        store.keep(cell.key, made_in)
    finally:
        shutil.rmtree(made_in, ignore_errors=True)


def run_once(world: World, spec: SchedulerSpec, seed: int, events: Path | None = None, *sinks: Any) -> RunRecord:
    """Play one run to its end and measure it; with ``events``, write its event log there."""
    name, resources = world.scenario.name, world.resources.names
    collector = MetricsCollector(resources, world.clusters, world.task_types)
    scheduler = spec.create()
    with contextlib.ExitStack() as stack:
        logs = []
        if events is not None:
            header = LogHeader(name, spec.text, seed, resources, world.clusters)
            logs = [stack.enter_context(EventLog(events, header))]
        totals = run_scheduler(world, scheduler, seed, (collector, *logs, *sinks))
    return collector.record(name, spec.text, seed, totals.conflicts, totals.decision_seconds)
