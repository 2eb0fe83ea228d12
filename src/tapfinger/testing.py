"""Conformance kit for your own test suite: does a scheduler, a workload or a backend keep its contract?

    from tapfinger.testing import check_scheduler
    def test_mine():
        check_scheduler(MyScheduler)

A failed check raises CheckFailed, which names the world and the slot and says what to do.
"""

from __future__ import annotations

import copy
import math
import random  # noqa: TID251 - only to see that nobody touches its global state
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tapfinger.config import Scenario, load_scenario, parse_scenario
from tapfinger.core.contract import Decision, Scheduler, SchedulerContext, Snapshot
from tapfinger.core.events import Event
from tapfinger.core.feasibility import can_start, check_eligible
from tapfinger.core.model import Task
from tapfinger.core.session import Session
from tapfinger.core.state import eligible_ids
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.errors import ConfigError, InvalidDecision, TapfingerError
from tapfinger.live.backends.base import Backend
from tapfinger.live.backends.check import SOON, faults
from tapfinger.records import encode_event
from tapfinger.sim.run import informed, new_session
from tapfinger.workloads.base import Arrivals, WorkloadContext
from tapfinger.workloads.world import World, build_world, draw_workload

#: Slots in a row that a task may wait while it could start on an empty cluster; beyond this it would wait forever.
PATIENCE_SLOTS = 300

#: Turns in one slot that may start nothing (they may resize); beyond this a round never ends.
IDLE_TURNS = 1_000


class CheckFailed(AssertionError):  # noqa: N818 - named for what it is, as the errors of the package
    """A scheduler, workload or backend breaks its contract."""


# ------------------------------------------------------------------ tiny worlds


def tiny_scenarios() -> list[Scenario]:
    """The worlds that ``check_scheduler`` plays: small, each with something that a scheduler may get wrong."""
    steady = _type("steady", {"cpu": 2, "gpu": 1}, {"cpu": 4, "gpu": 4}, {"kind": "constant", "slots": 3})
    curve = {"kind": "tanh", "resource": "gpu", "scale": 8, "shape_offset": 1.2}
    growing = _type("growing", {"cpu": 1, "gpu": 1}, {"cpu": 4, "gpu": 8}, curve)
    # More is often slower here.
    crooked = _type("image-classification", {"cpu": 2, "gpu": 1}, {"cpu": 8, "gpu": 8}, {"kind": "testbed"})
    memory = {"kind": "amdahl", "seconds": 60, "parallel": {"gpu": 0.5, "memory": 0.3}}
    large = _type("large", {"cpu": 1, "gpu": 1, "memory": 8}, {"cpu": 2, "gpu": 4, "memory": 16}, memory)
    only_cpu = _type("simple", {"cpu": 1}, {"cpu": 3}, {"kind": "amdahl", "seconds": 50, "parallel": {"cpu": 0.9}})
    three = [(8, 8), (8, 8), (8, 8)]
    noise = {"kind": "additive", "amplitude": 0.1}
    return [
        _scenario(
            "one cluster, no choice of size", "single", [(4, 4)], [_type("fixed", {"cpu": 2, "gpu": 2}, {}, curve)]
        ),
        _scenario("heterogeneous, one cluster too small", "multi", [(4, 4), (16, 8), (1, 0)], [steady, growing]),
        _scenario("more is slower", "multi", three, [crooked, steady]),
        _scenario(
            "three resources, memory in units of 4",
            "multi",
            [(4, 4, 32), (8, 8, 64)],
            [large],
            resources={"cpu": 1, "gpu": 1, "memory": 4},
        ),
        _scenario("one resource", "multi", [(4,), (8,)], [only_cpu], resources={"cpu": 1}),
        _scenario("single-task mode with noise", "single", three, [steady, growing], noise=noise, switching_cost=0.5),
        _scenario("no progress reports", "multi", three, [growing], reports_progress=False, switching_cost=1.5),
        _scenario("outage", "multi", [(8, 8), (8, 8)], [growing], outages=[{"cluster": 0, "start": 3, "end": 12}]),
        _scenario(
            "hardware of three kinds", "multi", three, [_on(growing), _on(steady)], kinds=("old", "new", "other")
        ),
        _scenario("nodes", "multi", [[(4, 2), (8, 3), (2, 0)], [(4, 4), (4, 4)]], [steady, growing]),
        _scenario(
            "tasks that span nodes",
            "multi",
            [[(4, 2), (8, 3), (2, 0)], [(4, 4), (4, 4)], (8, 4)],
            [steady, {**growing, "name": "spanning", "spans": True}],
        ),
        _scenario(
            "tasks that span nodes, single-task mode",
            "single",
            [[(4, 2), (4, 2), (4, 2)]],
            [steady, {**growing, "minimum": {"cpu": 2, "gpu": 3}, "name": "wide", "spans": True}],
            others=[{"kind": "bursty", "busy": 0.5, "busy_slots": 8, "calm_slots": 12}],
        ),
        _scenario(
            "other people",
            "multi",
            [(4, 4), [(4, 2), (8, 4)]],
            [steady, growing],
            others=[{"kind": "bursty", "busy": 1.0, "busy_slots": 8, "calm_slots": 12}],
        ),
        _scenario(
            "data that must be brought",
            "multi",
            [(8, 4), [(4, 2), (4, 2)]],
            [{**growing, "data": ["near", "far"]}, steady],
            data=[{"name": "near", "gb": 2, "at": ["c1"]}, {"name": "far", "gb": 1}],
            links={"mbps": 300},
        ),
        _scenario(
            "memory that nobody knows",
            "multi",
            [(4, 4, 32), (8, 8, 64)],
            [{**large, "needs": {"memory": 16}}],
            resources={"cpu": 1, "gpu": 1, "memory": 4},
        ),
        _scenario("overload", "multi", [(8, 8), (8, 8)], [steady, growing], arrivals={"kind": "poisson", "rate": 12.0}),
        _scenario("profiles told wrong", "multi", three, [growing, steady], knowledge={"kind": "wrong", "factor": 0.2}),
        _scenario(
            "quiet, empty queues", "multi", three, [growing], tasks=3, arrivals={"kind": "poisson", "rate": 0.05}
        ),
    ]


def _type(name: str, minimum: dict[str, float], maximum: dict[str, float], speed: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "minimum": minimum, "maximum": maximum, "speed": speed}


def _on(task_type: dict[str, Any]) -> dict[str, Any]:
    """The type with a speed on each kind of hardware."""
    own = {"kind": "constant", "slots": 2}
    return {**task_type, "on": {"old": 0.5, "new": {"factor": 4, "of": "old"}, "other": own}}


def _scenario(
    name: str,
    mode: str,
    capacities: Sequence[tuple[int, ...] | list[tuple[int, ...]]],
    types: list[dict[str, Any]],
    **more: Any,
) -> Scenario:
    """``capacities``: amounts of each cluster, or a list with those of each of its nodes."""
    resources = more.pop("resources", {"cpu": 1, "gpu": 1})

    def named(amounts: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(resources, amounts, strict=True))

    clusters = [
        {"name": f"c{i}"}
        | ({"nodes": [named(node) for node in pool]} if isinstance(pool, list) else {"capacity": named(pool)})
        for i, pool in enumerate(capacities)
    ]
    for cluster, kind in zip(clusters, more.pop("kinds", ()), strict=False):
        cluster["kind"] = kind
    data = {"tasks": 24, "arrivals": {"kind": "poisson", "rate": 1.5}, **more}
    return parse_scenario(
        {"name": name, "mode": mode, "resources": resources, "clusters": clusters, "task_types": types, **data}
    )


# ------------------------------------------------------------------- schedulers


def check_scheduler(
    scheduler: Scheduler | Callable[[], Scheduler],
    scenarios: Iterable[str | Scenario] | None = None,
    seed: int = 0,
) -> None:
    """Play a scheduler on tiny worlds and check everything the contract asks of it.

    Pass its class, any callable without arguments that makes one, or an instance (which is copied
    for each run). ``scenarios``: other worlds to play, as names, files or Scenario objects.

    Checked: it declares ``one_shot``; its decisions are legal; it changes neither the snapshot nor
    the context; the same seed gives the same event log, on a new instance and after ``reset``;
    it uses no global randomness; rounds end and no task waits forever next to an empty cluster.
    """
    make = _factory(scheduler)
    _check_shape(make())
    given = tiny_scenarios() if scenarios is None else scenarios
    worlds = [build_world(load_scenario(s) if isinstance(s, str) else s) for s in given]
    used = make()
    for world in worlds:
        first = _play(world, make(), seed)
        _compare(world, first, _play(world, make(), seed), "two new instances", _NOT_DETERMINISTIC)
        # The used instance has played other worlds first, and then this same one.
        _compare(world, first, _play(world, used, seed), "a new instance and a used one", _NOT_RESET)
        _compare(world, first, _play(world, used, seed), "a new instance and a used one", _NOT_RESET)


_NOT_DETERMINISTIC = "draw all randomness from numpy.random.default_rng(context.seed), made in reset()"
_NOT_RESET = "reset() must forget everything of the run before"


def _factory(scheduler: Any) -> Callable[[], Scheduler]:
    if isinstance(scheduler, type) or not hasattr(scheduler, "decide"):
        if not callable(scheduler):
            raise CheckFailed(f"{scheduler!r} is neither a scheduler nor a callable that makes one")
        make: Callable[[], Scheduler] = scheduler
        return make
    unused = copy.deepcopy(scheduler)
    return lambda: copy.deepcopy(unused)


def _check_shape(scheduler: Any) -> None:
    name = type(scheduler).__name__
    if not isinstance(getattr(scheduler, "one_shot", None), bool):
        raise CheckFailed(
            f"{name} must declare one_shot: True if decide() plans a whole slot, False if it is called turn after turn"
        )
    for method in ("reset", "decide"):
        if not callable(getattr(scheduler, method, None)):
            raise CheckFailed(f"{name} has no method {method}(); see tapfinger.core.contract.Scheduler")


def _play(world: World, scheduler: Scheduler, seed: int) -> list[Event]:
    """Play one guarded run and return its event log."""
    events: list[Event] = []
    workload = draw_workload(world, seed)
    session = new_session(world, workload, [events.append])
    guarded = _Guarded(scheduler, world.scenario.name)
    player = informed(world, guarded)
    longest = _longest_run(world, len(workload), int(workload.slot[-1]) if len(workload) else 0)
    waits = _Waits(guarded)
    with _global_randomness_untouched(guarded.where):
        player.reset(world.context(seed))
        while not session.done:
            guarded.new_slot(session.state.slot)
            try:
                session.play_round(player)
            except InvalidDecision as error:
                raise CheckFailed(f"{guarded.where}: illegal decision: {error}") from error
            waits.look(session)
            session.end_slot()
            if session.state.slot > longest:
                raise CheckFailed(
                    f"{guarded.where}: {session.state.tasks_in_system} tasks have not ended although one after "
                    f"the other at the slowest size would have taken {longest} slots"
                )
    return events


def _longest_run(world: World, tasks: int, last_arrival: int) -> int:
    """A generous bound: all tasks one after another at their slowest size, four times over."""
    # Additive noise can cancel all progress of a slot, but only by chance.
    profiles = [t.profile for t in world.task_types]
    slowest = max(p.slots(min(p.allocations(), key=p.rate)) for p in profiles)
    last_outage = max((outage.end for outage in world.outages), default=0)
    gb, links = sum(one.gb for one in world.scenario.data), world.scenario.links
    usual = links.mbps if links.kind == "fixed" else links.minimum_mbps
    least = min([usual, *(link.mbps for link in links.between)])
    tasks += sum(len(ladder.steps) for ladder in world.ladders.values()) * tasks  # attempts that run out of memory
    slowest += math.ceil(8000.0 * gb / least / world.scenario.slot_seconds)
    return last_arrival + last_outage + PATIENCE_SLOTS + math.ceil(4 * tasks * slowest * (1 + world.switching_cost))


class _Guarded(SchedulerWrapper):
    """A scheduler with every call checked."""

    def __init__(self, scheduler: Scheduler, scenario: str) -> None:
        super().__init__(scheduler)
        self._scenario = scenario
        self.name = type(scheduler).__name__
        self.where = f"{self.name} in world {scenario!r}"
        self._turns = 0

    def new_slot(self, slot: int) -> None:
        self.where = f"{self.name} in world {self._scenario!r}, slot {slot}"
        self._turns = 0

    def reset(self, context: SchedulerContext) -> None:
        before = _contents(context)
        self._call("reset", super().reset, context)
        if _contents(context) != before:
            raise CheckFailed(f"{self.where}: reset() changed the context; copy what you want to change")

    def learn(self, context: SchedulerContext) -> None:
        before = _contents(context)
        self._call("learn", super().learn, context)
        if _contents(context) != before:
            raise CheckFailed(f"{self.where}: learn() changed the context; copy what you want to change")

    def decide(self, snapshot: Snapshot) -> Decision:
        before = _contents(snapshot)
        decision = self._call("decide", super().decide, snapshot)
        if _contents(snapshot) != before:
            raise CheckFailed(
                f"{self.where}: decide() changed the snapshot; it is shared, copy what you want to change"
            )
        if not isinstance(decision, Decision):
            raise CheckFailed(f"{self.where}: decide() must return a Decision, got {decision!r}; nothing to do is VOID")
        self._turns = 0 if decision.placements else self._turns + 1
        if self._turns > IDLE_TURNS:
            raise CheckFailed(
                f"{self.where}: not void after {IDLE_TURNS} turns that started nothing; end the round with VOID, or "
                "declare one_shot = True"
            )
        if not snapshot.tasks_in_system and not decision.void:
            raise CheckFailed(f"{self.where}: decided {decision} although no task is in the system")
        return decision

    def _call(self, method: str, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except CheckFailed:
            raise
        except Exception as error:
            state = ""
            if isinstance(argument, Snapshot):
                waiting, up = len(argument.queue), sum(c.up for c in argument.clusters)
                state = f" ({waiting} tasks waiting, {up} of {len(argument.clusters)} clusters up)"
            raise CheckFailed(f"{self.where}: {method}() raised {type(error).__name__}: {error}{state}") from error


def _contents(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Everything inside frozen views, as tuples; equal before and after unless something was changed."""
    seen = {} if seen is None else seen  # task types are shared by many tasks
    if hasattr(value, "__dataclass_fields__"):
        if id(value) not in seen:
            seen[id(value)] = tuple(_contents(getattr(value, name), seen) for name in value.__dataclass_fields__)
        return seen[id(value)]
    if isinstance(value, tuple | list) and value and hasattr(value[0], "__dataclass_fields__"):
        return (type(value), *(_contents(item, seen) for item in value))
    return value


class _Waits:
    """Detects a task that is refused forever although a cluster is empty."""

    def __init__(self, guarded: _Guarded) -> None:
        self._guarded = guarded
        self._slots: dict[int, int] = {}

    def look(self, session: Session) -> None:
        snapshot = session.state.snapshot()
        empty = [c for c in snapshot.clusters if c.free == c.capacity]
        waited: dict[int, int] = {}
        for task in snapshot.queue:
            cluster = next((c for c in empty if can_start(task, c)), None)
            if cluster is None:
                continue
            waited[task.id] = self._slots.get(task.id, 0) + 1
            if waited[task.id] > PATIENCE_SLOTS:
                raise CheckFailed(
                    f"{self._guarded.where}: task {task.id} ({task.type.name}) has waited {PATIENCE_SLOTS} slots "
                    f"although its minimum {tuple(task.type.minimum)} fits cluster {cluster.index}, which is empty; "
                    "a scheduler that refuses a task must have a reason that ends"
                )
        self._slots = waited


def _compare(world: World, first: list[Event], second: list[Event], whose: str, remedy: str) -> None:
    if first == second:
        return
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    one, other = (encode_event(log[at]) if at < len(log) else "the end" for log in (first, second))
    raise CheckFailed(
        f"world {world.scenario.name!r}: {whose} differ with the same seed, first in event {at}: {one} against "
        f"{other}; {remedy}"
    )


@contextmanager
def _global_randomness_untouched(where: str) -> Iterator[None]:
    def state() -> tuple[Any, ...]:
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - looked at, not used
        return random.getstate(), legacy["state"]["pos"], legacy["state"]["key"].tobytes()

    before = state()
    yield
    if state() != before:
        raise CheckFailed(
            f"{where}: used the global random state (random.* or numpy.random.*), which no seed of a run controls; "
            "use a generator of your own: numpy.random.default_rng(seed)"
        )


# -------------------------------------------------------------------- workloads


def check_workload(
    process: Any, scenarios: Iterable[str | Scenario] | None = None, seeds: Iterable[int] = (0, 1, 2)
) -> None:
    """Draw from an arrival process and check that it keeps its contract.

    Pass an instance, its class, or a callable that makes one. ``scenarios``: worlds to draw for;
    a process that depends on certain clusters or task types needs its own.

    Checked: the same seed gives the same arrays, on a new instance and on a second call; arrivals are
    whole, ascending slots from 0 on, no more than requested; types exist; every task has an eligible
    cluster that holds its minimum; no global randomness.
    """
    make: Callable[[], Any] = (
        process if isinstance(process, type) or not hasattr(process, "arrivals") else lambda: process
    )
    given = tiny_scenarios()[:4] if scenarios is None else scenarios
    for scenario in [load_scenario(s) if isinstance(s, str) else s for s in given]:
        world = build_world(scenario)
        context = _workload_context(world)
        where = f"{type(make()).__name__} in world {scenario.name!r}"
        for seed in seeds:
            used = make()
            first = _draw(used, context, seed, f"{where}, seed {seed}")
            _check_arrivals(world, context, first, f"{where}, seed {seed}")
            for again in (used, make()):
                if not _same(first, _draw(again, context, seed, where)):
                    raise CheckFailed(
                        f"{where}: seed {seed} gives other arrivals the second time; draw from the given rng only, and "
                        "keep nothing between calls"
                    )


def _workload_context(world: World) -> WorkloadContext:
    return WorkloadContext(
        tasks=world.scenario.tasks,
        type_names=tuple(t.name for t in world.task_types),
        cluster_names=world.wholes,
        slot_seconds=world.scenario.slot_seconds,
        directory=world.scenario.directory,
    )


def _draw(process: Any, context: WorkloadContext, seed: int, where: str) -> Arrivals:
    with _global_randomness_untouched(where):
        try:
            drawn = process.arrivals(context, np.random.default_rng(seed))
        except TapfingerError:
            raise
        except Exception as error:
            raise CheckFailed(f"{where}: arrivals() raised {type(error).__name__}: {error}") from error
    if not isinstance(drawn, Arrivals):
        raise CheckFailed(f"{where}: arrivals() must return Arrivals, got {type(drawn).__name__}")
    return drawn


def _same(first: Arrivals, second: Arrivals) -> bool:
    compared = [f.name for f in fields(Arrivals) if f.compare]
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in compared)


def _check_arrivals(world: World, context: WorkloadContext, drawn: Arrivals, where: str) -> None:
    slot = np.asarray(drawn.slot)
    if slot.ndim != 1 or not np.issubdtype(slot.dtype, np.integer):
        raise CheckFailed(f"{where}: slot must be one row of integers, got shape {slot.shape} of {slot.dtype}")
    count = len(slot)
    if not count or (context.tasks is not None and count > context.tasks):
        raise CheckFailed(
            f"{where}: {count} tasks, {context.tasks} were asked for; give at least one and at most those"
        )
    if slot[0] < 0 or (np.diff(slot) < 0).any():
        bad = 0 if slot[0] < 0 else int(np.argmax(np.diff(slot) < 0)) + 1
        raise CheckFailed(f"{where}: slot[{bad}] = {slot[bad]}; slots begin at 0 and never go back, so sort them")
    types = drawn.type
    if types is not None:
        types = np.asarray(types)
        known = len(context.type_names)
        if types.shape != (count,) or not np.issubdtype(types.dtype, np.integer):
            raise CheckFailed(f"{where}: type must be {count} integers, got shape {types.shape} of {types.dtype}")
        if ((types < 0) | (types >= known)).any():
            bad = int(np.argmax((types < 0) | (types >= known)))
            raise CheckFailed(f"{where}: type[{bad}] = {types[bad]}; there are types 0..{known - 1}")
    if drawn.eligible is not None:
        _check_eligible(world, np.asarray(drawn.eligible), types, count, where)


def _check_eligible(world: World, eligible: Any, types: Any, count: int, where: str) -> None:
    wanted = (count, len(world.wholes))
    if eligible.shape != wanted or eligible.dtype != np.bool_:
        raise CheckFailed(
            f"{where}: eligible must be {wanted} booleans, got shape {eligible.shape} of {eligible.dtype}"
        )
    for i, row in enumerate(eligible[:, world.whole_of]):
        possible = range(len(world.task_types)) if types is None else (int(types[i]),)
        for kind in possible:
            task = Task(i, world.task_types[kind], 0, eligible_ids(row & world.open_to[kind]))
            try:
                check_eligible(task, world.clusters)
            except TapfingerError as error:
                raise CheckFailed(f"{where}: {error}") from error


# --------------------------------------------------------------------- backends


def check_backend(make: Callable[[], Backend], directory: Path, outlives: bool = True, patience: float = SOON) -> None:
    """Run short real tasks with a backend and check everything that the contract asks of it; takes seconds.

    ``make`` makes an instance, which is opened as an agent would; a second instance plays the agent after a restart.
    ``directory``: an empty one for the runs. ``outlives=False``: tasks end with the backend, as simulated ones do.
    ``patience``: seconds within which a short task must have started and ended.

    Checked: outcomes are true and do not change; stopping works, even twice or too late, and reaches the whole
    process tree; time limits; programs that do not exist; runs that were never started; output, environment
    and working directory; a new instance finds, polls and stops what an old one has started; tasks end with the
    agent's lease unless they are meant to be kept.
    """
    name = getattr(make, "__name__", "backend")
    try:
        for fault in faults(make, directory, outlives, patience):
            raise CheckFailed(f"{name}: {fault}")
    except (CheckFailed, ConfigError):
        raise
    except Exception as error:
        raise CheckFailed(
            f"{name} raised {type(error).__name__}: {error}; only start may raise LaunchFailed, and resize "
            "UnsupportedOperation"
        ) from error
