"""The output directory of a comparison: results, tables, event logs, figures, report and configuration."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapfinger import __version__
from tapfinger.config import Scenario
from tapfinger.errors import ConfigError
from tapfinger.evaluation.cells import EVENTS, files_digest, installed
from tapfinger.evaluation.runner import ComparisonResult
from tapfinger.evaluation.specs import SchedulerSpec, describe_seeds
from tapfinger.evaluation.stats import SchedulerSummary
from tapfinger.records import RunRecord

_RESULTS = "results.json"

#: Characters of all overrides together that still fit into titles.
_MAX_TITLE = 50

_TASK_COLUMNS = ("task", "arrival", "start", "end", "completion", "waiting_time", "running", "overtaken")


@dataclass(frozen=True)
class Request:
    """What was requested."""

    #: Name or file, as given.
    source: str
    scenario: Scenario
    overrides: tuple[str, ...]
    specs: tuple[SchedulerSpec, ...]
    seeds: tuple[int, ...]
    baseline: str

    @property
    def command(self) -> str:
        """The command line that gives the same results."""
        words = ["tapfinger", "compare", self.source, "--schedulers", ",".join(spec.text for spec in self.specs)]
        words += ["--seeds", describe_seeds(self.seeds), "--baseline", self.baseline]
        for override in self.overrides:
            words += ["--set", override]
        return shlex.join(words)

    @property
    def title(self) -> str:
        """What was compared, as one line above tables and figures."""
        changes = ", ".join(self.overrides)
        if len(changes) > _MAX_TITLE:
            changes = f"{len(self.overrides)} override{'s' * (len(self.overrides) != 1)}"
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        return ", ".join(part for part in (self.scenario.name, changes, seeds) if part)

    def default_folder(self) -> Path:
        """results/<scenario>/<...>: equal requests share a folder, different ones do not."""
        resolved = self.scenario.resolved()
        # Two sites may have equal scenarios that refer to different files.
        files = [files_digest(resolved, self.scenario.directory), *(files_digest(dict(s.options)) for s in self.specs)]
        identity = json.dumps([resolved, [s.text for s in self.specs], self.seeds, self.baseline, files])
        count = len(self.specs)
        name = f"{count}-scheduler{'s' * (count != 1)}-{len(self.seeds)}-seed{'s' * (len(self.seeds) != 1)}"
        return Path("results") / slug(self.scenario.name) / f"{name}-{_short(identity)}"

    def plain(self) -> dict[str, Any]:
        """Plain data for config.json."""
        return {
            "scenario": self.scenario.resolved(),
            "source": self.source,
            "overrides": list(self.overrides),
            "schedulers": [spec.text for spec in self.specs],
            "baseline": self.baseline,
            "seeds": list(self.seeds),
            "command": self.command,
            "versions": {"tapfinger": __version__, "python": platform.python_version(), **installed()},
            "git_revision": git_revision(),
        }


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def slug(text: str) -> str:
    """A file name for any text; different texts give different names."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return safe if safe == text else f"{safe[:60]}-{_short(text)}"


def git_revision() -> str | None:
    """Revision of the checkout this package runs from, with ``+`` if its sources were edited; None outside of one."""
    folder = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        # An installed copy inside another repository is not our checkout: its files are not tracked there.
        git("ls-files", "--error-unmatch", "registry.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def results(request: Request, summaries: Mapping[str, SchedulerSummary], same_draws: bool = False) -> dict[str, Any]:
    """The content of results.json."""
    return {
        "scenario": request.scenario.name,
        "overrides": list(request.overrides),
        "seeds": list(request.seeds),
        "same_draws": same_draws,
        "baseline": request.baseline,
        "schedulers": {name: summary.plain(request.baseline) for name, summary in summaries.items()},
    }


def write_json(path: Path, content: Any) -> None:
    """Write readable JSON, creating the directories above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another path") from None


def check_target(path: Path) -> None:
    """Create the directories above a file and check that it can be written: before the runs, not after."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another path") from None


def prepare_folder(folder: Path) -> None:
    """Create the directory, before hours of runs end in an error; a directory with other contents is left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot make the directory {folder}: {error.strerror}; give another with --out") from None
    if not empty and not _is_ours(folder):
        raise ConfigError(
            f"the directory {folder} holds other files and no {_RESULTS} of a comparison; give another with --out"
        )
    for name in (_RESULTS, "config.json", "seeds.csv", "tasks.csv.gz", "report.html"):
        check_target(folder / name)
    for below in (folder / "events", folder / "figures"):
        if below.exists() and not below.is_dir():
            raise ConfigError(f"{below} is no directory; remove it, or give another directory with --out")


def _is_ours(folder: Path) -> bool:
    try:
        found = json.loads((folder / _RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"schedulers", "baseline", "seeds"} <= found.keys()


def write_all(
    folder: Path,
    request: Request,
    outcome: ComparisonResult,
    summaries: Mapping[str, SchedulerSummary],
    with_events: bool,
) -> None:
    """Write everything into the directory."""
    from tapfinger.evaluation.plots import Comparison, draw_all  # matplotlib is slow to import
    from tapfinger.evaluation.report import write_report

    config = request.plain()
    slot = request.scenario.slot_seconds
    comparison = Comparison(request.title, slot, outcome.records, summaries, request.baseline)
    try:
        write_json(folder / _RESULTS, results(request, summaries, outcome.same_draws))
        write_json(folder / "config.json", config)
        _write_seeds(folder / "seeds.csv", request.seeds, summaries)
        _write_tasks(folder / "tasks.csv.gz", outcome.records)
        forget_events(folder / "events")
        if with_events:
            copy_events(folder / "events", outcome)
        figures = draw_all(comparison, folder / "figures")
        write_report(folder / "report.html", config, summaries, figures, outcome.same_draws)
    except OSError as error:
        where = error.filename or folder
        raise ConfigError(f"cannot write {where}: {error.strerror or error}; give another with --out") from None


def _write_seeds(path: Path, seeds: Sequence[int], summaries: Mapping[str, SchedulerSummary]) -> None:
    """One row per scheduler and seed, with every measure."""
    measures = list(next(iter(summaries.values())).per_seed)
    rows = (
        [name, seed, *(round(summary.per_seed[measure][i], 6) for measure in measures)]
        for name, summary in summaries.items()
        for i, seed in enumerate(seeds)
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        _write_csv(file, ["scheduler", "seed", *measures], rows)


def _write_csv(file: Any, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)


def _write_tasks(path: Path, records: Mapping[str, Sequence[RunRecord]]) -> None:
    """One row per task; compressed without time or name, so that equal results give equal files."""
    sample = next(iter(records.values()))[0]
    head = ["scheduler", "seed", "type", "cluster", *_place_columns(sample), *_TASK_COLUMNS, *sample.resources]
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped,
        io.TextIOWrapper(zipped, encoding="utf-8", newline="") as file,
    ):
        _write_csv(file, head, (row for runs in records.values() for run in runs for row in _task_rows(run)))


def _place_columns(run: RunRecord) -> dict[str, Sequence[str]]:
    """Column -> its text for each cluster: what is not told by the name of a node alone."""
    return {name: texts for name, texts in (("whole_cluster", run.wholes), ("kind", run.hardware)) if texts}


def _task_rows(run: RunRecord) -> Iterable[list[Any]]:
    where = list(zip(run.clusters, *_place_columns(run).values(), strict=True))
    numbers = zip(*(getattr(run, column).tolist() for column in _TASK_COLUMNS), strict=True)
    places = zip(run.type.tolist(), run.cluster.tolist(), numbers, run.allocation.tolist(), strict=True)
    for kind, cluster, row, allocation in places:
        yield [run.scheduler, run.seed, run.task_types[kind], *where[cluster], *row, *allocation]


def forget_events(folder: Path) -> None:
    """Remove the event logs of an earlier comparison, and their directory if it is then empty."""
    for path in folder.glob("*.jsonl.gz"):
        if path.is_file():
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def copy_events(folder: Path, outcome: ComparisonResult) -> None:
    """Copy the event log of every run to <scheduler>-<seed>.jsonl.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for (scheduler, seed), cell in outcome.folders.items():
        shutil.copyfile(cell / EVENTS, folder / f"{slug(scheduler)}-{seed}.jsonl.gz")
