"""Digests of everything that must not change by accident: event logs, protocol histories, the HTTP description.

``python tests/golden/digests.py --missing`` records what is new: a scheduler, a scenario. ``--again PREFIX ...``
records again what begins so (``openapi``, ``history``), ``--again`` alone everything. Do that only for a change of
behaviour that is meant, and list the change with its reason in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FILE = Path(__file__).with_name("digests.json")
if __name__ == "__main__":
    sys.path.insert(0, str(FILE.parents[1]))

from live.protocol import play  # noqa: E402
from live.sites import CONFIG as SITE  # noqa: E402

from tapfinger.cli import app as command_line  # noqa: E402
from tapfinger.config import load_scenario, scenario_names  # noqa: E402
from tapfinger.evaluation.specs import parse_spec  # noqa: E402
from tapfinger.live.config import build_site, load_site  # noqa: E402
from tapfinger.live.http.app import make_app  # noqa: E402
from tapfinger.live.protocol import words  # noqa: E402
from tapfinger.live.service.service import Service  # noqa: E402
from tapfinger.records import encode_event  # noqa: E402
from tapfinger.registry import BUILT_IN, create  # noqa: E402
from tapfinger.sim.run import run_scheduler  # noqa: E402
from tapfinger.workloads.world import build_world  # noqa: E402

SEEDS = (7, 8, 9)
#: Enough for queues to build up; the paper's 192 to 8,000 would take an hour.
TASKS = 120
HISTORIES = range(100)

#: Schedulers that are options of the learned one, each on the scenario it is for.
VARIANTS = {
    "multi-3": (
        "tapfinger@model=universal",
        *(f"tapfinger@model=multi-3-{name}" for name in ("brief", "cold", "critic", "hints-only", "joint-head")),
        *(f"tapfinger@model=multi-3-{name}" for name in ("paper-small", "no-han", "no-self")),
        "greedy@lend=true",
        "lookahead@lend=true",
    ),
    "hetero-6": ("tapfinger@model=universal",),
    "synthetic-3": ("tapfinger@model=universal", "tapfinger@model=synthetic-3-vanilla"),
    "synthetic-6": ("tapfinger@model=universal",),
    "short-long-3": ("tapfinger@model=universal", "tapfinger@model=short-long-3-no-pointer"),
    "testbed-3": ("tapfinger@model=universal",),
    "testbed-6": ("tapfinger@model=universal",),
}
#: Scenarios with nodes, hardware or other people, and the schedulers that are played there.
REAL_CLUSTERS = ("nodes-3", "hardware-3", "shared-3")
ON_REAL_CLUSTERS = ("greedy", "lookahead", "optimus", "tiresias-elastic", "unaware")
#: Schedulers that are also played where speeds are not known beforehand, on multi-3 and testbed-3.
LEARNING = ("greedy", "optimus", "exploring", "shortest-first", "tapfinger")


def digest(items: Iterable[Any]) -> str:
    """Short hash of plain data, item by item."""
    found = hashlib.sha256()
    for item in items:
        found.update(json.dumps(item, separators=(",", ":"), sort_keys=True).encode())
        found.update(b"\n")
    return found.hexdigest()[:20]


def runs() -> list[tuple[str, str, str]]:
    """Every run that is recorded: scenario, scheduler, override."""
    every = [
        (scenario, name)
        for scenario in scenario_names()
        for name in (ON_REAL_CLUSTERS if scenario in REAL_CLUSTERS else BUILT_IN["scheduler"])
    ]
    every += [(scenario, spec) for scenario, specs in VARIANTS.items() for spec in specs]
    missing = [(s, name, "knowledge.kind=missing") for s in ("multi-3", "testbed-3") for name in LEARNING]
    return [*((scenario, spec, "") for scenario, spec in every), *missing]


def name_of(scenario: str, spec: str, override: str, seed: int) -> str:
    """Key of a run in the file."""
    return " ".join(part for part in (scenario, spec, override, str(seed)) if part)


def run_digest(scenario: str, spec: str, override: str, seed: int) -> str:
    """Digest of the event log of one run."""
    world = build_world(load_scenario(scenario, [f"tasks={TASKS}", *([override] if override else [])]))
    events: list[Any] = []
    run_scheduler(world, parse_spec(spec).create(), seed, [lambda event: events.append(encode_event(event))])
    return digest(events)


def history_digest(seed: int, replicas: bool) -> str:
    """Digest of everything one made-up site writes down: its history in words, and how its tasks ended."""
    disk = play(seed, replicas=replicas).disk
    lines = [(line.at, line.kind, line.task, line.attempt, line.cluster, words.detail(line)) for line in disk.history]
    return digest([*lines, *((r.id, r.phase.value, r.attempt, r.reason) for r in disk.records.values())])


def comparison_digest(folder: Path) -> str:
    """Digest of results.json of a comparison, without what depends on the machine."""
    words = ("compare", "multi-3", "--schedulers", "greedy,optimus,tapfinger", "--seeds", "7:9")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        command_line([*words, "--set", f"tasks={TASKS}", "--out", str(folder)], standalone_mode=False)
    found = json.loads((folder / "results.json").read_text())
    return digest([without_machine(found)])


def openapi_digest(folder: Path) -> str:
    """Digest of the HTTP interface as it describes itself, without its prose and version."""
    path = folder / "site.toml"
    path.write_text(SITE)
    scenario, config = load_site(path)
    schedulers = [create("scheduler", name, {}) for name in ("fifo", "min")]
    service = Service(folder / "state", build_site(scenario), config, *schedulers)
    try:
        return digest([without_prose(make_app(service).openapi())])
    finally:
        service.close()


def without_prose(value: Any) -> Any:
    """An OpenAPI description without sentences, which may be put better at any time."""
    if isinstance(value, dict):
        kept = {
            k: v for k, v in value.items() if not (k in ("summary", "description", "version") and isinstance(v, str))
        }
        return {key: without_prose(item) for key, item in kept.items()}
    return [without_prose(item) for item in value] if isinstance(value, list) else value


def without_machine(value: Any) -> Any:
    """Plain data without times of decisions, versions and revisions."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(word in k for word in ("decision", "version", "revision"))}
        return {key: without_machine(item) for key, item in kept.items()}
    return [without_machine(item) for item in value] if isinstance(value, list) else value


def recorded() -> dict[str, str]:
    """What the file holds."""
    found: dict[str, str] = json.loads(FILE.read_text())
    return found


def expected(name: str) -> str:
    """The digest in the file."""
    found = recorded().get(name)
    if found is None:
        raise LookupError(f"no digest of {name!r} is recorded; if it is new: python tests/golden/digests.py --missing")
    return found


def _jobs() -> Iterator[tuple[str, Callable[[], str]]]:
    """Name of each digest, and how it is made."""
    for scenario, spec, override in runs():
        for seed in SEEDS:
            yield name_of(scenario, spec, override, seed), partial(run_digest, scenario, spec, override, seed)
    for name, job in (("comparison", comparison_digest), ("openapi", openapi_digest)):
        yield name, partial(_in_a_folder, job)
    for replicas in (False, True):
        for seed in HISTORIES:
            yield f"history {'replicas' if replicas else 'single'} {seed}", partial(history_digest, seed, replicas)


def _in_a_folder(job: Callable[[Path], str]) -> str:
    with TemporaryDirectory() as folder:
        return job(Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] not in (["--missing"], ["--again"]):
        sys.exit(__doc__)
    again = tuple(sys.argv[2:]) or ("",)
    made = {key: value for key, value in recorded().items() if sys.argv[1] == "--missing" or not key.startswith(again)}
    for key, make in _jobs():
        if key not in made:
            made[key] = make()
            sys.stdout.write(f"\r{len(made)} {key}\033[K")
            sys.stdout.flush()
    FILE.write_text(json.dumps(made, indent=0, sort_keys=True) + "\n")
