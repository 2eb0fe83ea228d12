"""Plays schedulers on drawn sites, and keeps every finished run, for benchmarks that compare over many sites."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tapfinger.config import Scenario, parse_scenario
from tapfinger.core.events import Event, TaskResized
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.cells import Cell, make_cells, run_once
from tapfinger.evaluation.runner import cache_folder
from tapfinger.evaluation.specs import parse_spec
from tapfinger.parallel.choose import open_pool
from tapfinger.workloads.distributions import draw
from tapfinger.workloads.world import World, build_world

#: Tasks of a workload per cluster or node, and the bounds of their total: queues grow, and a run ends in a second.
TASKS_PER_CLUSTER, LEAST_TASKS, MOST_TASKS = 20, 200, 500


@dataclass(frozen=True)
class SiteRun:
    """What is kept of one run; a run that failed has an error and no completion times."""

    scheduler: str
    seed: int
    #: Completion time of every task in slots.
    completion: tuple[int, ...] = ()
    #: Changes of a running task's size, pauses included.
    resizes: int = 0
    #: Mean milliseconds of decisions, and their 95th percentile, per slot that began with a task waiting.
    decision_ms: tuple[float, float] = (0.0, 0.0)
    error: str = ""


@dataclass(frozen=True)
class SiteRuns:
    """All runs of a site."""

    seed: int
    scenario: Scenario
    #: Number of clusters, nodes counting as one each.
    clusters: int
    #: Scheduler -> one run per workload.
    runs: Mapping[str, tuple[SiteRun, ...]]

    def failed(self, scheduler: str) -> str:
        """Why a run of the scheduler failed here; empty if none did."""
        return next((run.error for run in self.runs[scheduler] if run.error), "")

    def mean(self, scheduler: str) -> float:
        """Mean completion time in slots over the tasks of all workloads."""
        return float(self._times(scheduler).mean())

    def p99(self, scheduler: str) -> float:
        """99th percentile of the completion times of all workloads together."""
        return float(np.percentile(self._times(scheduler), 99))

    def resizes(self, scheduler: str) -> float:
        """Resizes per task."""
        return sum(run.resizes for run in self.runs[scheduler]) / len(self._times(scheduler))

    def decision_ms(self, scheduler: str) -> float:
        """Mean milliseconds of decisions per slot."""
        return float(np.mean([run.decision_ms[0] for run in self.runs[scheduler]]))

    def _times(self, scheduler: str) -> np.ndarray:
        return np.concatenate([run.completion for run in self.runs[scheduler]])


@lru_cache(maxsize=256)
def draw_sized(seed: int, distribution: str) -> Scenario:
    """A drawn site with tasks by its size."""
    clusters = len(build_world(draw(seed, LEAST_TASKS, distribution)).clusters)
    tasks = int(np.clip(TASKS_PER_CLUSTER * clusters, LEAST_TASKS, MOST_TASKS))
    return draw(seed, tasks, distribution)


class _Job(NamedTuple):
    cell: Cell
    path: Path


@lru_cache(maxsize=2)
def _world(scenario: str, directory: str) -> World:
    return build_world(parse_scenario(json.loads(scenario), "resolved scenario", directory))


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings are left out: every drawn site is outside some range of a model."""
    logger = logging.getLogger("tapfinger")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _play(job: _Job) -> SiteRun:
    """Play one run and keep it."""
    cell, resizes = job.cell, [0]

    def count(event: Event) -> None:
        resizes[0] += isinstance(event, TaskResized)

    try:
        with _quiet():
            record = run_once(_world(cell.scenario, cell.directory), cell.spec, cell.seed, None, count)
    except TapfingerError as error:
        made = SiteRun(cell.spec.text, cell.seed, error=str(error))
    else:
        times = tuple(map(int, record.completion))
        decision = (1e3 * float(record.decision[0]), 1e3 * float(record.decision[1]))
        made = SiteRun(cell.spec.text, cell.seed, times, resizes[0], decision)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    part = job.path.with_suffix(".part")
    part.write_text(json.dumps(asdict(made)), encoding="utf-8")
    part.replace(job.path)
    return made


def _kept(path: Path) -> SiteRun | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    times, decision = tuple(found.pop("completion")), tuple(found.pop("decision_ms"))
    return SiteRun(**found, completion=times, decision_ms=decision)


def play_sites(
    sites: Sequence[int], schedulers: Sequence[str], seeds: Sequence[int], jobs: int, distribution: str = "wide"
) -> list[SiteRuns]:
    """Every scheduler on every workload of every site; runs that were finished before are not made again."""
    specs = [parse_spec(text) for text in dict.fromkeys(schedulers)]
    for spec in specs:
        spec.create()  # finds a wrong option before anything is played
    scenarios = {site: draw_sized(site, distribution) for site in sites}
    todo: list[_Job] = []
    found: dict[str, SiteRun] = {}
    of_site: dict[int, list[Cell]] = {}
    for site, scenario in scenarios.items():
        # One spec's workloads after the other; a cell's key covers the code, the models, the site and the seed.
        of_site[site] = make_cells(scenario, specs, seeds)
        for cell in of_site[site]:
            path = _folder() / cell.key[:2] / f"{cell.key}.json"
            before = _kept(path)
            if before is None:
                todo.append(_Job(cell, path))
            else:
                found[cell.key] = before
    with open_pool(jobs if len(todo) > 1 else 1) as pool, _progress(len(found), len(found) + len(todo)) as step:
        for index, run in pool.run(_play, todo):
            found[todo[index].cell.key] = run
            step()
    return [
        SiteRuns(site, scenario, len(build_world(scenario).clusters), _by_scheduler(of_site[site], found))
        for site, scenario in scenarios.items()
    ]


def _folder() -> Path:
    """Folder of kept runs: beside the finished cells of comparisons."""
    return cache_folder().parent / f"{cache_folder().name}-sites"


def _by_scheduler(cells: Sequence[Cell], found: Mapping[str, SiteRun]) -> dict[str, tuple[SiteRun, ...]]:
    runs: dict[str, tuple[SiteRun, ...]] = {}
    for cell in cells:
        runs[cell.spec.text] = (*runs.get(cell.spec.text, ()), found[cell.key])
    return runs


@contextmanager
def _progress(done: int, total: int) -> Iterator[Callable[[], None]]:
    """A bar in a terminal; elsewhere a line at every tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, counted = Console(stderr=True), [done]
    columns = (TextColumn("sites"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("sites", total=total, completed=done)

        def step() -> None:
            counted[0] += 1
            progress.update(bar, completed=counted[0])
            if not console.is_terminal and 10 * counted[0] // total > 10 * (counted[0] - 1) // total:
                print(f"{counted[0]} of {total} runs", file=sys.stderr, flush=True)

        yield step
