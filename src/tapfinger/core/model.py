"""The nouns: resources, speed profiles, task types, tasks and clusters. All immutable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import le
from typing import Literal

from tapfinger.errors import ConfigError

#: Progress at or above this counts as done. Ten gains of 0.1 sum to less than 1 in floating point,
#: and a task of ten slots must take ten.
DONE = 1.0 - 1e-9

#: A profile that needs more slots than this at some allocation is treated as a mistake.
MAX_SLOTS = 1_000_000

#: Maximum number of cells of a profile table. To stay below it, lower the maximum of resources that do not affect the
#: speed.
MAX_CELLS = 300_000


class Resources(tuple[int, ...]):
    """Amounts of each resource type, counted in smallest units (x, b, C and B of the paper).

    The scenario's resource names define the meaning of each position.
    """

    __slots__ = ()

    def fits(self, within: tuple[int, ...]) -> bool:
        """Whether every amount is at most the one in ``within``."""
        return all(map(le, self, within))  # the hottest line of a run: a loop takes twice as long

    def __add__(self, other: tuple[int, ...]) -> Resources:  # type: ignore[override]
        """Amount by amount, not tuple concatenation."""
        return Resources([a + b for a, b in zip(self, other, strict=True)])

    def __sub__(self, other: tuple[int, ...]) -> Resources:
        """Amount by amount; may go negative, which ``EdgeState.validate`` would report."""
        return Resources([a - b for a, b in zip(self, other, strict=True)])

    def at_most(self, other: tuple[int, ...]) -> Resources:
        """The smaller of the two, amount by amount."""
        return Resources([min(a, b) for a, b in zip(self, other, strict=True)])

    @property
    def none(self) -> bool:
        """Whether all amounts are zero."""
        return not any(self)

    def copies_of(self, part: tuple[int, ...]) -> int:
        """How many times ``part`` fits into this (Pr(n) of the paper counts copies of the minimum)."""
        return min((a // b for a, b in zip(self, part, strict=True) if b > 0), default=0)


@dataclass(frozen=True, slots=True)
class ResourceRole:
    """What a resource is on a real machine, and what holds a task to its amount."""

    #: device: whole devices with ids, each for one task. share: parts of devices with ids, as small as the resource's
    #: unit. divisible: an amount without ids.
    lease: Literal["device", "share", "divisible"] = "divisible"
    #: cores: the task is pinned to its cores, and its share of processor time is limited. visible: a variable names
    #: the leased ids to the task. memory: its memory is limited, in GiB. none: the amount is only counted.
    enforced: Literal["cores", "visible", "memory", "none"] = "none"
    #: Environment variable with the leased ids, where ``enforced`` is visible.
    variable: str = "CUDA_VISIBLE_DEVICES"


#: Default roles by resource name, for declarations without a role. Resources with any other name are only counted.
USUAL_ROLES = {
    "cpu": ResourceRole("device", "cores"),
    "gpu": ResourceRole("device", "visible"),
    "memory": ResourceRole("divisible", "memory"),
}


@dataclass(frozen=True, slots=True)
class ResourceTypes:
    """The named resource types of a scenario, the smallest unit of each (delta_r), and their roles."""

    #: Names in the order every ``Resources`` uses.
    names: tuple[str, ...] = ("cpu", "gpu")
    #: Natural quantity of one unit, for example 4 for memory handed out in 4 GiB steps.
    units: tuple[float, ...] = (1.0, 1.0)
    #: Role of each resource; if left out, the default for its name.
    roles: tuple[ResourceRole, ...] = ()

    def __post_init__(self) -> None:
        """Fill in default roles, and refuse roles that could not be enforced."""
        if not self.roles:
            object.__setattr__(self, "roles", tuple(USUAL_ROLES.get(name, ResourceRole()) for name in self.names))
        means: dict[str, str] = {}
        for name, unit, role in zip(self.names, self.units, self.roles, strict=True):
            how = role.variable if role.enforced == "visible" else role.enforced
            if role.enforced in ("cores", "visible") and role.lease == "divisible":
                raise ConfigError(
                    f"resources.{name}: enforced = {role.enforced!r} needs ids, and role 'divisible' has none; set "
                    "role to 'device' or 'share', or enforced to 'none'"
                )
            if role.lease == "share" and (role.enforced == "cores" or abs(1.0 / unit - round(1.0 / unit)) > 1e-9):
                raise ConfigError(
                    f"resources.{name}: role 'share' needs a unit of which a whole number makes one device, such as "
                    f"0.25, got {unit:g}; and cores cannot be shared"
                )
            if how != "none" and how in means:
                raise ConfigError(
                    f"resources.{name} and resources.{means[how]} are both enforced by {how}; only one can be"
                    + ("; give one of them another variable" if role.enforced == "visible" else "")
                )
            means[how] = name

    def enforced_by(self, means: str) -> str:
        """Name of the resource that is enforced in this way; empty if there is none."""
        found = (name for name, role in zip(self.names, self.roles, strict=True) if role.enforced == means)
        return next(found, "")

    @property
    def accelerator(self) -> int:
        """Position of the resource that speeds tasks up most: the first enforced by visible ids, or else the last."""
        name = self.enforced_by("visible")
        return self.names.index(name) if name else len(self.names) - 1

    @property
    def processor(self) -> int:
        """Position of the resource that feeds the accelerator: the cores, or else the first other one, or 0."""
        if name := self.enforced_by("cores"):
            return self.names.index(name)
        return next((r for r in range(len(self.names)) if r != self.accelerator), 0)

    def parse(self, amounts: Mapping[str, float], where: str) -> Resources:
        """Natural quantities by name -> counts of units; every name must be given, and no others."""
        unknown = sorted(set(amounts) - set(self.names))
        missing = [name for name in self.names if name not in amounts]
        if unknown or missing:
            faults = [f"unknown: {', '.join(unknown)} (remove it, or add it to resources)"] if unknown else []
            faults += [f"missing: {', '.join(missing)} (give an amount, 0 for none)"] if missing else []
            raise ConfigError(f"{where}: resources are {', '.join(self.names)}; {'; '.join(faults)}")
        counts = []
        for name, unit in zip(self.names, self.units, strict=True):
            count = amounts[name] / unit
            if not math.isfinite(count) or count < 0 or abs(count - round(count)) > 1e-9:
                raise ConfigError(
                    f"{where}: {name} = {amounts[name]:g} must be a multiple of its smallest unit {unit:g}, "
                    "zero or more"
                )
            counts.append(round(count))
        return Resources(counts)

    def natural(self, amounts: Resources) -> dict[str, float]:
        """Counts of units -> natural quantities by name, for people to read."""
        return {n: a * u for n, u, a in zip(self.names, self.units, amounts, strict=True)}

    def describe(self, amounts: Resources) -> str:
        """For error messages: ``16 cpu, 8 gpu``."""
        return ", ".join(f"{value:g} {name}" for name, value in self.natural(amounts).items())


@dataclass(frozen=True)
class SpeedProfile:
    """How fast a task type progresses under each allocation; never assumed monotone or concave.

    Progress runs from 0 to 1. One slot at allocation x adds ``rate(x) * shape(progress)`` with
    ``shape(p) = sqrt(shape_offset - p)``, or 1 where there is no offset.
    """

    #: Smallest allocation of the table.
    minimum: Resources
    #: Largest allocation of the table.
    maximum: Resources
    #: Rate per slot for every allocation of the box minimum..maximum, last resource fastest.
    rates: tuple[float, ...]
    #: The paper's sensitive tasks slow down as they progress: sqrt(1.2 - progress). None: constant speed.
    shape_offset: float | None = None
    #: How uncertain each rate is: standard deviation of its logarithm, in the order of ``rates``. None: certain.
    doubt: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse tables of the wrong size, and rates at which a task would never end."""
        cells = math.prod(self.extent)
        for what, table in (("cells", self.rates), ("doubts", self.doubt)):
            if table is not None and len(table) != cells:
                box = f"{tuple(self.minimum)} to {tuple(self.maximum)}"
                raise ConfigError(f"a profile from {box} has {cells} {what}, got {len(table)}")
        worst = min(self.rates)
        # The sum finds any NaN; min and max overlook one that is not the first.
        if not math.isfinite(sum(self.rates)) or not worst > 1.0 / MAX_SLOTS:
            raise ConfigError(
                f"every rate of a profile must be finite and above {1 / MAX_SLOTS:g}; the smallest is {worst:g}"
            )
        if self.doubt is not None and not (math.isfinite(sum(self.doubt)) and min(self.doubt) >= 0.0):
            raise ConfigError(
                f"every doubt of a profile must be finite, zero or more; they are from {min(self.doubt):g} to "
                f"{max(self.doubt):g}"
            )
        if self.shape_offset is not None and not self.shape_offset > 1.0:
            raise ConfigError(f"shape offset {self.shape_offset} must be above 1, or the task would never end")

    @cached_property
    def extent(self) -> tuple[int, ...]:
        """Number of allocations per resource."""
        return tuple(hi - lo + 1 for lo, hi in zip(self.minimum, self.maximum, strict=True))

    def index(self, allocation: tuple[int, ...]) -> int:
        """Position of an allocation in ``rates``."""
        position = 0
        for amount, low, extent in zip(allocation, self.minimum, self.extent, strict=True):
            position = position * extent + amount - low
        return position

    def allocations(self) -> Iterator[Resources]:
        """All allocations of the table, in the order of ``rates``."""
        ranges = [range(lo, hi + 1) for lo, hi in zip(self.minimum, self.maximum, strict=True)]
        return map(Resources, product(*ranges))

    def narrowed(self, minimum: Resources, maximum: Resources) -> SpeedProfile:
        """The same rates and doubts over a smaller box of allocations."""
        outer = product(*(range(lo, hi + 1) for lo, hi in zip(minimum[:-1], maximum[:-1], strict=True)))
        starts = [self.index((*amounts, minimum[-1])) for amounts in outer]
        length = maximum[-1] - minimum[-1] + 1

        def cut(table: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(value for start in starts for value in table[start : start + length])

        doubt = None if self.doubt is None else cut(self.doubt)
        return SpeedProfile(minimum, maximum, cut(self.rates), self.shape_offset, doubt)

    def rate(self, allocation: tuple[int, ...]) -> float:
        """Rate per slot at this allocation."""
        return self.rates[self.index(allocation)]

    def shape(self, progress: float) -> float:
        """Factor on the rate at this progress."""
        return 1.0 if self.shape_offset is None else math.sqrt(self.shape_offset - progress)

    def gain(self, allocation: tuple[int, ...], progress: float) -> float:
        """Noise-free progress made in one slot."""
        return self.rate(allocation) * self.shape(progress)

    def slots(self, allocation: tuple[int, ...], progress: float = 0.0) -> int:
        """Noise-free whole slots from this progress to the end (at least 1)."""
        rate = self.rate(allocation)
        if self.shape_offset is None:
            return max(1, math.ceil((DONE - progress) / rate))
        count = 0
        while progress < DONE or count == 0:
            progress += rate * math.sqrt(max(0.0, self.shape_offset - progress))
            count += 1
        return count


@dataclass(frozen=True)
class TaskType:
    """A kind of ML task: its minimum, its maximum and its speed."""

    name: str
    #: b_j: an allocation below it is illegal.
    minimum: Resources
    #: Per-task maximum: an allocation above it is illegal.
    maximum: Resources
    #: Speed over the box minimum..maximum.
    profile: SpeedProfile
    #: Relative frequency among generated tasks.
    weight: float = 1.0
    #: Name of the configured type that this one narrows, see ``narrowed``; None for a configured type.
    base: str | None = None
    #: Kind of hardware that ``profile`` is about; empty on sites where all clusters are alike.
    hardware: str = ""
    #: Its speed on every kind of hardware, by name; empty on sites where all clusters are alike.
    profiles: tuple[tuple[str, SpeedProfile], ...] = ()
    #: Data sets that a task needs before it runs, by their number in ``core.staging.DataLayout``.
    data: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an empty or inconsistent box."""
        if not self.minimum.fits(self.maximum):
            raise ConfigError(f"task type {self.name!r}: minimum {self.minimum} exceeds maximum {self.maximum}")
        if self.minimum.none:
            raise ConfigError(f"task type {self.name!r}: minimum must ask for something")
        for profile in (self.profile, *(profile for _, profile in self.profiles)):
            if (profile.minimum, profile.maximum) != (self.minimum, self.maximum):
                raise ConfigError(f"task type {self.name!r}: its profile must cover exactly minimum..maximum")

    @property
    def family(self) -> str:
        """Name of the configured type: its own, or that of the type it narrows."""
        return self.name if self.base is None else self.base

    def narrowed(self, minimum: Resources, maximum: Resources) -> TaskType:
        """The same type within tighter bounds: the type that schedulers see for a task with bounds of its own."""
        name = narrowed_name(self.family, minimum, maximum)
        profile = self.profile.narrowed(minimum, maximum)
        profiles = tuple((hardware, each.narrowed(minimum, maximum)) for hardware, each in self.profiles)
        return replace(
            self, name=name, minimum=minimum, maximum=maximum, profile=profile, base=self.family, profiles=profiles
        )

    def on(self, hardware: str) -> TaskType:
        """The same type with its speed on this kind of hardware as ``profile``."""
        return self if hardware == self.hardware else self._elsewhere[hardware]

    def with_profiles(self, made: Callable[[SpeedProfile], SpeedProfile]) -> TaskType:
        """The same type with another profile made from each of its profiles."""
        if not self.profiles:
            return replace(self, profile=made(self.profile))
        profiles = tuple((hardware, made(profile)) for hardware, profile in self.profiles)
        return replace(self, profile=dict(profiles)[self.hardware], profiles=profiles)

    @cached_property
    def _elsewhere(self) -> dict[str, TaskType]:
        made = {name: replace(self, profile=profile, hardware=name) for name, profile in self.profiles}
        for one in made.values():
            one.__dict__["_elsewhere"] = made  # each is made once, so that comparisons are quick
        return made


def narrowed_name(family: str, minimum: Resources, maximum: Resources) -> str:
    """Name of the type that ``TaskType.narrowed`` makes, without making it."""
    return f"{family}[{','.join(map(str, minimum))}:{','.join(map(str, maximum))}]"


@dataclass(frozen=True, slots=True)
class Task:
    """One task: an instance of a type that may run on its eligible clusters (D_j)."""

    id: int
    type: TaskType
    #: Slot of arrival; the task can start in that same slot.
    arrival: int
    #: Indices of clusters, ascending.
    eligible: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A pool of resources, in which an allocation must fit: an edge cluster, one node of it, or a span of its nodes."""

    name: str
    #: Its total resources (C).
    capacity: Resources
    #: Name of the cluster that it is a node or a span of; empty for a whole cluster.
    part_of: str = ""
    #: Kind of its hardware, by which task types differ in speed; empty on sites where all clusters are alike.
    hardware: str = ""
    #: Indices of the nodes of a span (``core.spans``), whose resources it shares; empty for all other clusters.
    nodes: tuple[int, ...] = ()

    @property
    def whole(self) -> str:
        """Name of the whole cluster: its own, or that of the cluster that it is a node or a span of."""
        return self.part_of or self.name


@dataclass(frozen=True, slots=True)
class Noise:
    """Randomness of progress as data: a pure function of the task's key and its number of slots run.

    The key is drawn with the workload, so every scheduler faces the same noise.
    """

    #: ``none``, ``additive`` (gain + u, never below 0) or ``relative`` (gain * (1 + u)).
    kind: str = "none"
    #: u is uniform on [-amplitude, amplitude].
    amplitude: float = 0.0

    def apply(self, gain: float, key: int, slot_of_task: int) -> float:
        """Actual gain in the task's ``slot_of_task``-th running slot."""
        if self.kind == "none":
            return gain
        u = self.amplitude * (2.0 * unit_uniform(key, slot_of_task) - 1.0)
        if self.kind == "additive":
            return max(0.0, gain + u)
        return gain * (1.0 + u)


_MASK = (1 << 64) - 1


def unit_uniform(key: int, counter: int) -> float:
    """A number in [0, 1) from a 64-bit key and a counter (splitmix64, Steele et al. 2014)."""
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


NO_NOISE: Noise = Noise()
