"""A whole site in one thread on a made-up clock, with everything going wrong: coordinator, agents, links, machines.

What is true (which process is alive where) is known to the simulation and to nobody else; the checker
holds it against what the coordinator has recorded.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from helpers import R, constant_type
from live.rules import Broken, check_needs, check_rests

from tapfinger.core.contract import Decision, Phase, Resize, SchedulerContext, Snapshot
from tapfinger.core.model import Cluster, ResourceTypes
from tapfinger.errors import AgentRefused, LaunchFailed, NotFound, NotLeading
from tapfinger.live.agent.machine import (
    Agent,
    AgentTick,
    Condition,
    ForgetRun,
    Found,
    HoldLease,
    HostFacts,
    Observed,
    Resized,
    ResizeRun,
    StartRun,
    StopRun,
)
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.fake import Fake, short_of
from tapfinger.live.coordinator.decisions import RoundQuestion
from tapfinger.live.coordinator.inputs import Cancel, Decided, Disconnected, Instructions, Leases, Submit, Tick
from tapfinger.live.coordinator.late_results import lost_in
from tapfinger.live.coordinator.machine import Coordinator, Predecessor
from tapfinger.live.coordinator.rounds import Rounds
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol.events import AttemptEnded, AttemptRefused, Granted, LiveEvent, RanShort
from tapfinger.live.protocol.messages import Launch, Orders, Outcome, Report, SizeOrder
from tapfinger.live.protocol.records import ENDED, TaskRecord, TaskSpec
from tapfinger.registry import create

LEASES = Leases(lease=6.0, grace=1.0, beat=2.0)
#: Losses in a row after which a task ends.
MAX_LOSSES = 4
#: Seconds that a coordinator leads after it has last reached its disk.
TERM = 2.0
STEP = 0.25
CAPACITIES = ((8, 4), (4, 4), (6, 2))


def make_site() -> Site:
    clusters = tuple(Cluster(f"c{n}", R(c)) for n, c in enumerate(CAPACITIES))
    types = [constant_type((1, 0), (4, 2), 3.0, "small"), constant_type((3, 1), (6, 4), 5.0, "large")]
    return Site(ResourceTypes(), clusters, {t.name: t for t in types}, slot_seconds=1.0)


class Restless:
    """A scheduler that gives running tasks another size all the time."""

    one_shot = True

    def __init__(self, name: str) -> None:
        self._starts = create("scheduler", name, {})

    def reset(self, context: SchedulerContext) -> None:
        self._starts.reset(context)

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self._starts.decide(snapshot)
        running = [task for cluster in snapshot.clusters for task in cluster.running if task.phase is Phase.RUNNING]
        sizes = {t.id: (t.type.minimum, t.type.maximum)[(snapshot.slot // 2 + t.id) % 2] for t in running}
        resizes = [Resize(t.id, sizes[t.id]) for t in running if sizes[t.id] != t.allocation]
        return replace(decision, resizes=tuple(resizes)) if resizes else decision


@dataclass
class Disk:
    """What the coordinator has saved."""

    records: dict[int, TaskRecord] = field(default_factory=dict)
    history: list[LiveEvent] = field(default_factory=list)
    epoch: int = 0
    #: What tasks have shown to need, by owner and type.
    needs: Any = ()
    #: What shows that it is an older copy, as the store keeps it.
    older: str | None = None
    #: Highest id that a later disk may have given out, where that is known.
    skipped: int = 0

    def save(self, instructions: Instructions) -> None:
        for record in instructions.records:
            before = self.records.get(record.id)
            if before is not None and before.phase in ENDED:
                raise Broken(f"task {record.id} had ended as {before.phase} and is recorded again")
            self.records[record.id] = record
        self.history += instructions.history
        self.epoch = instructions.epoch or self.epoch
        self.needs = self.needs if instructions.needs is None else instructions.needs
        if instructions.holding is not None:
            self.older = "" if instructions.holding else None


@dataclass(frozen=True)
class Asked:
    """A question that someone thinks about."""

    by: Coordinator
    question: RoundQuestion


class Host:
    """One cluster's machine: its processes and its disk outlive the agent."""

    def __init__(self, world: World, name: str, offset: float, agent_class: type[Agent]) -> None:
        self.world, self.name, self._offset = world, name, offset
        #: What it really has; the configuration may say more.
        self.capacity = CAPACITIES[int(name[1:])]
        self._agent_class = agent_class
        self.lease = 0.0
        self.incarnation = 0
        self.runs: dict[tuple[int, int], Run] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.backend = Fake(self.clock, world.script, lambda _run: self.lease, polite=0.5)
        self.agent: Agent | None = None

    def clock(self) -> float:
        return self.world.now + self._offset

    def boot(self) -> None:
        self.incarnation += 1
        if self.world.trouble and self.world.rng.random() < 0.3:
            whole = CAPACITIES[int(self.name[1:])]
            less = self.world.rng.random() < 0.6
            self.capacity = tuple(int(self.world.rng.integers(1, c + 1)) for c in whole) if less else whole
        found = [
            Found(i, r.launch.on_disconnect, self.backend.poll(r), self.sizes.get(i, 0), r.launch.allocation)
            for i, r in self.runs.items()
        ]
        self.agent = self._agent_class(
            self.name,
            f"agent-of-{self.name}",
            self.incarnation,
            self.clock(),
            LEASES.beat,
            found,
            self.lease,
            HostFacts({"cpu": float(self.capacity[0]), "gpu": float(self.capacity[1])}),
        )

    def crash(self) -> None:
        """Power is cut: processes are gone, the disk is not."""
        self.agent = None
        self.backend.crash()
        self.lease = 0.0

    def step(self) -> None:
        if self.agent is None:
            return
        ends = {i: end for i in self.agent.running if i in self.runs and (end := self.backend.poll(self.runs[i]))}
        self.obey(self.agent.handle(Observed(ends) if ends else AgentTick(), self.clock()))
        if self.agent is not None and self.world.shared:
            used = (int(self.world.now) // 7 + int(self.name[1:])) % 4  # not drawn, and as far as it has so many
            self.obey(self.agent.handle(Condition(math.inf, others={"cpu": used - 0.5 if used else 0.0}), self.clock()))

    def hear(self, orders: Orders) -> None:
        if self.agent is not None:
            self.obey(self.agent.handle(orders, self.clock()))

    def obey(self, instructions: list[Any]) -> None:
        for instruction in instructions:
            if self.agent is None:
                return  # it has died in the middle of it
            if isinstance(instruction, Report):
                self.world.send(instruction)
            elif isinstance(instruction, StartRun):
                self.start(instruction.launch)
            elif isinstance(instruction, StopRun):
                self.backend.stop(self.runs[instruction.id], instruction.at_once)
            elif isinstance(instruction, HoldLease):
                self.lease = instruction.until
            elif isinstance(instruction, ResizeRun):
                self.resize(instruction.size)
            elif isinstance(instruction, ForgetRun):
                self.runs.pop(instruction.id, None)
                self.sizes.pop(instruction.id, None)

    def resize(self, size: SizeOrder) -> None:
        assert self.agent is not None
        run = self.runs[size.id]
        if self.world.rng.random() < 0.9 and self.room(size.allocation, size.id):  # a backend may be unable to
            both = {n: max(a, run.launch.allocation[n]) for n, a in size.allocation.items()}
            self.runs[size.id] = replace(run, launch=replace(run.launch, allocation=both))  # written down first
            self.backend.resize(run, size.allocation, {})
            if self.world.trouble and self.world.rng.random() < 0.05:
                self.agent = None  # killed before it could write it down
                return
            self.runs[size.id] = replace(run, launch=replace(run.launch, allocation=dict(size.allocation)))
        self.sizes[size.id] = size.number
        told = Resized(size.id, size.number, self.runs[size.id].launch.allocation)
        self.obey(self.agent.handle(told, self.clock()))

    def room(self, allocation: Mapping[str, float], ident: tuple[int, int]) -> bool:
        """Whether an attempt of this size can be held beside all others, if this host has less than it should."""
        if self.capacity == CAPACITIES[int(self.name[1:])]:
            return True  # the coordinator must see to it, and is not to be saved by the agent
        used = R(map(int, allocation.values()))
        for run in self.backend.alive():
            if run.id != ident:
                used = used + R(map(int, run.launch.allocation.values()))
        return used.fits(self.capacity)

    def start(self, launch: Launch) -> None:
        assert self.agent is not None
        if "RAISES" in launch.env or not self.room(launch.allocation, launch.id):
            result = "failed" if "RAISES" in launch.env else "lost"
            self.world.truth[launch.id, launch.env["MARK"]] = 126
            outcome = Outcome(result, 126, "RuntimeError: it cannot be started")  # type: ignore[arg-type]
            self.obey(self.agent.handle(Observed({launch.id: outcome}), self.clock()))
            return
        run = Run(launch, Path("nowhere"))
        self.runs[launch.id] = run
        try:
            self.backend.start(run)
            self.world.started(self, launch)
        except LaunchFailed as error:
            del self.runs[launch.id]
            outcome = Outcome("failed", 127, str(error))
            self.world.truth[launch.id, launch.env["MARK"]] = 127
            self.obey(self.agent.handle(Observed({launch.id: outcome}), self.clock()))


class World:
    """The site, its troubles, and the truth."""

    def __init__(
        self,
        seed: int,
        coordinator: type[Coordinator] = Coordinator,
        agent: type[Agent] = Agent,
        replicas: bool = False,
        late: float = 0.1,
        older: bool = False,
        shared: bool = False,
    ) -> None:
        """``late``: share of messages that take very long. ``older``: older copies of the disk are put in its place.

        ``shared``: others use the clusters, too.
        """
        self.shared = shared
        #: By cluster, what others use there, as its agent has told the present coordinator.
        self.others: dict[str, tuple[int, ...]] = {}
        self.late = late
        self.older = older
        #: Copies of the disk, and until when a fresh one is left alone.
        self.copies: list[Disk] = []
        self.settled = 0.0
        #: By cluster, what its agent has told the present coordinator that it has; absent while it is not connected.
        self.told: dict[str, tuple[int, ...]] = {}
        #: Latest attempt of each task.
        self.attempts: dict[int, int] = {}
        self._marks = 0
        self.rng = np.random.default_rng(seed)
        #: Whether coordinators may be deposed by others without knowing it.
        self.replicas = replicas
        self.now = 0.0
        self._coordinator_class = coordinator
        self._post: list[tuple[float, int, Any]] = []
        self._posted = 0
        self.disk = Disk()
        self.acknowledged: set[int] = set()
        self.cancelled: set[int] = set()
        #: Exit code that each attempt has, or would have if nobody stopped it, by attempt and the task's own mark: an
        #: older disk may give out numbers again.
        self.truth: dict[tuple[tuple[int, int], str], int] = {}
        self.coordinator: Coordinator | None = None
        #: One that was cut off from the disk, or slept, while another took over; it does not know, and acts.
        self.deposed: Coordinator | None = None
        #: Whether that one only answers reports; one that watches the time soon wants to save something.
        self.dozes = False
        #: Until when a cluster's agent talks to the deposed one.
        self.misled: dict[str, float] = {}
        self.trouble = True
        self.cut: dict[str, float] = {}
        self.hosts = {
            f"c{n}": Host(self, f"c{n}", float(self.rng.uniform(0, 1000)), agent) for n in range(len(CAPACITIES))
        }
        self._boot()
        for host in self.hosts.values():
            host.boot()

    # ---------------------------------------------------------------- mechanics

    def script(self, launch: Launch) -> tuple[float, int]:
        if short_of(launch):
            self.truth[launch.id, launch.env["MARK"]] = -9
        return float(launch.env["FAKE_SECONDS"]), self.truth.setdefault(
            (launch.id, launch.env["MARK"]),
            int(self.rng.choice([0, 0, 0, 1, 127])) if "FLAKY" in launch.env else 0,
        )

    def _boot(self) -> None:
        if self.older:
            self.copies.append(deepcopy(self.disk))
        self.told = {}
        self.disk.epoch += 1
        live = [replace(r) for r in self.disk.records.values() if r.phase not in ENDED]
        site = make_site()
        scheduler = Restless(("min", "fifo")[self.disk.epoch % 2])
        longest = LEASES.lease + TERM if self.replicas else 0.0
        lost = lost_in(self.disk.history)
        next_id = max(self.disk.skipped, *self.disk.records, 0) + 1
        before = Predecessor(
            live, next_id=next_id, longest_lease=longest, lost=lost, older=self.disk.older, needs=self.disk.needs
        )
        rounds = Rounds(site, scheduler, int(self.now))
        self.coordinator = self._coordinator_class(site, rounds, LEASES, self.disk.epoch, self.now, before, MAX_LOSSES)

    def tell(self, stimulus: Any) -> bool:
        """Handle, save, send; the coordinator may die between any two of these. True: it was saved."""
        if self.coordinator is None:
            return False
        self.coordinator.leads_until = self.now + TERM  # it reaches the disk at least once in every step
        try:
            instructions = self.coordinator.handle(stimulus, self.now)
        except (AgentRefused, NotFound):
            return False
        dies = self.trouble and self.rng.random() < 0.004
        if dies and self.rng.random() < 0.5:
            self.coordinator = None
            return False
        self.disk.save(instructions)
        self.check_ended(instructions)
        self._follow(stimulus, instructions)
        self.check_grants(instructions)
        if dies:
            self.coordinator = None
            return False  # saved, but nobody was told
        if instructions.history:
            self.coordinator.validate()
            self.check_resting(self.coordinator)
        for orders in instructions.orders:
            self.send(orders)
        return True

    def _follow(self, stimulus: Any, instructions: Instructions) -> None:
        """Note whom the coordinator may take for connected, and what they said that they have."""
        if isinstance(stimulus, Report) and any(o.lease and o.echo == stimulus.seq for o in instructions.orders):
            self.others[stimulus.cluster] = (math.ceil((stimulus.others or {}).get("cpu", 0.0)), 0)
            self.told[stimulus.cluster] = tuple(int(amount) for amount in (stimulus.capacity or {}).values())
        elif isinstance(stimulus, Disconnected):
            self.told.pop(stimulus.cluster, None)

    def tell_deposed(self, stimulus: Any) -> None:
        """It may say what needs no saving; the disk takes nothing from it, and then it knows."""
        if self.deposed is None:
            return
        try:
            instructions = self.deposed.handle(stimulus, self.now)
        except AgentRefused:
            return
        except NotLeading:
            self.deposed = None
            return
        if instructions.records or instructions.history:
            self.deposed = None
            return
        for orders in instructions.orders:
            self.send(orders)

    def send(self, message: Report | Orders) -> None:
        delay = 0.05
        if self.trouble:
            if self.rng.random() < 0.08 or self.cut.get(message.cluster, 0.0) > self.now:
                return
            delay = (
                float(self.rng.exponential(0.3)) if self.rng.random() >= self.late else float(self.rng.uniform(0, 20))
            )
            if self.rng.random() < 0.1:
                self._deliver_after(message, float(self.rng.uniform(0, 20)))
        self._deliver_after(message, delay)

    def _deliver_after(self, message: Any, delay: float) -> None:
        self._posted += 1
        heapq.heappush(self._post, (self.now + delay, self._posted, message))

    def step(self) -> None:
        self.now += STEP
        if self.trouble:
            self._make_trouble()
        while self._post and self._post[0][0] <= self.now:
            message = heapq.heappop(self._post)[2]
            if isinstance(message, Report) and self.misled.get(message.cluster, 0.0) > self.now:
                self.tell_deposed(message)
            elif isinstance(message, Report):
                self.tell(message)
            elif isinstance(message, Asked):
                # What a dead one has asked concerns nobody.
                if message.by is self.coordinator:
                    self.tell(Decided(message.question.answer()))
                elif message.by is self.deposed and not self.dozes:
                    self.tell_deposed(Decided(message.question.answer()))
            else:
                self.hosts[message.cluster].hear(message)
        for host in self.hosts.values():
            host.step()
        if self.tell(Tick()) and self.coordinator is not None:
            self._ask(self.coordinator)
        if not self.dozes:
            self.tell_deposed(Tick())
            if self.deposed is not None:
                self._ask(self.deposed)
        self.check_alive()

    def _ask(self, coordinator: Coordinator) -> None:
        """Schedulers take their time: much may have changed when their answer comes."""
        question = coordinator.ask()
        if question is not None:
            slow = self.trouble and self.rng.random() < 0.3
            self._deliver_after(Asked(coordinator, question), float(self.rng.uniform(0, 5)) if slow else 0.0)

    def _depose(self) -> None:
        """Another coordinator takes over, and some agents do not notice either."""
        self.deposed, self.dozes = self.coordinator, bool(self.rng.random() < 0.7)
        names = self.rng.choice(sorted(self.hosts), int(self.rng.integers(1, 3)), replace=False)
        self.misled = {str(name): self.now + float(self.rng.uniform(10, 40)) for name in names}
        self._boot()

    def _make_trouble(self) -> None:
        if self.replicas and self.coordinator is not None and self.rng.random() < 0.02:
            self._depose()
        if self.older and self.rng.random() < 0.03:
            self._restore_older()
        if self.now < self.settled:
            if self.older and self.disk.older is not None and self.rng.random() < 0.05:
                self._boot()  # once more, while it holds
            return
        roll = self.rng.random(6)
        if self.coordinator is None:
            if roll[0] < 0.15:
                self._boot()
        elif roll[0] < 0.01:
            self.coordinator = None
        host = self.hosts[f"c{int(self.rng.integers(len(self.hosts)))}"]
        if host.agent is None:
            if roll[1] < 0.2:
                host.boot()
        elif roll[1] < 0.03:
            host.agent = None  # killed: its tasks run on
            self._close(host)
        elif roll[1] < 0.035:
            host.crash()
        if roll[2] < 0.02:
            self.cut[host.name] = self.now + float(self.rng.uniform(0.5, 15.0))
            if roll[5] < 0.5:
                self._close(host)
        if roll[3] < 0.15:
            self.submit(int(self.rng.integers(1, 4)))
        if roll[4] < 0.05 and self.acknowledged:
            task = int(self.rng.choice(sorted(self.acknowledged)))
            if self.tell(Cancel(task)):
                self.cancelled.add(task)

    def _close(self, host: Host) -> None:
        """The coordinator sees that a connection is closed, unless reports have gone to another one."""
        if self.misled.get(host.name, 0.0) <= self.now:
            self.tell(Disconnected(host.name))

    def _restore_older(self) -> None:
        """The coordinator dies, and an older copy of its disk is put in place: what came later is forgotten.

        Half of the time it says that it is one, as after a restore by command. Otherwise every agent has heard of the
        latest coordinator, or nothing would show that the copy is old.
        """
        told = bool(self.rng.random() < 0.5)
        knows = all(h.agent is not None and h.agent._epoch == self.disk.epoch for h in self.hosts.values())
        if self.now < self.settled or len(self.copies) < 2 or not (told or knows):
            return
        latest = self.disk
        self.disk = deepcopy(self.copies[int(self.rng.integers(len(self.copies) - 1))])
        if told:
            self.disk.older, self.disk.epoch = "a restore", latest.epoch
            self.disk.skipped = max(latest.skipped, *latest.records, 0)
        self.acknowledged &= self.disk.records.keys()
        self.cancelled = {task for task in self.acknowledged if self.disk.records[task].cancelled}
        self.attempts = {task: record.attempt for task, record in self.disk.records.items()}
        self.settled = self.now + 2 * (LEASES.lease + LEASES.grace)
        for name in self.rng.choice(sorted(self.hosts), 2, replace=False):
            self.cut[str(name)] = self.now + float(self.rng.uniform(2.0, LEASES.lease))
        self._boot()
        self.submit(3)

    def submit(self, count: int) -> None:
        specs = [self._spec() for _ in range(count)]
        before = set(self.disk.records)
        if self.tell(Submit(specs)):
            self.acknowledged |= set(self.disk.records) - before

    def _spec(self) -> TaskSpec:
        # A deposed coordinator is dangerous while nothing happens that it would have to save.
        mean = 20.0 if self.replicas and self.rng.random() < 0.3 else 4.0
        self._marks += 1
        env = {"FAKE_SECONDS": f"{min(60.0, self.rng.exponential(mean)):.2f}", "MARK": str(self._marks)}
        if self.rng.random() < 0.3:
            env["FLAKY"] = "yes"
        greedy = self._marks % 6 == 0  # not drawn, so that histories are otherwise as they were
        if greedy:
            env["FAKE_NEEDS"] = f"cpu={(3, 4, 9)[self._marks // 6 % 3]}"  # nothing is enough for the last
        hopeless = self.rng.random() < 0.05
        if hopeless:
            env["RAISES"] = "yes"
        return TaskSpec(
            argv=("work",),
            type=("small", "large")[int(self.rng.integers(2))],
            env=env,
            retries=30 if hopeless else int(self.rng.integers(3)),
            clusters=("c0",) if self.rng.random() < 0.2 else (),
            # Nobody can know of a task that is kept by an agent that is away, if the disk does not.
            on_disconnect="keep" if self.rng.random() < 0.3 and not self.older else "stop",
            requeue_lost=bool(self.rng.random() < 0.8),
            resizable=bool(self.rng.random() < 0.6) and not greedy,
        )

    # ------------------------------------------------------------------- checks

    def started(self, host: Host, launch: Launch) -> None:
        """A process begins: it must be the only one of its task, and the task must want it."""
        others = self.alive(launch.env["MARK"])
        if len(others) > 1:
            raise Broken(f"at {self.now}: attempts {others} of one task are alive")
        record = self.disk.records.get(launch.id[0])
        known = record is not None and record.spec.env["MARK"] == launch.env["MARK"]
        if not known and not self.older:
            raise Broken(f"nobody has submitted task {launch.id[0]}")
        # Of a task that had ended in an older copy, nothing was to start even there.
        if record is not None and known and record.phase in ENDED:
            raise Broken(f"task {record.id} was {record.phase.value} and starts")

    def alive(self, mark: str) -> list[tuple[str, tuple[int, int]]]:
        """Where processes of one task are alive."""
        hosts = self.hosts.values()
        return [(h.name, r.id) for h in hosts for r in h.backend.alive() if r.launch.env["MARK"] == mark]

    def check_grants(self, instructions: Instructions) -> None:
        """Only clusters that are connected get tasks, and never more than their agent has said that they have."""
        for line in instructions.history:
            if not isinstance(line, Granted) or line.cluster is None:
                continue
            task, attempt = line.task or 0, line.attempt or 0
            if attempt <= self.attempts.get(task, 0):
                raise Broken(f"attempt {attempt} of task {task} is granted after {self.attempts[task]}")
            self.attempts[task] = attempt
            if line.cluster not in self.told:
                raise Broken(f"{line.cluster} is not connected, and gets task {line.task}")
            used = R((0, 0))
            for record in self.disk.records.values():
                if record.on_cluster and record.cluster == line.cluster:
                    used = used + R(record.allocation or (0, 0))
            asked = tuple(line.allocation.values())
            used = used + R(self.others[line.cluster])
            for amount, total, has in zip(asked, used, self.told[line.cluster], strict=True):
                if amount and total > has:
                    raise Broken(f"{line.cluster} says that it has {self.told[line.cluster]}, and gets {used}")

    def check_resting(self, coordinator: Coordinator) -> None:
        """Schedulers do not see tasks that rest, so nobody waits behind them."""
        for view in coordinator.snapshot.queue:
            if coordinator.tasks[view.id].not_before > self.now:
                raise Broken(f"task {view.id} rests and stands in the queue")

    def check_alive(self) -> None:
        for n, host in enumerate(self.hosts.values()):
            used = R((0, 0))
            for run in host.backend.alive():
                used = used + R(map(int, run.launch.allocation.values()))
            if not used.fits(CAPACITIES[n]):
                raise Broken(f"{host.name} runs {used} of {CAPACITIES[n]}")

    def check_ended(self, instructions: Instructions) -> None:
        """Whatever is recorded as ended is dead, and ended as recorded."""
        for record in instructions.records:
            if record.phase not in ENDED:
                continue
            alive = self.alive(record.spec.env["MARK"])
            if alive:
                raise Broken(f"task {record.id} is recorded as {record.phase.value}, but {alive} is alive")
            code = self.truth.get((record.attempt_id, record.spec.env["MARK"]))
            if record.phase is Phase.FINISHED and (code != 0 or record.code != 0):
                raise Broken(f"task {record.id} is recorded as finished, but its code was {code}")
            if record.phase is Phase.FAILED and (not code or record.code != code):
                raise Broken(f"task {record.id} is recorded as failed with {record.code}, but its code was {code}")

    def check_history(self) -> None:
        """Every acknowledged task has one story, with at most one end, and a cancelled one ends as cancelled."""
        check_rests(self.disk.history)
        check_needs(self.disk.history, {task: record.spec for task, record in self.disk.records.items()})
        ends: dict[int, list[str]] = {}
        failures: Counter[int] = Counter()
        for line in self.disk.history:
            if line.task is None:
                continue
            failures[line.task] += isinstance(line, AttemptEnded) and line.result == "failed"
            failures[line.task] -= isinstance(line, RanShort)
            told = ends.setdefault(line.task, [])
            if told and not isinstance(line, AttemptRefused):
                raise Broken(f"after task {line.task} was {told}: {line}")
            if line.kind in {phase.value for phase in ENDED}:
                told.append(line.kind)
        for task in self.acknowledged:
            record = self.disk.records[task]
            if ends[task] != ([record.phase.value] if record.phase in ENDED else []):
                raise Broken(f"task {task} is {record.phase}, its history says {ends[task]}")
            if record.phase is Phase.FAILED and failures[task] != record.spec.retries + 1:
                raise Broken(f"task {task} with {record.spec.retries} retries failed {failures[task]} times")
        for task in self.cancelled:
            if self.disk.records[task].phase in ENDED - {Phase.CANCELLED}:
                raise Broken(f"task {task} was cancelled and is {self.disk.records[task].phase}")

    def end_hopeless(self) -> None:
        """Cancel tasks that nothing can start, and others that rest for minutes, once they are the only ones left."""
        assert self.coordinator is not None
        left = list(self.coordinator.tasks.values())
        if all("RAISES" in record.spec.env or record.setbacks >= 5 for record in left):
            for record in left:
                if self.tell(Cancel(record.id)):
                    self.cancelled.add(record.id)

    def heal(self) -> None:
        """Everything works again, for ever, and every agent has what the configuration says."""
        self.trouble = False
        self.cut.clear()
        self.misled.clear()
        self.deposed = None
        if self.coordinator is None:
            self._boot()
        for n, host in enumerate(self.hosts.values()):
            if host.agent is None or host.capacity != CAPACITIES[n]:
                host.capacity = CAPACITIES[n]
                host.boot()


def play(seed: int, steps: int = 120, **changes: Any) -> World:
    """A history with troubles, then a calm in which every task must come to its end."""
    world = World(seed, **changes)
    for _ in range(steps):
        world.step()
    world.heal()
    for _ in range(2000):
        world.step()
        assert world.coordinator is not None
        world.end_hopeless()
        if not world.coordinator.tasks:
            break
    else:
        raise Broken(f"tasks {sorted(world.coordinator.tasks.values(), key=lambda r: r.id)[:3]} never end")
    world.check_history()
    return world
