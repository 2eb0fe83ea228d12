"""Scenarios: strict, frozen configuration read from TOML, with overrides by dotted key.

One scenario defines the clusters, the tasks and when they arrive, and how fast they run.
Unknown keys and bad values are errors that name the file, the key and the value.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import resources as package_files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from tapfinger.config_faults import explain, switching
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.overrides import apply_override

#: Most clusters, task types, resources, outages and tasks of a scenario; more are taken for a typing error.
MAX_CLUSTERS = 10_000
MAX_TYPES = 1_000
MAX_RESOURCES = 16
MAX_OUTAGES = 100_000
MAX_TASKS = 10_000_000
#: Most pairs of a task and a cluster: whether the task may run there is drawn and kept for each.
MAX_PAIRS = 500_000_000
#: Latest slot of an outage.
MAX_OUTAGE_SLOT = 100_000_000
#: Largest amount of a resource, in natural quantities.
MAX_AMOUNT = 1e9
#: Most data sets; and most whole clusters where there are any, since every two of them have a link.
MAX_DATA = 1_000
MAX_PLACES = 1_000
#: Most measured seconds of an inline grid.
MAX_GRID_SECONDS = 100_000

Amounts = dict[str, Annotated[float, Field(le=MAX_AMOUNT)]]

#: Name, amounts and kind of hardware of a cluster without nodes, or of one node.
Pool = tuple[str, Amounts, str]

#: Fields of a scenario that are not keys of its file, and what they are.
_NOT_KEYS = {"directory": "where the file lies", "source": "what the file is called"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ResourceConfig(_Strict):
    """A resource type. A plain number is its unit. Roles that are left out follow from the name: `cpu` is a device
    enforced by cores, `gpu` a device made visible, `memory` divisible and limited; all others are divisible and only
    counted. Simulations use only the unit, and which resource is the accelerator (the first visible one).
    """

    #: Smallest amount that can be allocated, in natural quantities.
    unit: PositiveFloat = 1.0
    #: device: whole devices with ids, each for one task. share: parts of devices with ids, such as a quarter of a GPU.
    #: divisible: an amount without ids.
    role: Literal["device", "share", "divisible"] | None = None
    #: cores: tasks are pinned, and their processor time is limited. visible: a variable tells the task its ids.
    #: memory: GiB that the task may use (control groups). none: only counted.
    enforced: Literal["cores", "visible", "memory", "none"] | None = None
    #: Environment variable that names the ids; `CUDA_VISIBLE_DEVICES` if left out.
    variable: str | None = None
    #: Minimum of task types that do not name this resource.
    of_tasks: Annotated[float, Field(ge=0.0, le=MAX_AMOUNT)] | None = None
    #: Amount of clusters and nodes that do not name this resource.
    of_nodes: Annotated[float, Field(ge=0.0, le=MAX_AMOUNT)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _unit_alone(cls, given: Any) -> Any:
        return given if isinstance(given, dict | ResourceConfig) else {"unit": given}

    @model_serializer(mode="wrap")
    def _as_short_as_written(self, plain: SerializerFunctionWrapHandler) -> Any:
        roles = {key: value for key, value in plain(self).items() if key != "unit" and value is not None}
        return {"unit": self.unit, **roles} if roles else self.unit


class NodeConfig(_Strict):
    """One node of a cluster, or ``count`` identical ones: `{ cpu = 32, gpu = 4, count = 2 }`."""

    #: How many nodes like this.
    count: Annotated[PositiveInt, Field(le=MAX_CLUSTERS)] = 1
    #: Kind of its hardware; that of the cluster if left out.
    kind: str = ""
    #: Amount of each resource; in a file they stand beside the other keys, and those left out are 0.
    capacity: Amounts

    @model_validator(mode="before")
    @classmethod
    def _amounts_beside_keys(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "capacity" in given:
            return given
        keys = {key: value for key, value in given.items() if key in cls.model_fields}
        return {**keys, "capacity": {key: value for key, value in given.items() if key not in keys}}

    @model_serializer(mode="wrap")
    def _as_short_as_written(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown = plain(self)
        return {**shown.pop("capacity"), **{key: value for key, value in shown.items() if value not in ("", 1)}}


class ClusterConfig(_Strict):
    """One cluster, or ``count`` identical ones."""

    #: Name; a number is appended if the count is above 1.
    name: str
    #: How many clusters of this kind.
    count: Annotated[PositiveInt, Field(le=MAX_CLUSTERS)] = 1
    #: Amount of each resource, in natural quantities. With nodes it may be left out; it is the sum of theirs.
    capacity: Amounts = {}
    #: The nodes; a task runs on one of them, unless its type spans. A cluster without nodes is one pool of resources.
    nodes: Annotated[tuple[NodeConfig, ...], Field(max_length=MAX_CLUSTERS)] = ()
    #: Kind of its hardware, such as `"a100"`: task types may have another speed on each.
    kind: str = ""
    #: Size in GB of the cache for data sets that are brought here; without limit if left out.
    cache_gb: Annotated[float, Field(ge=0.0, le=MAX_AMOUNT)] | None = None

    @property
    def pools(self) -> int:
        """Number of nodes of all copies; a cluster without nodes counts as one."""
        return self.count * max(1, sum(node.count for node in self.nodes))

    def copies(self) -> Iterator[tuple[str, list[Pool]]]:
        """The name of every copy, with its nodes. A cluster without nodes is its only one."""
        for copy in range(self.count):
            name = f"{self.name}-{copy}" if self.count > 1 else self.name
            each = [(node.capacity, node.kind or self.kind) for node in self.nodes for _ in range(node.count)]
            yield name, [(f"{name}:{n}", *node) for n, node in enumerate(each)] or [(name, self.capacity, self.kind)]

    def total(self) -> Amounts:
        """Amount of each resource of one copy."""
        if not self.nodes:
            return self.capacity
        names = dict.fromkeys(name for node in self.nodes for name in node.capacity)
        return {name: sum(node.count * node.capacity.get(name, 0.0) for node in self.nodes) for name in names}

    @model_validator(mode="after")
    def _adds_up(self) -> ClusterConfig:
        if not self.nodes and not self.capacity:
            raise ValueError("give a capacity, or nodes")
        total = self.total()
        for name in dict.fromkeys([*self.capacity, *total]) if self.capacity else ():
            given, sum_ = self.capacity.get(name, 0.0), total.get(name, 0.0)
            if not math.isclose(given, sum_):
                raise ValueError(
                    f"capacity has {given:g} {name}, but its nodes have {sum_:g} in all; correct one of the two, or "
                    "leave capacity out"
                )
        return self

    @model_serializer(mode="wrap")
    def _as_short_as_written(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Models carry the scenario they were trained on; writing out a new default would make it a different scenario.
        empty = {"nodes", "kind"} | ({"capacity"} if self.nodes else set())
        shown = {key: value for key, value in plain(self).items() if key not in empty or value}
        return {key: value for key, value in shown.items() if key != "cache_gb" or value is not None}


class ConstantSpeed(_Strict):
    """The same duration under every allocation. Give slots or seconds."""

    kind: Literal["constant"]
    #: Duration in slots; part of a slot still takes a whole slot.
    slots: PositiveFloat | None = None
    #: Duration in seconds.
    seconds: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> ConstantSpeed:
        if (self.slots is None) == (self.seconds is None):
            raise ValueError("give either slots or seconds")
        return self


class TanhSpeed(_Strict):
    """The paper's sensitive tasks: tanh(amount / scale) * sqrt(shape_offset - progress) / slots per slot."""

    kind: Literal["tanh"]
    #: The resource that speeds the task up.
    resource: str = "gpu"
    #: Amount at which the gain per slot is tanh(1), in natural quantities.
    scale: PositiveFloat = 16.0
    #: Above 1; leave out for a speed that does not change with progress.
    shape_offset: Annotated[float, Field(gt=1.0)] | None = None
    #: Duration at full speed in slots, before the effect of shape_offset.
    slots: PositiveFloat = 1.0

    @model_serializer(mode="wrap")
    def _without_one_slot(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Models carry the scenario they were trained on; writing out a new default would make it a different scenario.
        return {key: value for key, value in plain(self).items() if key != "slots" or value != 1.0}


class AmdahlSpeed(_Strict):
    """Amdahl's law: the time at the minimum, of which a share per resource shrinks as 1/amount."""

    kind: Literal["amdahl"]
    #: Seconds at the minimum allocation.
    seconds: PositiveFloat
    #: Share of the time that each named resource divides; the shares sum to at most 1.
    parallel: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]]


class PowerSpeed(_Strict):
    """Diminishing returns: the speed grows as amount ** exponent, for each named resource."""

    kind: Literal["power"]
    #: Seconds at the minimum allocation.
    seconds: PositiveFloat
    #: Exponent by resource: with 1, twice the amount halves the time; 0 changes nothing.
    exponent: dict[str, Annotated[float, Field(ge=0.0, le=2.0)]]


class ReboundSpeed(_Strict):
    """Accelerators fed by processors: fixed + compute / gpu + feeding * gpu / cpu seconds, so too many gpus hurt."""

    kind: Literal["rebound"]
    #: Seconds that no resource shortens.
    fixed: Annotated[float, Field(ge=0.0)] = 0.0
    #: Seconds of computing on one unit of the resource; divided among several.
    compute: PositiveFloat
    #: Seconds to feed one unit of the resource with one unit of the feeder.
    feeding: Annotated[float, Field(ge=0.0)]
    #: The resource that computes.
    resource: str = "gpu"
    #: The resource that feeds it.
    feeder: str = "cpu"


class GridSpeed(_Strict):
    """Measured seconds, written inline; amounts in between are handled as in a profile CSV (docs/profiles.md)."""

    kind: Literal["grid"]
    #: The measured amounts of each resource, ascending; resources left out do not change the speed.
    amounts: Annotated[dict[str, tuple[PositiveFloat, ...]], Field(min_length=1, max_length=MAX_RESOURCES)]
    #: Seconds for each combination of amounts; the last named resource varies fastest.
    seconds: Annotated[tuple[PositiveFloat, ...], Field(max_length=MAX_GRID_SECONDS)]

    @model_validator(mode="after")
    def _whole_grid(self) -> GridSpeed:
        for name, axis in self.amounts.items():
            if not axis or any(a >= b for a, b in pairwise(axis)):
                raise ValueError(
                    f"amounts.{name} = {list(axis)} must be at least one amount, each above the one before"
                )
        cells = math.prod(map(len, self.amounts.values()))
        if len(self.seconds) != cells:
            axes = " x ".join(f"{len(axis)} amounts of {name}" for name, axis in self.amounts.items())
            raise ValueError(f"{axes} need {cells} seconds, got {len(self.seconds)}")
        return self


class TableSpeed(_Strict):
    """Measured seconds from a profile CSV (docs/profiles.md)."""

    kind: Literal["table"]
    #: Path, relative to the scenario file.
    file: str
    #: Task type whose rows are used; the task type's own name if left out.
    type: str | None = None
    #: Resources that have no column in the file and do not change the speed.
    insensitive: tuple[str, ...] = ()
    #: Above 1: the speed falls with progress p as sqrt(shape_offset - p). Leave out if it does not.
    shape_offset: Annotated[float, Field(gt=1.0)] | None = None

    @model_serializer(mode="wrap")
    def _without_no_shape(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:  # as for tanh
        return {key: value for key, value in plain(self).items() if key != "shape_offset" or value is not None}


class TestbedSpeed(_Strict):
    """A built-in parametric profile of one of the paper's test-bed tasks."""

    __test__ = False  # not a test class, despite its name

    kind: Literal["testbed"]
    #: image-classification, language-modeling or speech-recognition; the task type's own name if left out.
    type: str | None = None


class UnknownSpeed(_Strict):
    """Nothing is known: live sites learn the speed from the tasks that run, and start from similar task types."""

    kind: Literal["unknown"] = "unknown"


class FactorSpeed(_Strict):
    """A factor on the speed on another kind of hardware: 2 is twice as fast. A plain number is the factor."""

    kind: Literal["factor"]
    #: Above 1: faster.
    factor: Annotated[float, Field(ge=0.0001, le=10_000.0)]
    #: The other kind; if left out, the factor is on `speed`.
    of: str = ""


SpeedConfig = Annotated[
    ConstantSpeed
    | TanhSpeed
    | AmdahlSpeed
    | PowerSpeed
    | ReboundSpeed
    | GridSpeed
    | TableSpeed
    | TestbedSpeed
    | UnknownSpeed,
    Field(discriminator="kind"),
]


def _factor_alone(given: Any) -> Any:
    """Complete what is said in short: a plain number, or a table with a factor."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"kind": "factor", "factor": given}
    return {"kind": "factor", **given} if isinstance(given, dict) and "factor" in given else given


KindSpeed = Annotated[SpeedConfig | FactorSpeed, Field(discriminator="kind"), BeforeValidator(_factor_alone)]


class TaskTypeConfig(_Strict):
    """A kind of task."""

    #: Name, unique among the task types.
    name: str
    #: Relative frequency among generated tasks.
    weight: Annotated[float, Field(ge=0.0)] = 1.0
    #: Smallest legal allocation.
    minimum: Amounts
    #: Largest legal allocation; resources left out stay at the minimum.
    maximum: Amounts = {}
    #: How fast it runs under each allocation; only live sites may leave it out.
    speed: SpeedConfig = UnknownSpeed()
    #: How fast it is on each kind of hardware: a number is a factor on `speed`, a table is a speed of its own, or
    #: `{ kind = "factor", factor = 2, of = "v100" }`. Clusters without a kind have `speed`.
    on: dict[str, KindSpeed] = {}
    #: Amount of a resource, as a rule memory, that its tasks need in truth, between minimum and maximum. Schedulers do
    #: not know it: a task that holds less runs out of memory, waits again, and gets more the next time.
    needs: Amounts = {}
    #: Names of the data sets that its tasks need before they run.
    data: tuple[str, ...] = ()
    #: Whether a task may run on several nodes of a cluster at once, all of one kind. Only in simulation.
    spans: Annotated[bool, Field(strict=True)] = False

    @model_serializer(mode="wrap")
    def _without_kinds(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:  # as for clusters
        new = ("on", "needs", "data", "spans")
        return {key: value for key, value in plain(self).items() if key not in new or value}


class ArrivalsConfig(BaseModel):
    """When tasks arrive. Further keys belong to the kind, which checks them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    #: poisson, bursty, day-night, trace, an entry point's name, or ``package.module:Class``.
    kind: str = "poisson"

    def options(self) -> dict[str, Any]:
        """Everything but the kind, for the process's constructor."""
        return dict(self.__pydantic_extra__ or {})


class EligibilityConfig(_Strict):
    """Which clusters a generated task may run on; at least one has the capacity for its minimum."""

    #: ``subset``: K uniform on 1..N, then a uniform K-subset. ``bandwidth``: links drawn uniformly;
    #: a cluster is eligible if its link has at least the minimum. ``all``: every cluster.
    kind: Literal["subset", "bandwidth", "all"] = "subset"
    #: Upper end of the link bandwidth, in Mbps.
    maximum_mbps: PositiveFloat = 10.0
    #: Smallest bandwidth at which a cluster is eligible, in Mbps.
    minimum_mbps: PositiveFloat = 5.0

    @model_validator(mode="after")
    def _bandwidth_only(self) -> EligibilityConfig:
        for name in ("minimum_mbps", "maximum_mbps"):
            # A resolved scenario holds every default, so only a different value shows that the user set it.
            if self.kind != "bandwidth" and getattr(self, name) != EligibilityConfig.model_fields[name].default:
                raise ValueError(
                    f"{name} = {getattr(self, name):g} has no effect with kind {self.kind!r}; set kind to 'bandwidth', "
                    f"or remove {name}"
                )
        return self


class NoiseConfig(_Strict):
    """Randomness of progress per slot."""

    #: additive: gain + u, never below 0. relative: gain * (1 + u). u is uniform on +-amplitude.
    kind: Literal["none", "additive", "relative"] = "none"
    #: Largest deviation: of the gain per slot (additive), or as a share of the gain (relative, below 1).
    amplitude: Annotated[float, Field(ge=0.0)] = 0.0

    @model_validator(mode="after")
    def _ends(self) -> NoiseConfig:
        if self.kind == "relative" and self.amplitude >= 1.0:
            raise ValueError(f"relative amplitude {self.amplitude} must be below 1, or progress could go backwards")
        if self.kind == "none" and self.amplitude > 0.0:
            raise ValueError(
                f"amplitude = {self.amplitude:g} has no effect with kind 'none'; set kind to 'additive' or 'relative', "
                "or remove amplitude"
            )
        # An amplitude of 0 that is written out is deliberate, such as the first value of a series.
        if self.kind != "none" and "amplitude" not in self.model_fields_set:
            raise ValueError(f"kind {self.kind!r} needs an amplitude; add one above 0, or set kind to 'none'")
        return self


class KnowledgeConfig(_Strict):
    """What schedulers know about speed profiles; tasks run at the true speeds."""

    #: exact: the truth. noisy: every rate times exp(z), z normal, half of its variance common to all allocations of a
    #: type. wrong: every rate of a type times one factor. missing: nothing, so a generic profile is assumed.
    kind: Literal["exact", "noisy", "wrong", "missing"] = "exact"
    #: Task types affected; if left out, the first of the scenario (wrong) or all (noisy, missing).
    types: tuple[str, ...] = ()
    #: Standard deviation of z (noisy).
    amount: Annotated[float, Field(ge=0.0, le=2.0)] = 0.3
    #: Stated rate divided by true rate (wrong): above 1, tasks are slower than schedulers think.
    factor: Annotated[float, Field(ge=0.001, le=1000.0)] = 3.0
    #: Whether schedulers correct their beliefs by observing tasks that run.
    learn: bool = True

    @model_validator(mode="after")
    def _for_their_kind(self) -> KnowledgeConfig:
        has_effect = {"types": self.kind != "exact", "amount": self.kind == "noisy", "factor": self.kind == "wrong"}
        has_effect["learn"] = self.kind != "exact"
        for name, used in has_effect.items():
            # A resolved scenario holds every default, so only a different value shows that the user set it.
            if not used and getattr(self, name) != KnowledgeConfig.model_fields[name].default:
                raise ValueError(f"{name} has no effect with kind {self.kind!r}; set another kind, or remove {name}")
        return self


class OutageConfig(_Strict):
    """A cluster that is down for a while; its tasks start again elsewhere."""

    #: Index of the cluster.
    cluster: Annotated[int, Field(ge=0)]
    #: First slot in which the cluster is down.
    start: Annotated[PositiveInt, Field(le=MAX_OUTAGE_SLOT)]
    #: First slot in which the cluster is up again.
    end: Annotated[PositiveInt, Field(le=MAX_OUTAGE_SLOT)]

    @model_validator(mode="after")
    def _in_order(self) -> OutageConfig:
        if self.end <= self.start:
            raise ValueError(f"end {self.end} must come after start {self.start}")
        return self


Share = Annotated[float, Field(ge=0.0, le=1.0)]


class BurstyOthers(_Strict):
    """Calm and busy phases of random length; every node has its own."""

    kind: Literal["bursty"]
    #: Names of clusters or nodes; all clusters if left out.
    clusters: tuple[str, ...] = ()
    #: Share of each resource that others use in a calm phase.
    calm: Share = 0.0
    #: The same in a busy phase.
    busy: Share = 0.75
    #: Mean length of a calm phase.
    calm_slots: Annotated[float, Field(ge=1.0, le=1e6)] = 60.0
    #: Mean length of a busy phase.
    busy_slots: Annotated[float, Field(ge=1.0, le=1e6)] = 30.0


class DayNightOthers(_Strict):
    """A use that swings like day and night: mean + swing * sin(2 pi slot / period)."""

    kind: Literal["day-night"]
    #: Names of clusters or nodes; all clusters if left out.
    clusters: tuple[str, ...] = ()
    #: Mean share of each resource that others use.
    mean: Share = 0.4
    #: How much the share rises and falls; it stays between 0 and 1.
    swing: Share = 0.4
    #: Slots in a day.
    period: Annotated[PositiveInt, Field(le=1_000_000)] = 8640


class TraceOthers(_Strict):
    """What a file says: a CSV with columns seconds, cluster and each resource; a row counts until the next one."""

    kind: Literal["trace"]
    #: Path, relative to the scenario file.
    file: str
    #: Seconds after which it begins again; if left out, a slot after the last row.
    repeat: PositiveFloat | None = None


class DataConfig(_Strict):
    """A data set that tasks need before they run. What is brought to a cluster stays in its cache (`cache_gb`)."""

    #: Name, unique among the data sets.
    name: str
    #: Size in GB.
    gb: Annotated[PositiveFloat, Field(le=MAX_AMOUNT)]
    #: Clusters where it lies for good; at the submitters' if left out.
    at: tuple[str, ...] = ()


Mbps = Annotated[float, Field(ge=1e-6, le=1e9)]


class LinkConfig(_Strict):
    """The link between two places, both ways: `{ ends = ["lab", "edge"], mbps = 20 }`."""

    #: Two names of clusters, or one and `submitters`.
    ends: tuple[str, str]
    #: Its bandwidth in Mbps.
    mbps: Mbps


class LinksConfig(_Strict):
    """Links over which data sets are brought, one after the other; one each way between any two places."""

    #: fixed: all have `mbps`. uniform: the bandwidth of each is drawn between `minimum_mbps` and `maximum_mbps`.
    kind: Literal["fixed", "uniform"] = "fixed"
    #: Bandwidth of every link (fixed), in Mbps.
    mbps: Mbps = 1000.0
    #: Least bandwidth (uniform), in Mbps; the paper's is 0, over which nothing would ever arrive.
    minimum_mbps: Mbps = 0.1
    #: Largest bandwidth (uniform), in Mbps.
    maximum_mbps: Mbps = 10.0
    #: Links with a bandwidth of their own.
    between: Annotated[tuple[LinkConfig, ...], Field(max_length=MAX_PLACES * MAX_PLACES)] = ()

    @model_validator(mode="after")
    def _for_their_kind(self) -> LinksConfig:
        unused = ("minimum_mbps", "maximum_mbps") if self.kind == "fixed" else ("mbps",)
        for name in unused:
            if getattr(self, name) != LinksConfig.model_fields[name].default:
                raise ValueError(f"{name} has no effect with kind {self.kind!r}; set another kind, or remove {name}")
        if self.minimum_mbps > self.maximum_mbps:
            raise ValueError(f"minimum_mbps {self.minimum_mbps:g} exceeds maximum_mbps {self.maximum_mbps:g}")
        return self


OthersConfig = Annotated[BurstyOthers | DayNightOthers | TraceOthers, Field(discriminator="kind")]


class Scenario(_Strict):
    """Everything that defines a simulated world, except the seed."""

    #: Name, as it appears in reports.
    name: str
    #: One sentence, shown in lists.
    description: str = ""
    #: single: one start per cluster and slot. multi: turns until all clusters are void.
    mode: Literal["single", "multi"]
    #: Number of tasks to generate. A trace has its own number of tasks, cut to this one if given.
    tasks: Annotated[PositiveInt, Field(le=MAX_TASKS)] | None = None
    #: Real seconds in one slot.
    slot_seconds: Annotated[float, Field(ge=0.001, le=1e7)] = 10.0
    #: Resource types by name, in the order used everywhere: the smallest unit of each, or a table.
    resources: Annotated[dict[str, ResourceConfig], Field(min_length=1, max_length=MAX_RESOURCES)] = {
        "cpu": ResourceConfig(unit=1.0),
        "gpu": ResourceConfig(unit=1.0),
    }
    #: The edge clusters, numbered from 0 in this order.
    clusters: Annotated[tuple[ClusterConfig, ...], Field(min_length=1, max_length=MAX_CLUSTERS)]
    #: The kinds of task.
    task_types: Annotated[tuple[TaskTypeConfig, ...], Field(min_length=1, max_length=MAX_TYPES)]
    #: When tasks arrive.
    arrivals: ArrivalsConfig = ArrivalsConfig()
    #: Which clusters a generated task may run on.
    eligibility: EligibilityConfig = EligibilityConfig()
    #: Randomness of progress.
    noise: NoiseConfig = NoiseConfig()
    #: Share of a slot's gain lost when a running task's allocation changes.
    switching_cost: Annotated[float, Field(ge=0.0)] = 0.0
    #: Whether running tasks report their progress to schedulers.
    reports_progress: bool = True
    #: What schedulers know about speed profiles.
    knowledge: KnowledgeConfig = KnowledgeConfig()
    #: Clusters that are down for a while.
    outages: Annotated[tuple[OutageConfig, ...], Field(max_length=MAX_OUTAGES)] = ()
    #: What other people use of the clusters, who are not scheduled here.
    others: Annotated[tuple[OthersConfig, ...], Field(max_length=MAX_CLUSTERS)] = ()
    #: Data sets that tasks need before they run.
    data: Annotated[tuple[DataConfig, ...], Field(max_length=MAX_DATA)] = ()
    #: Links over which data sets are brought.
    links: LinksConfig = LinksConfig()
    #: Directory that file names in the scenario are relative to; set on loading.
    directory: str = "."
    #: Name of the scenario in messages, usually its file; set on loading.
    source: str = "scenario"

    @model_validator(mode="after")
    def _names_are_unique(self) -> Scenario:
        named = {"task_types": [t.name for t in self.task_types], "clusters": [c.name for c in self.clusters]}
        named["data"] = [d.name for d in self.data]
        for what, names in named.items():
            if twice := [name for name, times in Counter(names).items() if times > 1]:
                raise ValueError(f"{what}: the name {sorted(twice)[0]!r} appears twice")
        return self

    @model_validator(mode="after")
    def _nodes_have_known_resources(self) -> Scenario:
        taken = sorted(NodeConfig.model_fields.keys() & self.resources.keys())
        if taken and any(cluster.nodes for cluster in self.clusters):
            raise ValueError(f"resources: {taken[0]!r} is a key of nodes; give the resource another name")
        return self

    @model_validator(mode="after")
    def _size_is_bounded(self) -> Scenario:
        clusters = sum(cluster.pools for cluster in self.clusters)
        if any(kind.spans for kind in self.task_types):  # a span for every kind of node
            clusters += sum(c.count * len({node.kind or c.kind for node in c.nodes}) for c in self.clusters)
        if clusters > MAX_CLUSTERS:
            raise ValueError(
                f"clusters: the counts of clusters and nodes make {clusters:,}, at most {MAX_CLUSTERS:,} are possible"
            )
        if self.tasks is not None and self.tasks * clusters > MAX_PAIRS:
            raise ValueError(
                f"tasks = {self.tasks:,} on {clusters:,} clusters make {self.tasks * clusters:,} pairs of a task and a "
                f"cluster, at most {MAX_PAIRS:,} are possible; lower tasks or the counts of clusters"
            )
        return self

    @model_validator(mode="after")
    def _known_types_exist(self) -> Scenario:
        names = [t.name for t in self.task_types]
        for name in self.knowledge.types:
            if name not in names:
                raise ValueError(f"knowledge.types: {UnknownNameError('task type', name, names)}")
        return self

    @model_validator(mode="after")
    def _data_sets_exist(self) -> Scenario:
        names = [one.name for one in self.data]
        for kind in self.task_types:
            for name in kind.data:
                if name not in names:
                    raise ValueError(f"task_types.{kind.name}.data: {UnknownNameError('data set', name, names)}")
        places = sum(cluster.count for cluster in self.clusters)
        if self.data and places > MAX_PLACES:
            raise ValueError(
                f"data: {places:,} clusters are too many for data sets, at most {MAX_PLACES:,} are possible"
            )
        if not self.data and self.links != LinksConfig():
            raise ValueError("links: there are no data sets to bring over them; add some, or remove links")
        return self

    @model_validator(mode="after")
    def _outages_are_apart(self) -> Scenario:
        ordered = sorted(self.outages, key=lambda o: (o.cluster, o.start))
        for first, second in pairwise(ordered):
            # An outage that begins as another ends would bring the cluster back in between.
            if first.cluster == second.cluster and second.start <= first.end:
                raise ValueError(
                    f"outages: cluster {first.cluster} is away in {first.start}..{first.end} and in "
                    f"{second.start}..{second.end}; merge the two"
                )
        return self

    def resolved(self) -> dict[str, Any]:
        """The whole configuration as plain data, without the place it was loaded from."""
        # As for clusters: what is new and not used is left out.
        unused = {name for name in ("others", "data") if not getattr(self, name)}
        unused |= set() if self.data else {"links"}
        return self.model_dump(mode="json", exclude=set(_NOT_KEYS) | unused)

    def written(self) -> dict[str, Any]:
        """The configuration as a file would state it: values at their default are left out."""
        return self.model_dump(mode="json", exclude=set(_NOT_KEYS), exclude_defaults=True)


def scenario_names() -> list[str]:
    """Names of the scenarios that ship with the package."""
    folder = package_files.files("tapfinger") / "scenarios"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def read_toml(name: str | Path) -> tuple[dict[str, Any], str, str]:
    """Plain data of a shipped scenario or a TOML file; its name in messages; the directory of its files."""
    if isinstance(name, Path) or name.endswith(".toml") or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no scenario file {name}; give a TOML file, or {', '.join(scenario_names())}")
        text, source, directory = _read(path), str(path), str(path.parent.resolve())
    elif name in scenario_names():
        text = (package_files.files("tapfinger") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
        source, directory = f"scenario {name}", "."
    else:
        raise UnknownNameError("scenario", name, scenario_names())
    try:
        return tomllib.loads(text), source, directory
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and tables in tables in tables
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def load_scenario(name: str | Path, overrides: Iterable[str] = ()) -> Scenario:
    """Load a scenario by its shipped name or from a TOML file, and apply ``key=value`` overrides."""
    data, source, directory = read_toml(name)
    for override in overrides:
        if override.startswith("resources."):  # adds a resource to the default ones
            usual: dict[str, ResourceConfig] = Scenario.model_fields["resources"].default
            data.setdefault("resources", {name: {"unit": one.unit} for name, one in usual.items()})
        apply_override(data, override)
    return parse_scenario(data, source, directory)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a text file in UTF-8: {error}") from None


def parse_scenario(data: dict[str, Any], source: str = "scenario", directory: str = ".") -> Scenario:
    """Plain data -> Scenario, with errors that name the source, the key and the value."""
    for key, meaning in _NOT_KEYS.items():
        if key in data:
            raise ConfigError(f"{source}: unknown key {key!r}. It is {meaning}; remove it")
    try:
        return Scenario.model_validate({**data, "directory": directory, "source": source})
    except ValidationError as error:
        found = error.errors()
        inner = {item["loc"][:depth] for item in found for depth in range(len(item["loc"]))}
        # A fault inside an entry makes pydantic complain about the list as well; the inner fault is enough.
        found = [item for item in found if item["loc"] not in inner or not item["loc"]]
        models = _Strict.__subclasses__()
        faults = [f"{source}: {explain(item, models, _NOT_KEYS)}" for item in found]
        # Once per table, however many faults it has.
        advice = dict.fromkeys(switching(item, models, _NOT_KEYS) for item in found)
        raise ConfigError("\n".join([*faults, *filter(None, advice)])) from None
