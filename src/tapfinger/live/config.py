"""Configuration of a live site: a scenario's clusters and task types, and a table ``[live]`` of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from tapfinger.config import ConstantSpeed, Scenario, UnknownSpeed, parse_scenario, read_toml
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.live.protocol.records import DEFAULT_TYPE
from tapfinger.registry import create

if TYPE_CHECKING:
    from tapfinger.live.backends.base import Backend
    from tapfinger.live.coordinator.site import Site


class BackendConfig(BaseModel):
    """A backend by name, and its options: all keys but ``kind`` are checked by the backend itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    #: process, ray, fake, an entry point's name, or ``package.module:Class``.
    kind: str = "process"

    def create(self) -> Backend:
        """A new backend; what is wrong with its options is an error that says so."""
        made = create("backend", self.kind, dict(self.__pydantic_extra__ or {}))
        lacking = [name for name in ("start", "resize", "stop", "poll") if not callable(getattr(made, name, None))]
        if lacking:
            raise ConfigError(
                f"backend {self.kind!r} is a {type(made).__name__} without {', '.join(lacking)}; a backend needs "
                "start, resize, stop and poll (docs/extending-backend.md)"
            )
        backend: Backend = made
        return backend


class LiveConfig(BaseModel):
    """Keys of ``[live]``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    #: Who decides: a registered scheduler, with options after @. Nothing is lent: tasks keep their size.
    scheduler: str = "tapfinger@lend=false@budget_ms=500"
    #: Who decides in rounds in which that one fails.
    fallback: str = "greedy"
    #: Who is asked as well, without anything being done of it: one or several, to compare with the scheduler.
    shadow: tuple[str, ...] = ()
    #: Whether schedulers are told how fast tasks were seen to be, or only what is configured.
    learn: bool = True
    #: How uncertain configured speeds are: 0.3 means that most are off by a factor of up to 1.35.
    doubt: Annotated[float, Field(ge=0.01, le=3.0)] = 0.3
    #: Share of their running time that tasks may lose by sizes that are tried to learn of them; 0 tries none.
    explore: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0
    #: Seconds that an agent may act without hearing from the coordinator.
    lease_seconds: PositiveFloat = 60.0
    #: Seconds beyond the lease after which its tasks are surely stopped.
    grace_seconds: PositiveFloat = 10.0
    #: Seconds between an agent's reports when nothing happens.
    beat_seconds: PositiveFloat = 5.0
    #: Seconds from asking a task to end to killing it.
    stop_seconds: Annotated[float, Field(ge=0.0)] = 5.0
    #: Most tasks that may wait; beyond, submissions are refused.
    max_waiting: PositiveInt = 100_000
    #: Longest request, in bytes.
    max_body: PositiveInt = 16 * 1024 * 1024
    #: Requests a second that each token may make, twice as many at once; beyond, 429.
    max_requests: PositiveFloat = 2000.0
    #: Most bytes of output kept for an attempt, on the cluster and by the coordinator: its first and its last ones.
    max_log: PositiveInt = 16 * 1024 * 1024
    #: Address of a PostgreSQL database that several coordinators share; empty for a file in the state directory.
    store: str = ""
    #: Directories that tasks may run in, on every cluster; none means anywhere.
    roots: tuple[str, ...] = ()
    #: Names of variables that tasks may bring, as patterns such as "MY_*".
    env_names: tuple[str, ...] = ("*",)

    #: How tasks are run on every cluster: a backend's name, or a table of ``kind`` and options.
    backend: BackendConfig = BackendConfig()
    #: By cluster, instead of ``backend``.
    backends: dict[str, BackendConfig] = {}

    @field_validator("backend", mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given

    @field_validator("backends", mode="before")
    @classmethod
    def _names_alone(cls, given: Any) -> Any:
        return {name: cls._name_alone(one) for name, one in given.items()} if isinstance(given, dict) else given

    def backend_of(
        self, cluster: str, kind: str | None = None, options: Mapping[str, Any] | None = None
    ) -> BackendConfig:
        """The backend of a cluster. ``kind`` and ``options`` come from the command line and go first."""
        configured = self.backends.get(cluster, self.backend)
        kept = configured.__pydantic_extra__ or {} if kind in (None, configured.kind) else {}
        return BackendConfig(**{**kept, **(options or {}), "kind": kind or configured.kind})

    @field_validator("shadow", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given


def default_site() -> dict[str, Any]:
    """Two pretended clusters that share this machine, and a task type for anything."""
    cpus = max(2, len(os.sched_getaffinity(0)) // 2)
    clusters = [{"name": f"edge-{n}", "capacity": {"cpu": cpus, "gpu": 0}} for n in (1, 2)]
    speed = {"kind": "amdahl", "seconds": 60, "parallel": {"cpu": 0.8}}
    demo = {"name": DEFAULT_TYPE, "minimum": {"cpu": 1, "gpu": 0}, "maximum": {"cpu": cpus}, "speed": speed}
    return {"name": "laptop", "clusters": clusters, "task_types": [demo]}


def load_site(path: Path | None) -> tuple[Scenario, LiveConfig]:
    """Read a site: a TOML file, or a shipped scenario by its name. None: two clusters on this machine."""
    if path is None:
        data, source, directory = default_site(), "the default site", "."
    else:
        data, source, directory = read_toml(path if path.is_file() else str(path))
    live = data.pop("live", {})
    try:
        config = LiveConfig.model_validate(live)
    except ValidationError as error:
        faults = [
            f"{source}: live.{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()
        ]
        raise ConfigError("\n".join(faults)) from None
    if config.stop_seconds >= config.grace_seconds:
        raise ConfigError(
            f"{source}: live.stop_seconds = {config.stop_seconds:g} must be below live.grace_seconds = "
            f"{config.grace_seconds:g}: tasks must have been killed when the grace is over"
        )
    if config.beat_seconds * 2 > config.lease_seconds:
        raise ConfigError(
            f"{source}: live.beat_seconds = {config.beat_seconds:g} must be at most half of live.lease_seconds = "
            f"{config.lease_seconds:g}, or one lost message ends a lease"
        )
    scenario = parse_scenario({"name": "site", "mode": "multi", "slot_seconds": 1.0, **data}, source, directory)
    clusters = cluster_capacities(scenario)
    for name in config.backends:
        if name not in clusters:
            raise ConfigError(f"{source}: live.backends: {UnknownNameError('cluster', name, clusters)}")
    return scenario, config


def cluster_capacities(scenario: Scenario) -> dict[str, dict[str, float]]:
    """Capacity of each cluster by name."""
    found: dict[str, dict[str, float]] = {}
    for cluster in scenario.clusters:
        for copy in range(cluster.count):
            found[f"{cluster.name}-{copy}" if cluster.count > 1 else cluster.name] = dict(cluster.capacity)
    return found


def build_site(scenario: Scenario) -> Site:
    """The domain objects of a site; types of unknown speed are taken to be like the others."""
    from tapfinger.live.coordinator.site import Site
    from tapfinger.profiles.similar import similar_profile
    from tapfinger.workloads.world import build_world

    unknown = {t.name for t in scenario.task_types if isinstance(t.speed, UnknownSpeed)}
    any_speed = ConstantSpeed(kind="constant", slots=1.0)
    whole = [t.model_copy(update={"speed": any_speed}) if t.name in unknown else t for t in scenario.task_types]
    world = build_world(scenario.model_copy(update={"task_types": tuple(whole)}))
    known = [t for t in world.task_types if t.name not in unknown]
    types = {
        t.name: replace(t, profile=similar_profile(t, known)) if t.name in unknown else t for t in world.task_types
    }
    bad = [name for name in types if "[" in name]
    if bad:
        raise ConfigError(f"{scenario.source}: task type {bad[0]!r} has a bracket in its name; rename it")
    return Site(world.resources, world.clusters, types, scenario.slot_seconds, plan=scenario.model_dump(mode="json"))
