"""An agent as a state machine: orders, observations and the time go in, instructions come out. It does no I/O.

The time comes from the agent's own monotonic clock and is never compared with the coordinator's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from tapfinger.live.protocol.messages import (
    LONGEST,
    MOST_RUNS,
    AttemptId,
    Launch,
    Orders,
    Outcome,
    Report,
    RunReport,
    SizeOrder,
)


@dataclass(frozen=True, slots=True)
class Said:
    """The latest plausible progress that a task has reported, and the faults of its reports."""

    progress: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: Seconds from the task's start to that report.
    ran: float | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What an agent tells in every report; None if it is not known."""

    #: Natural amounts that it can hand out, by resource.
    capacity: Mapping[str, float] | None = None
    #: Whether tasks run in a sandbox.
    isolates: bool | None = None
    #: Version of the observations from which it computes proposals; 0: it computes none.
    infers: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """An attempt from before this incarnation."""

    id: AttemptId
    on_disconnect: str
    outcome: Outcome | None
    #: Number of its latest resize, and its allocation since then.
    size: int = 0
    allocation: Mapping[str, float] | None = None
    said: Said = Said(None)


@dataclass(frozen=True, slots=True)
class Observed:
    """Attempts that have ended since the backend was last polled."""

    ends: Mapping[AttemptId, Outcome]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Tasks have reported progress."""

    said: Mapping[AttemptId, Said]


@dataclass(frozen=True, slots=True)
class Resized:
    """A resize was carried out or has failed; ``allocation`` is what the attempt has now."""

    id: AttemptId
    number: int
    allocation: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Condition:
    """Time has passed, and the host is in this condition."""

    #: How many more attempts it can start now.
    room: float
    #: Why it should get no tasks, such as a full disk; empty if it should.
    trouble: str = ""
    #: Natural amounts by resource that others use; None if they are not observed.
    others: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class AgentTick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start this attempt; if that fails, observe it as failed."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class StopRun:
    """End this attempt, at once or with time to clean up."""

    id: AttemptId
    at_once: bool


@dataclass(frozen=True, slots=True)
class ResizeRun:
    """Give this attempt another size, and answer with ``Resized``."""

    size: SizeOrder


@dataclass(frozen=True, slots=True)
class ForgetRun:
    """Remove every trace of an ended attempt."""

    id: AttemptId


@dataclass(frozen=True, slots=True)
class HoldLease:
    """Write the end of the lease to disk: tasks must end with it even if the agent is dead."""

    until: float


AgentStimulus = Orders | Observed | Progressed | Resized | Condition | AgentTick
#: Seconds between reports while tasks report progress, or a beat if that is shorter.
LIVELY = 1.0
#: Characters of the reasons in a report, of all attempts together, and of each one in any case: a character may take
#: six bytes in a message, and one that is too long for the coordinator would be sent again and again.
REASONS, SHORTEST = 500_000, 50
#: Metrics and faults in a report, of all attempts together: many attempts with many of them would be too long as well.
#: What an attempt reports beyond its share is left out, until there are fewer attempts.
SAID = 10_000

#: Reports whose times are kept while no coordinator answers: an answer to an older one renews no lease.
MOST_UNANSWERED = 1000

AgentInstruction = StartRun | StopRun | ResizeRun | ForgetRun | HoldLease | Report


@dataclass(slots=True)
class _AttemptState:
    on_disconnect: str
    outcome: Outcome | None = None
    #: 0: runs; 1: was asked to end; 2: is ended at once.
    stopping: int = 0
    #: Number of its latest resize, and its allocation since then.
    size: int = 0
    allocation: Mapping[str, float] | None = None
    said: Said = Said(None)


class Agent:
    """The attempts on this cluster, and the lease under which they run."""

    def __init__(
        self,
        cluster: str,
        agent: str,
        incarnation: int,
        now: float,
        beat: float,
        found: Iterable[Found] = (),
        lease_until: float = 0.0,
        about: HostFacts | None = None,
    ) -> None:
        """``beat``: seconds between reports. ``lease_until``: end of the previous incarnation's lease, same clock.

        ``about``: what does not change while it runs.
        """
        self.cluster = cluster
        self.agent = agent
        self.incarnation = incarnation
        self._beat = beat
        self._about = about or HostFacts()
        self._runs = {f.id: _AttemptState(f.on_disconnect, f.outcome, 0, f.size, f.allocation, f.said) for f in found}
        self._lease_until = lease_until
        self._epoch = 0
        self._heard = 0  # number of the last orders of this epoch
        self._seq = 0
        self._sent: dict[int, float] = {}  # when each report was sent, kept until a newer one is answered
        self._last_report = self._next_report = now
        self._room, self._trouble = math.inf, ""
        self._others: Mapping[str, float] | None = None
        self._passed_over = False  # whether orders to start were passed over because there was no room
        #: Length of the latest lease, in seconds.
        self.lease_length = 0.0

    @property
    def lease_until(self) -> float:
        """When the lease ends."""
        return self._lease_until

    @property
    def running(self) -> list[AttemptId]:
        """Attempts that have not ended."""
        return [ident for ident, run in self._runs.items() if run.outcome is None]

    def handle(self, stimulus: AgentStimulus, now: float) -> list[AgentInstruction]:
        """Process one stimulus and return instructions."""
        instructions: list[AgentInstruction] = []
        report = False
        if isinstance(stimulus, Orders):
            instructions += self._obey(stimulus, now)
            report = any(not isinstance(i, HoldLease) for i in instructions)
        elif isinstance(stimulus, Observed):
            for ident, outcome in stimulus.ends.items():
                run = self._runs.get(ident)
                if run is not None and run.outcome is None:
                    run.outcome = outcome
                    report = True
        elif isinstance(stimulus, Progressed):
            for ident in stimulus.said.keys() & self._runs.keys():
                self._runs[ident].said = stimulus.said[ident]
                self._next_report = min(self._next_report, self._last_report + LIVELY)
        elif isinstance(stimulus, Resized) and stimulus.id in self._runs:
            run = self._runs[stimulus.id]
            run.size, run.allocation = stimulus.number, stimulus.allocation
            report = True
        elif isinstance(stimulus, Condition):
            # The answer to a report repeats what was passed over.
            room = min(stimulus.room, MOST_RUNS - len(self._runs))
            report = stimulus.trouble != self._trouble or (self._passed_over and room > 0)
            self._room, self._trouble = room, stimulus.trouble
            if stimulus.others != self._others:
                self._others = stimulus.others
                self._next_report = min(self._next_report, self._last_report + LIVELY)
            self._passed_over = self._passed_over and not report
        instructions += self._enforce(now)
        if report or now >= self._next_report:
            instructions.append(self.report(now))
        return instructions

    def report(self, now: float) -> Report:
        """A report of every attempt on this cluster."""
        self._seq += 1
        self._sent[self._seq] = now
        if len(self._sent) > MOST_UNANSWERED:
            del self._sent[next(iter(self._sent))]  # the oldest
        self._last_report, self._next_report = now, now + self._beat
        most = max(SHORTEST, min(LONGEST, REASONS // max(1, len(self._runs))))
        said = SAID // max(1, len(self._runs))
        runs = tuple(_reported(ident, run, most, said) for ident, run in sorted(self._runs.items()))
        return Report(
            self.cluster,
            self.agent,
            self.incarnation,
            self._seq,
            self._epoch,
            runs,
            trouble=self._trouble,
            isolates=self._about.isolates,
            capacity=None if self._about.capacity is None else dict(self._about.capacity),
            others=None if self._others is None else dict(self._others),
            infers=self._about.infers,
        )

    def _enforce(self, now: float) -> list[AgentInstruction]:
        """Stop what may not outlive the lease."""
        if now < self._lease_until:
            return []
        instructions: list[AgentInstruction] = []
        for ident, run in self._runs.items():
            if run.outcome is None and run.on_disconnect == "stop" and run.stopping < 2:
                run.stopping = 2
                instructions.append(StopRun(ident, at_once=True))
        return instructions

    def _obey(self, orders: Orders, now: float) -> list[AgentInstruction]:
        mine = (orders.cluster, orders.agent, orders.incarnation) == (self.cluster, self.agent, self.incarnation)
        if not mine or (orders.epoch, orders.seq) <= (self._epoch, self._heard):
            return []  # for an earlier agent, from an earlier coordinator, late, or a duplicate
        new_epoch = orders.epoch > self._epoch
        self._epoch, self._heard = orders.epoch, orders.seq
        instructions: list[AgentInstruction] = self._renew(orders)
        if new_epoch:
            self._next_report = now  # a new coordinator needs a report at once
        for ident in orders.forgets:
            run = self._runs.get(ident)
            if run is not None and run.outcome is not None:
                del self._runs[ident]
                instructions.append(ForgetRun(ident))
        for ident in orders.stops:
            instructions += self._stop(ident)
        # Orders may arrive very late; without a lease, a task may belong to another cluster by now.
        new = [x for x in orders.starts if x.id not in self._runs] if now < self._lease_until else []
        for launch in new:
            instructions += self._accept(launch)
        return instructions + [ResizeRun(size) for size in orders.sizes if self._is_news(size)]

    def _accept(self, launch: Launch) -> list[AgentInstruction]:
        """Start an attempt, give it back if nothing can be started here, or pass it over until there is room."""
        if len(self._runs) >= MOST_RUNS:
            self._passed_over = True
            return []
        if self._trouble:
            self._runs[launch.id] = _AttemptState(launch.on_disconnect, Outcome("lost", reason=self._trouble))
            self._next_report = 0.0  # at once
            return []
        if self._room < 1:
            self._passed_over = True
            return []
        self._room -= 1
        self._runs[launch.id] = _AttemptState(launch.on_disconnect)
        return [StartRun(launch)]

    def _is_news(self, size: SizeOrder) -> bool:
        run = self._runs.get(size.id)
        return run is not None and run.outcome is None and not run.stopping and size.number > run.size

    def _renew(self, orders: Orders) -> list[AgentInstruction]:
        sent = self._sent.get(orders.echo)
        self._sent = {seq: at for seq, at in self._sent.items() if seq >= orders.echo}
        if sent is None or orders.lease <= 0.0 or sent + orders.lease <= self._lease_until:
            return []
        # Counted from when the report was sent, not from now: the coordinator counts from when it arrived.
        self._lease_until, self.lease_length = sent + orders.lease, orders.lease
        return [HoldLease(self._lease_until)]

    def _stop(self, ident: AttemptId) -> list[AgentInstruction]:
        run = self._runs.get(ident)
        if run is None and len(self._runs) >= MOST_RUNS:
            return []  # a report has no room for it; the order comes again
        if run is None:
            # It never started here. The report of this outcome tells the coordinator that it never will.
            self._runs[ident] = _AttemptState("stop", Outcome("stopped", reason="it had not started"))
            self._next_report = 0.0  # at once
            return []
        if run.outcome is not None or run.stopping:
            return []
        run.stopping = 1
        return [StopRun(ident, at_once=False)]


def _reported(ident: AttemptId, run: _AttemptState, reason: int, told: int) -> RunReport:
    """An attempt for a report; ``reason``: characters of its reason, ``told``: number of its metrics and faults."""
    allocation, said, outcome = None if run.allocation is None else dict(run.allocation), run.said, run.outcome
    if outcome is not None and len(outcome.reason) > reason:
        outcome = replace(outcome, reason=outcome.reason[:reason])
    metrics = dict(islice(said.metrics.items(), told))
    faults = said.faults[: told - len(metrics)]
    return RunReport(ident, outcome, run.size, allocation, said.progress, metrics, said.ran, faults)
