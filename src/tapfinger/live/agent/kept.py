"""A run, and what the agent remembers about it, in memory and on disk."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from tapfinger.errors import ConfigError
from tapfinger.live.agent.job_pool import Job
from tapfinger.live.agent.leases import replace_file
from tapfinger.live.agent.output import Shipping
from tapfinger.live.agent.reports import Following
from tapfinger.live.agent.starts import load_began
from tapfinger.live.backends.base import LAUNCH, Run
from tapfinger.live.backends.spool import read_json
from tapfinger.live.protocol.messages import AttemptId, Finite, Launch, Number

logger = logging.getLogger(__name__)
_launches, _sizes = TypeAdapter(Launch), TypeAdapter[int](Number)
_devices, _amounts = TypeAdapter(dict[str, tuple[int, ...]]), TypeAdapter(dict[str, Finite])


@dataclass(slots=True)
class KeptRun:
    """A run, and what the agent remembers about it. Only the agent's loop changes it, but for its complaint."""

    run: Run
    following: Following
    #: Number of its latest resize.
    size: int = 0
    #: Its start, while it is being started; the backend is asked nothing about it until then.
    starting: Job | None = None
    #: Whether a resize is under way.
    resizing: bool = False
    ended: bool = False
    forgotten: bool = False
    shipping: Shipping = field(default_factory=Shipping)
    #: Whether to stop it at once, where an order to stop it could not be carried out yet; None: no such order.
    stop_again: bool | None = None
    #: Why it is ended by the agent, whatever the backend will say; empty if it is not.
    verdict: str = ""
    #: What was last logged as wrong with it, so that the log does not repeat it.
    complaint: str = ""

    @contextmanager
    def forgiving(self, what: str) -> Iterator[None]:
        """Whatever goes wrong with one task is logged, and neither the agent nor another task suffers from it."""
        try:
            yield
        except Exception as error:
            complaint = f"{what}: {type(error).__name__}: {error}"
            if complaint != self.complaint:
                self.complaint = complaint
                logger.error("task %d attempt %d: %s", *self.run.id, complaint)


def register(directory: Path, cluster: str) -> tuple[str, int]:
    """Name of the agent of a directory, and the number of this start of it."""
    path = directory / "agent.json"
    try:
        known = read_json(path)
    except FileNotFoundError:
        known = {"name": secrets.token_hex(8), "cluster": cluster, "incarnation": 0}
    if known["cluster"] != cluster:
        raise ConfigError(f"{directory} belongs to the agent of cluster {known['cluster']!r}, not {cluster!r}")
    known["incarnation"] += 1
    replace_file(path, known, sync=True)
    return known["name"], known["incarnation"]


def directory_name(ident: AttemptId) -> str:
    """Name of the directory of a run."""
    return f"{ident[0]}.{ident[1]}"


def find_runs(directory: Path, lease: Path) -> tuple[list[KeptRun], list[Path]]:
    """Runs that an earlier agent has written down, and other directories: it had not got that far, or a task has
    changed what was written."""
    found, useless = [], []
    for place in sorted((directory / "runs").glob("[0-9]*")):
        try:
            saved = read_json(place / LAUNCH)
            launch, began = _launches.validate_python(saved["launch"]), load_began(saved)
            _amounts.validate_python(launch.allocation)  # it goes into every report, which would be refused
            devices, size = _devices.validate_python(saved["devices"]), _sizes.validate_python(saved.get("size", 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            useless.append(place)
            continue
        if place.name != directory_name(launch.id):
            useless.append(place)
            continue
        run = Run(launch, place, devices, lease)
        found.append(KeptRun(run, Following(run.reports, began, taken_over=True), size))
    return found, useless


def capacity_of(clusters: Mapping[str, Mapping[str, float]], name: str) -> Mapping[str, float]:
    """A cluster's capacity from the configuration."""
    if name not in clusters:
        raise ConfigError(f"there is no cluster {name!r}; the configuration has {', '.join(sorted(clusters))}")
    return clusters[name]
