"""One cell of a comparison (scenario, scheduler, seed): its identity, its run, and where its result is stored.

A cell's key is a hash of everything its result depends on, so a stored cell is either right or not found.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from typing import Any

from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.contract import Scheduler
from tapfinger.digests import file_digest, tree_digest
from tapfinger.errors import DataError
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import SchedulerSpec
from tapfinger.policy.files import card_file
from tapfinger.records import EventLog, LogHeader, RunRecord
from tapfinger.registry import BUILT_IN, lookup, module_of
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import World, build_world

#: Seconds after which unused stored cells are removed.
KEEP_SECONDS = 30 * 24 * 3600

_MODELS = "models/"

#: Parts of this package that cannot change a result, as path prefixes.
_NO_PART_IN_RESULTS = (
    "commands/",
    "cli.py",
    "__main__.py",
    "parallel/",
    "live/",
    "reproduce/",
    "training/",
    "testbed/",
    "profiling/",
    "progress.py",  # live tasks only
    "reporting.py",
    "drawing.py",
    "evaluation/templates/",
    _MODELS,  # counted for schedulers that can read them
    *(f"evaluation/{name}.py" for name in ("attention", "failure", "gantt", "output", "pages", "plots", "report")),
    *(f"evaluation/{name}.py" for name in ("event_logs", "live_history", "profile_files", "profile_plots")),
    *(f"evaluation/{name}.py" for name in ("ratios", "stats", "whatif")),
)

RECORD = "record.npz"
EVENTS = "events.jsonl.gz"


@dataclass(frozen=True)
class Cell:
    """One run to make, as plain data that can be passed to another process."""

    #: Resolved scenario as JSON.
    scenario: str
    #: Directory that file names in the scenario are relative to.
    directory: str
    spec: SchedulerSpec
    seed: int
    key: str


def make_cells(scenario: Scenario, specs: Iterable[SchedulerSpec], seeds: Iterable[int]) -> list[Cell]:
    """All cells, ordered by seed, so that an interrupted comparison has complete seeds."""
    resolved = scenario.resolved()
    text = json.dumps(resolved, sort_keys=True)
    common = hashlib.sha256(text.encode())
    common.update(f"{sys.version_info[:2]} {platform.machine()} {installed()}".encode())
    package = Path(__file__).parents[1]
    common.update(tree_digest(package, _NO_PART_IN_RESULTS).encode())
    common.update(_code_digest("arrivals", scenario.arrivals.kind).encode())
    common.update(files_digest(resolved, scenario.directory).encode())
    of_spec = {}
    for spec in specs:
        digest = common.copy()
        digest.update(spec.text.encode())
        digest.update(_code_digest("scheduler", spec.name).encode())
        if _reads_models(spec.name):
            digest.update(tree_digest(package / _MODELS).encode())
        digest.update(files_digest(dict(spec.options)).encode())
        of_spec[spec] = digest.hexdigest()
    return [
        Cell(text, scenario.directory, spec, seed, hashlib.sha256(f"{digest} {seed}".encode()).hexdigest()[:40])
        for seed in seeds
        for spec, digest in of_spec.items()
    ]


def installed() -> dict[str, str]:
    """Versions of installed packages that results may depend on; imports none of them."""
    found = {}
    for package in ("numpy", "numba", "onnxruntime"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def files_digest(value: Any, directory: str = "") -> str:
    """Digest of all files named by strings in plain data: profiles, traces, weights."""
    digest = hashlib.sha256()
    for path in _files_in(value, Path(directory)):
        digest.update(file_digest(path))
    return digest.hexdigest()


def _files_in(value: Any, directory: Path) -> Iterator[Path]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _files_in(item, directory)
    elif isinstance(value, str) and value:
        path = directory / value
        with contextlib.suppress(OSError, ValueError):  # too long, or not a path
            if path.is_file():
                yield path
                if path.suffix == ".onnx" and card_file(path).is_file():
                    yield card_file(path)


def _code_digest(kind: str, name: str) -> str:
    """Digest of a scheduler or workload from outside this package: its module, and the package that holds it.

    For a module outside any package, it includes what the module imports from its own folder.
    """
    factory = lookup(kind, name)
    while isinstance(factory, partial):
        factory = factory.func
    digest = hashlib.sha256()
    # A factory may be imported into the named module and defined elsewhere; the named module holds what is bound to it.
    for module_name in sorted({module_of(kind, name), str(factory.__module__)}):
        top = module_name.partition(".")[0]
        if top == __package__.partition(".")[0]:
            continue
        file = getattr(import_module(module_name), "__file__", None)
        for path in _with_imports(Path(file)) if file else ():
            digest.update(file_digest(path))
        # A folder without an __init__.py can be in several places, and one place can be found in several ways.
        folders = dict.fromkeys(Path(folder).resolve() for folder in getattr(import_module(top), "__path__", ()))
        for folder in folders:
            digest.update(tree_digest(folder).encode())
    return digest.hexdigest()


def _reads_models(scheduler: str) -> bool:
    """Whether shipped models may affect the result: not for our own schedulers that take no model."""
    return scheduler not in BUILT_IN["scheduler"] or "model" in signature(lookup("scheduler", scheduler)).parameters


def _with_imports(file: Path) -> list[Path]:
    """A module's file, and the files next to it that it imports, directly or indirectly, by name.

    Found in the source text, not among loaded modules: those depend on the other schedulers of a comparison.
    """
    found, todo = {file}, [file]
    while todo:
        path = todo.pop()
        if path.suffix != ".py":
            continue
        names: set[str] = set()
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue  # the file is not really imported, or nothing would run
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
        for name in names:
            beside = [file.parent / f"{name}.py", *(file.parent / name).rglob("*.py")]
            new = {other for other in beside if other.is_file()} - found
            found |= new
            todo += new
    return sorted(found)


class CellStore:
    """Finished cells on disk: one directory per key, either complete or absent."""

    def __init__(self, root: Path) -> None:
        """Store cells below ``root``, which is created with the first cell."""
        self.root = root

    def folder(self, key: str) -> Path:
        """Directory of a cell, whether it exists or not."""
        return self.root / key[:2] / key

    def load(self, key: str, with_events: bool) -> RunRecord | None:
        """The record of a finished cell; None if it (or its event log, if wanted) is missing or damaged."""
        folder = self.folder(key)
        if not (folder / RECORD).is_file() or (with_events and not (folder / EVENTS).is_file()):
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)  # marks the cell as used, for forget_old
        try:
            return RunRecord.load(folder / RECORD)
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error):
            return None

    def keep(self, key: str, made_in: Path) -> None:
        """Move a directory with a finished cell into the store."""
        folder = self.folder(key)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():  # stored without its event log, or by another process at the same time
            shutil.rmtree(folder, ignore_errors=True)
        try:
            made_in.rename(folder)
        except OSError:
            if not (folder / RECORD).is_file():
                raise
            shutil.rmtree(made_in)

    def receive(self, key: str, files: Mapping[str, bytes]) -> None:
        """Store a cell that was made elsewhere."""
        made_in = self.unfinished(key)
        for name, content in files.items():
            (made_in / name).write_bytes(content)
        self.keep(key, made_in)

    def unfinished(self, key: str) -> Path:
        """A directory in which to make a cell."""
        folder = self.root / "unfinished" / f"{key}-{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget_old(self) -> None:
        """Remove cells and left-overs of aborted runs that have not been used for long."""
        oldest = time.time() - KEEP_SECONDS
        for folder in self.root.glob("*/*"):
            with contextlib.suppress(OSError):
                if folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder)


@lru_cache(maxsize=2)
def _world(scenario: str, directory: str) -> World:
    return build_world(parse_scenario(json.loads(scenario), "resolved scenario", directory))


def run_cell(cell: Cell, store: CellStore, with_events: bool) -> None:
    """Run one cell and store it."""
    world = _world(cell.scenario, cell.directory)
    made_in = store.unfinished(cell.key)
    try:
        events = made_in / EVENTS if with_events else None
        run_once(world, cell.spec, cell.seed, events).save(made_in / RECORD)
        store.keep(cell.key, made_in)
    finally:
        shutil.rmtree(made_in, ignore_errors=True)


def make_files(cell: Cell, with_events: bool) -> dict[str, bytes]:
    """Run one cell on a machine that may not share the store; return name -> content of its files."""
    scenario = parse_scenario(json.loads(cell.scenario), "resolved scenario", cell.directory)
    if make_cells(scenario, (cell.spec,), (cell.seed,))[0].key != cell.key:
        raise DataError(
            f"{socket.gethostname()} has not the same files: those that the scenario and the scheduler name, and the "
            "scheduler's own source, must be on all machines, under the same names"
        )
    with tempfile.TemporaryDirectory(prefix="tapfinger-") as root:
        store = CellStore(Path(root))
        run_cell(cell, store, with_events)
        return {path.name: path.read_bytes() for path in store.folder(cell.key).iterdir()}


def run_once(
    world: World,
    spec: SchedulerSpec,
    seed: int,
    events: Path | None = None,
    *sinks: Any,
    scheduler: Scheduler | None = None,
) -> RunRecord:
    """Play one run to its end and measure it; with ``events``, write its event log there.

    ``scheduler``: one already made from the spec, perhaps wrapped; without it, a new one is made.
    """
    name, resources = world.scenario.name, world.resources.names
    collector = MetricsCollector(resources, world.clusters, world.task_types)
    scheduler = scheduler or spec.create()
    with contextlib.ExitStack() as stack:
        logs = []
        if events is not None:
            header = LogHeader(
                name,
                spec.text,
                seed,
                resources,
                world.clusters,
                slot_seconds=world.scenario.slot_seconds,
                minimums={kind.name: kind.minimum for kind in world.task_types},
                with_data=tuple(kind.name for kind in world.task_types if kind.data),
                higher_steps=tuple(step.name for ladder in world.ladders.values() for step in ladder.steps[1:]),
            )
            logs = [stack.enter_context(EventLog(events, header))]
        totals = run_scheduler(world, scheduler, seed, (collector, *logs, *sinks))
    return collector.record(name, spec.text, seed, totals.conflicts, totals.decision_seconds)
