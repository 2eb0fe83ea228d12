"""Configuration of a live site: the clusters and task types of a scenario, and a table ``[live]``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from tapfinger.config import Scenario, parse_scenario, read_toml
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.live.protocol.records import DEFAULT_TYPE
from tapfinger.registry import create

if TYPE_CHECKING:
    from tapfinger.core.staging import DataLayout
    from tapfinger.live.backends.base import Backend
    from tapfinger.live.coordinator.site import Site
    from tapfinger.workloads.world import World


class BackendConfig(BaseModel):
    """A backend by name, with its options: the backend itself checks all keys but ``kind``."""

    model_config = ConfigDict(extra="allow", frozen=True)

    #: process, ray, fake, an entry point's name, or ``package.module:Class``.
    kind: str = "process"

    def create(self) -> Backend:
        """A new backend; raises ConfigError if its options or its class are wrong."""
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

    #: Scheduler that decides: a registered name, with options after @. The default lends nothing: sizes stay the same.
    scheduler: str = "tapfinger@budget_ms=500"
    #: Scheduler that decides in rounds in which the first one fails.
    fallback: str = "greedy"
    #: Seconds for a decision; then the fallback decides, and a scheduler of your own is killed and started again.
    decide_seconds: Annotated[float, Field(gt=0.0, le=3600.0)] = 30.0
    #: Who runs the network of the scheduler tapfinger: central (the coordinator) or agents, each for its own cluster.
    inference: Literal["central", "agents"] = "central"
    #: Seconds that agents have for the proposals of a turn; one that does not answer starts nothing in this slot.
    inference_seconds: Annotated[float, Field(gt=0.0, le=60.0)] = 1.0
    #: Most memory of a scheduler of your own, which runs in a process of its own, in MB.
    scheduler_memory_mb: Annotated[int, Field(ge=256, le=1_000_000)] = 4096
    #: One or several schedulers to compare with the first; their decisions are recorded but never executed.
    shadow: tuple[str, ...] = ()
    #: Whether schedulers are told the speeds that were learned from tasks (true) or only the configured ones.
    learn: bool = True
    #: How uncertain configured speeds are: 0.3 means that most are off by a factor of up to 1.35.
    doubt: Annotated[float, Field(ge=0.01, le=3.0)] = 0.3
    #: Share of their running time that tasks may lose to sizes tried only to learn their speed; 0 tries none.
    explore: Annotated[float, Field(ge=0.0, le=0.5)] = 0.0
    #: Seconds that an agent may act without hearing from the coordinator.
    lease_seconds: PositiveFloat = 60.0
    #: Seconds after the end of the lease by which the agent's tasks are certainly stopped.
    grace_seconds: PositiveFloat = 10.0
    #: Seconds between an agent's reports when nothing happens.
    beat_seconds: PositiveFloat = 5.0
    #: Seconds between asking a task to end and killing it.
    stop_seconds: Annotated[float, Field(ge=0.0)] = 5.0
    #: Losses in a row after which a task ends as lost; an attempt that ran for ten minutes begins the count anew.
    max_losses: PositiveInt = 10
    #: Most tasks that may wait; beyond that, submissions are refused.
    max_waiting: PositiveInt = 100_000
    #: Most memory of what tasks that have not ended bring with them (arguments, environment), in megabytes (MiB); an
    #: owner's may take half of it. Beyond that, submissions are refused.
    max_waiting_mb: PositiveInt = 256
    #: Longest submission, in bytes; other requests may have 64 KiB, or this if it is less.
    max_body: PositiveInt = 16 * 1024 * 1024
    #: Requests per second that each token may make, with bursts of twice as many; beyond that, the answer is 429.
    max_requests: PositiveFloat = 2000.0
    #: Most bytes of output kept for an attempt, on the cluster and by the coordinator: the first and the last ones.
    max_log: PositiveInt = 16 * 1024 * 1024
    #: Hours for which an agent keeps the files that a task has left in its own directory.
    keep_results_hours: Annotated[float, Field(ge=0.0)] = 72.0
    #: Most gigabytes (GiB) of such files that an agent keeps; the oldest are removed first.
    max_results_gb: Annotated[float, Field(ge=0.0)] = 10.0
    #: Megabytes (MiB) that must be free on an agent's disk, or its cluster takes no tasks.
    min_free_mb: Annotated[float, Field(ge=0.0)] = 512.0
    #: Days that an ended task is kept, with its events and output.
    keep_days: PositiveFloat = 90.0
    #: Most ended tasks kept; beyond that, those that ended first go first.
    keep_tasks: PositiveInt = 1_000_000
    #: Most of what ended tasks brought with them (arguments, environment) that is kept, in gigabytes; beyond that, the
    #: tasks that ended first go first.
    keep_tasks_gb: PositiveFloat = 5.0
    #: Most output kept by the coordinator, in gigabytes; beyond that, that of tasks that ended first goes first.
    keep_logs_gb: PositiveFloat = 20.0
    #: Address of a PostgreSQL database that several coordinators share; empty for a file in the state directory.
    store: str = ""
    #: Directories that tasks may run in, on every cluster; none means anywhere.
    roots: tuple[str, ...] = ()
    #: Names of environment variables that tasks may set, as patterns such as "MY_*".
    env_names: tuple[str, ...] = ("*",)

    #: When tasks run in a sandbox of bubblewrap: auto (if the machine can), required (or agents do not start), none.
    isolation: Literal["auto", "required", "none"] = "auto"
    #: Directories and files that isolated tasks cannot see, besides those of their agent and of the user's own site.
    hidden: tuple[str, ...] = ()

    #: Backend that runs tasks on every cluster: its name, or a table of ``kind`` and options.
    backend: BackendConfig = BackendConfig()
    #: Backends by cluster, instead of ``backend``.
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
        """The backend of a cluster. ``kind`` and ``options`` come from the command line and take precedence."""
        configured = self.backends.get(cluster, self.backend)
        kept = configured.__pydantic_extra__ or {} if kind in (None, configured.kind) else {}
        return BackendConfig(**{**kept, **(options or {}), "kind": kind or configured.kind})

    @field_validator("shadow", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given


def default_site() -> dict[str, Any]:
    """Two pretended clusters that share this machine, and one generic task type."""
    cpus = max(2, len(os.sched_getaffinity(0)) // 2)
    clusters = [{"name": f"edge-{n}", "capacity": {"cpu": cpus, "gpu": 0}} for n in (1, 2)]
    speed = {"kind": "amdahl", "seconds": 60, "parallel": {"cpu": 0.8}}
    demo = {"name": DEFAULT_TYPE, "minimum": {"cpu": 1, "gpu": 0}, "maximum": {"cpu": cpus}, "speed": speed}
    return {"name": "laptop", "clusters": clusters, "task_types": [demo]}


def load_site(path: Path | None) -> tuple[Scenario, LiveConfig]:
    """Read a site from a TOML file, or from a shipped scenario by its name. None: the default site."""
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
    if config.inference == "agents" and config.inference_seconds * 10 > config.lease_seconds:
        raise ConfigError(
            f"{source}: live.inference_seconds = {config.inference_seconds:g} must be at most a tenth of "
            f"live.lease_seconds = {config.lease_seconds:g}: no cluster may be waited for as long as a lease lasts"
        )
    scenario = parse_scenario({"name": "site", "mode": "multi", "slot_seconds": 1.0, **data}, source, directory)
    if scenario.data and scenario.links.kind != "fixed":
        raise ConfigError(
            f"{source}: links.kind = {scenario.links.kind!r} draws bandwidths, and those of a live site are what they "
            "are; set kind = 'fixed', with mbps and links.between"
        )
    if spanning := [kind.name for kind in scenario.task_types if kind.spans]:
        raise ConfigError(
            f"{source}: task_types.{spanning[0]}.spans = true: on a live site every node has an agent of its own, and "
            "a task runs with one agent; remove spans, or describe the machines as one cluster without nodes, with a "
            "backend that reaches all of them, such as ray"
        )
    from tapfinger.live.backends.environment import check_resources
    from tapfinger.workloads.resource_types import resource_types

    try:
        check_resources(resource_types(scenario))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    clusters = cluster_capacities(scenario)
    for name in config.backends:
        if name not in clusters:
            raise ConfigError(f"{source}: live.backends: {UnknownNameError('cluster', name, clusters)}")
    return scenario, config


def cluster_capacities(scenario: Scenario) -> dict[str, dict[str, float]]:
    """Capacity of each cluster or node by name: of whatever has an agent of its own."""
    return {
        name: {**dict.fromkeys(scenario.resources, 0.0), **amounts}
        for cluster in scenario.clusters
        for _, nodes in cluster.copies()
        for name, amounts, _ in nodes
    }


def build_site(scenario: Scenario) -> Site:
    """The domain objects of a site; types of unknown speed get a profile similar to the others.

    What tasks need of a resource without anybody's knowing it (``needs``) is left out: real tasks show it.
    """
    from tapfinger.live.coordinator.site import Site
    from tapfinger.live.unknown_speeds import with_any_speed, with_similar_speeds
    from tapfinger.workloads.world import build_world

    world = build_world(with_any_speed(scenario))
    types = {t.name: t for t in with_similar_speeds(scenario, world.own_types)}
    bad = [name for name in types if "[" in name]
    if bad:
        raise ConfigError(f"{scenario.source}: task type {bad[0]!r} has a bracket in its name; rename it")
    plan = scenario.model_dump(mode="json")
    return Site(world.resources, world.clusters, types, scenario.slot_seconds, plan=plan, data=_layout(world))


def _layout(world: World) -> DataLayout | None:
    """Which data sets lie where; None without any, or if links are drawn: nobody knows those of a real site."""
    from tapfinger.workloads.data_sets import draw_layout

    if not world.scenario.data or world.scenario.links.kind != "fixed":
        return None
    return draw_layout(world.scenario, world.wholes, world.whole_of.tolist(), np.random.default_rng(0))
