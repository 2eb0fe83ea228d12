"""The coordinator as a state machine: events and the time go in, instructions come out. It does no I/O.

The caller must save before it sends: every grant or outcome that anyone was told of must be on disk. If a save fails,
the caller must discard the machine and build a new one from what was saved.

Why no task ever runs twice at once: a grant goes to one agent, and that agent's lease ends no later than the
coordinator thinks. Until then the task belongs to the agent. Afterwards the agent has stopped the task. A task with
``on_disconnect = "keep"`` stays with the agent until the agent reports again or a person gives the cluster up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tapfinger.core.contract import Phase, Snapshot
from tapfinger.core.events import (
    CapacityChanged,
    ClusterClosed,
    ClusterJoined,
    OthersChanged,
    StartTask,
    TaskFailed,
    TaskFinished,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.model import Resources, Task
from tapfinger.errors import AgentRefused, ConfigError, NotFound, NotLeading, TapfingerError, UnknownNameError
from tapfinger.live.coordinator import older_store, pauses, resizing
from tapfinger.live.coordinator.agent_links import Link, differing, shown, smaller, used_by_others
from tapfinger.live.coordinator.decisions import Answer, Decider, RoundQuestion
from tapfinger.live.coordinator.grants import grounds
from tapfinger.live.coordinator.held_texts import HeldTexts, memory_of
from tapfinger.live.coordinator.inputs import (
    Cancel,
    Decided,
    Disconnected,
    Drain,
    Instructions,
    Leases,
    Stimulus,
    Submit,
    Tick,
)
from tapfinger.live.coordinator.late_results import LateResults, ended_by_itself
from tapfinger.live.coordinator.progress import Progressing, forget
from tapfinger.live.coordinator.rounds import Rounds
from tapfinger.live.coordinator.shown_needs import Kept, Least
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol import events
from tapfinger.live.protocol.events import Grounds, LiveEvent
from tapfinger.live.protocol.messages import AttemptId, Orders, Outcome, Report, RunReport, SizeOrder
from tapfinger.live.protocol.records import ENDED, LostAttempt, TaskRecord, launches

#: Most warnings in the history of a task, of all its attempts: their texts come from agents.
MOST_WARNED = 100
#: Most old attempts of a task whose refused results are noted: their numbers come from agents.
MOST_REFUSED = 100
#: Late reports of an agent in a row after which it is told that they are ignored.
MOST_LATE = 20
#: Tasks of a family that are shown with larger bounds in one turn: so agents and their leases have theirs in between.
RAISED_AT_ONCE = 2_000
#: Seconds after which an agent that is ahead of the store may make the coordinator hold again.
HOLD_AGAIN = 3600.0
#: Why nothing is started while the coordinator holds.
HELD = (
    "The store is an older copy: nothing is started until every agent has reported and has stopped what the copy does "
    "not know, or the leases are over."
)
#: Warning about a result that arrived after its attempt had counted as lost.
LATE = "its result came after it had counted as lost, so it teaches nothing about speed"


@dataclass(frozen=True, slots=True)
class Predecessor:
    """State that the previous coordinator has left in the store."""

    #: Tasks that have not ended.
    records: Iterable[TaskRecord] = ()
    #: Number of the next task.
    next_id: int = 1
    #: Drained clusters.
    drained: Iterable[str] = ()
    #: Start of slot 0, in seconds since the epoch.
    origin: float = 0.0
    #: Longest lease that an agent may still hold, in seconds.
    longest_lease: float = 0.0
    #: Attempts that counted as lost, also of tasks that have ended.
    lost: Iterable[AttemptId] = ()
    #: What shows that the store is an older copy, while attempts that it does not know may be alive; empty if the
    #: history has it already. None: nothing does.
    older: str | None = None
    #: What tasks have shown to need of resources, by owner and type.
    needs: Kept = ()


class Coordinator:
    """All tasks that have not ended, and the state of the link to each agent."""

    def __init__(
        self,
        site: Site,
        rounds: Rounds,
        leases: Leases,
        epoch: int,
        now: float,
        left: Predecessor | None = None,
        max_losses: int = pauses.MAX_LOSSES,
    ) -> None:
        """Continue where the predecessor stopped, if there was one. ``max_losses``: in a row, then a task ends."""
        left = left or Predecessor()
        self._site = site
        self._rounds = rounds
        self._leases = leases
        self._max_losses = max_losses
        self.epoch = epoch
        #: Whether the epoch must be saved; whether ids were skipped, which must be saved, too.
        self._raised = self._skipped = False
        #: Whether what tasks have shown to need must be saved.
        self._shown = False
        ends = now + max(leases.lease, left.longest_lease) + leases.grace
        #: Whether nothing is started until each agent has reported and stopped its strays, or its lease is over: the
        #: store is an older copy, and they may have tasks that it does not know. Until when it lasts at most.
        self._holding, self._hold_ends = left.older is not None, ends
        #: The same as it is saved; None if the history lacks it.
        self._saved_holding = None if left.older else self._holding
        #: Highest attempt of a task that an agent knows, where the store knows only lower ones.
        self._ahead: dict[int, int] = {}
        #: Old attempts whose result was refused, by task: it is noted once.
        self._refused: dict[int, set[int]] = {}
        self._late = LateResults(left.lost)
        #: Time from which another coordinator may lead, unless leadership is renewed.
        self.leads_until = math.inf
        self._origin = left.origin
        self._next_id = left.next_id
        #: Tasks that have not ended, by id.
        self.tasks: dict[int, TaskRecord] = {}
        #: Memory of their specifications.
        self.texts = HeldTexts()
        self._links = {cluster.name: Link(ends, drained=cluster.name in left.drained) for cluster in site.clusters}
        #: Configured capacity of each cluster, in natural amounts.
        self._configured = {cluster.name: site.resources.natural(cluster.capacity) for cluster in site.clusters}
        self._on: dict[str, dict[int, TaskRecord]] = {name: {} for name in self._links}
        #: Waiting tasks that schedulers do not see yet.
        self._resting = pauses.Resting()
        #: Waiting tasks that schedulers see with bounds from before their family was raised.
        self._raising: dict[int, None] = {}
        self._dirty: dict[int, TaskRecord] = {}
        self._history: list[LiveEvent] = [events.OlderStore(now, sign=left.older, epoch=epoch)] if left.older else []
        self._asked = False
        #: Attempts that their agent could not resize as asked: they are not resized again.
        self._rigid: set[AttemptId] = set()
        #: Progress of running attempts. To learn from it, set its ``learner``.
        self.progress = Progressing()
        site.needs.restore(left.needs)
        self._restore(list(left.records), now)
        for index in range(len(site.clusters)):
            rounds.take(ClusterClosed(rounds.slot, index))  # until its agent reports

    def _restore(self, records: list[TaskRecord], now: float) -> None:
        self._site.sizes.clear()  # of tasks that an earlier machine of this process had
        for record in sorted(records, key=lambda r: r.id):
            if record.cluster is not None and record.cluster not in self._links:
                raise ConfigError(
                    f"task {record.id} is on cluster {record.cluster!r}, which the configuration does not have any "
                    "more; put it back until its tasks have ended"
                )
            try:
                slot = self._rounds.slot
                ran = 0 if record.started is None else max(0, slot - self._slot_of(record.started))
                pauses.restored(record, now)
                if record.phase is Phase.QUEUED and record.not_before > now:
                    self._site.accepted(self._task(record), record.owner)  # raises if it does not fit the configuration
                    self._resting.add(record.id, record.not_before)
                else:
                    self._rounds.restore(record, self._arrival(record), ran)
            except TapfingerError as error:
                error.args = (f"task {record.id} of the store does not fit the configuration: {error}",)
                raise
            self.tasks[record.id] = record
            self.texts.add(record.spec, record.owner)
            if record.cluster is not None:
                self._on[record.cluster][record.id] = record
                self.progress.restored(record)

    def _slot_of(self, at: float) -> int:
        return max(0, int((at - self._origin) / self._site.slot_seconds))

    def _arrival(self, record: TaskRecord) -> int:
        return min(self._slot_of(record.submitted), self._rounds.slot)

    def _task(self, record: TaskRecord) -> Task:
        return self._site.task_of(record, self._arrival(record))

    # ------------------------------------------------------------------ stimuli

    def handle(self, stimulus: Stimulus, now: float) -> Instructions:
        """Process one stimulus and return instructions. If it raises, nothing has changed."""
        if now >= self.leads_until:
            # In particular, it must not answer a report: its successor would not wait for the lease it gave.
            raise NotLeading
        orders: list[Orders] = []
        if isinstance(stimulus, Report):
            orders = self._report(stimulus, now)
        elif isinstance(stimulus, Tick):
            self._tick(now)
        elif isinstance(stimulus, Decided):
            orders = self._decided(stimulus.answer, now)
        elif isinstance(stimulus, Submit):
            self._submit(stimulus, now)
        elif isinstance(stimulus, Cancel):
            orders = self._cancel(stimulus.task, now)
        elif isinstance(stimulus, Drain):
            self._drain(stimulus, now)
        elif isinstance(stimulus, Disconnected):
            self._disconnected(stimulus.cluster, now)
        else:
            self._give_up(stimulus.cluster, now)
        self._hold(now)
        records = tuple(record.copy() for record in self._dirty.values())
        history = tuple(self._history)
        epoch = self.epoch if self._raised else None
        holding = None if self._holding == self._saved_holding else self._holding
        last_id = self._next_id - 1 if self._skipped else None
        needs = self._site.needs.kept if self._shown else None
        self._dirty, self._history, self._raised, self._skipped, self._shown = {}, [], False, False, False
        self._saved_holding = self._holding
        return Instructions(records, history, tuple(orders), epoch, holding, last_id, needs)

    @property
    def held_for(self) -> str:
        """Why nothing is started at the moment, in a sentence; empty if that is not so."""
        return HELD if self._holding else ""

    @property
    def waiting(self) -> int:
        """Number of waiting tasks, also of those that rest."""
        return len(self.tasks) - sum(map(len, self._on.values()))

    def resting(self, most: int) -> list[TaskRecord]:
        """The first waiting tasks that schedulers do not see yet, in the order of their ids."""
        return [self.tasks[ident] for ident in heapq.nsmallest(most, self._resting.tasks)]

    @property
    def next_due(self) -> float:
        """When a tick is needed: when the next rest is over, or at once. Infinite if nothing is due."""
        return -math.inf if self._raising else self._resting.next

    @property
    def wants_round(self) -> bool:
        """Whether there may be something to decide, and no question is open.

        Not while a family is raised: each question would sort the whole queue again.
        """
        return self._rounds.stale and not (self._asked or self._holding or self._raising)

    def ask(self) -> RoundQuestion | None:
        """The next question, if there is one. The caller must hand in its answer (``Decided``), however late.

        Only one question is open at a time: schedulers keep state, so they must see events in order.
        """
        question = self._rounds.ask(self._resizable) if self.wants_round else None
        self._asked = self._asked or question is not None
        return question

    @property
    def _resizable(self) -> list[int]:
        """Running tasks whose size may change."""
        return [
            record.id
            for here in self._on.values()
            for record in here.values()
            if record.spec.resizable
            and record.phase is Phase.RUNNING
            and not record.cancelled
            and record.attempt_id not in self._rigid
            and record.resized < resizing.MOST
        ]

    @property
    def deciders(self) -> tuple[Decider, ...]:
        """The scheduler and its fallback."""
        return self._rounds.deciders

    @property
    def snapshot(self) -> Snapshot:
        """What a scheduler would see now."""
        return self._rounds.snapshot

    def _submit(self, submit: Submit, now: float) -> None:
        self._rounds.advance(self._slot_of(now))
        # All are checked before any is accepted.
        tasks = self._site.tasks(self._next_id, submit.specs, submit.owner, self._rounds.slot)
        for task, spec in zip(tasks, submit.specs, strict=True):
            record = TaskRecord(task.id, spec, submit.owner, now)
            self.tasks[task.id] = record
            self.texts.add(spec, submit.owner)
            self._dirty[task.id] = record
            self._history.append(
                events.Submitted(
                    now,
                    task.id,
                    type=spec.type,
                    minimum=spec.minimum,
                    maximum=spec.maximum,
                    clusters=spec.clusters,
                )
            )
        self._next_id += len(tasks)
        self._rounds.arrive(tasks, submit.owner)

    def _cancel(self, ident: int, now: float) -> list[Orders]:
        record = self.tasks.get(ident)
        if record is None:
            raise NotFound(f"there is no task {ident} that could be cancelled: it has ended, or there never was one")
        if not record.cancelled:
            record.cancelled = True
            self._dirty[ident] = record
            self._note(events.Cancelling, record, now)
        if not record.on_cluster:
            self._unqueue(record)
            self._close(record, Phase.CANCELLED, now)
            return []
        return self._push([record.cluster or ""])

    def _unqueue(self, record: TaskRecord) -> None:
        """Take a waiting task from schedulers, if they see it."""
        if not self._resting.discard(record.id):
            self._rounds.take(TaskWithdrawn(self._rounds.slot, record.id))

    def _drain(self, drain: Drain, now: float) -> None:
        link = self._link(drain.cluster)
        was = link.open
        link.drained = drain.drained
        kind = events.ClusterDrained if drain.drained else events.ClusterOpened
        self._history.append(kind(now, cluster=drain.cluster))
        self._show(drain.cluster, was)

    def _give_up(self, cluster: str, now: float) -> None:
        link = self._link(cluster)
        if now < link.ends:
            raise ConfigError(
                f"cluster {cluster!r} may be there: its agent may hold a lease for {link.ends - now:.0f} more seconds; "
                "drain it, or wait"
            )
        for record in list(self._on[cluster].values()):
            self._end(record, Outcome("lost", reason=f"cluster {cluster} was given up"), now)
        # If the agent comes back after all, it is told that its attempts are old, and stops them.
        was, link.agent, link.heard = link.open, None, False
        self._show(cluster, was)

    def _link(self, cluster: str) -> Link:
        if cluster not in self._links:
            raise UnknownNameError("cluster", cluster, self._links)
        return self._links[cluster]

    def _show(self, cluster: str, was_open: bool) -> None:
        """Tell schedulers if the cluster has started or stopped taking tasks."""
        is_open = self._links[cluster].open
        if is_open != was_open:
            index, slot = self._site.index[cluster], self._rounds.slot
            self._rounds.take(ClusterJoined(slot, index) if is_open else ClusterClosed(slot, index))

    def _tell(self, cluster: str, now: float) -> None:
        """Note in the history what is new about a cluster's agent."""
        self._history += self._links[cluster].news(cluster, self._configured[cluster], now)

    def _disconnected(self, cluster: str, now: float) -> None:
        """Handle a closed connection: the cluster takes no tasks until it is heard again; nothing else changes."""
        link = self._link(cluster)
        was = link.open
        link.away = link.away or "its connection was closed"
        self._show(cluster, was)
        self._tell(cluster, now)

    # ------------------------------------------------------------------ reports

    def _report(self, report: Report, now: float) -> list[Orders]:
        link = self._link(report.cluster)
        if link.agent not in (None, report.agent) and now < link.ends:
            raise AgentRefused(
                f"cluster {report.cluster!r} has another agent, {link.agent}, whose lease lasts for "
                f"{link.ends - now:.0f} more seconds; stop that one, or wait"
            )
        # Numbers of another agent, or of one that was given up, say nothing about this one's.
        seen = link.seen if link.agent == report.agent else (0, 0)
        if (report.incarnation, report.seq) <= seen:
            self._late_again(report, link)
            return []  # late or a duplicate: a newer report has been seen
        self._catch_up(report, link, now)
        if report.epoch != self.epoch:
            # Made before this coordinator led: attempts missing from it may have started since. Wait for the next one.
            return [self._orders(report, 0.0)]
        link.agent, link.seen, link.ends = report.agent, (report.incarnation, report.seq), self._until(now)
        link.late = 0
        was = link.open
        link.heard, link.away, link.last_heard = True, "", now
        link.isolates, link.trouble = report.isolates, report.trouble
        self._measure(report, link)
        self._share(report, link)
        self._tell(report.cluster, now)
        stops, forgets = self._compare(report, now)
        link.strays = bool(stops)
        self._show(report.cluster, was)
        return [self._orders(report, self._leases.lease, stops, forgets)]

    def _late_again(self, report: Report, link: Link) -> None:
        """Refuse an agent that sends only late reports: its numbers have started again, so none of them counts."""
        link.late += 1
        if link.late >= MOST_LATE:
            raise AgentRefused(
                f"cluster {report.cluster!r}: {link.late} reports in a row were numbered below those before "
                f"({report.incarnation}.{report.seq} after {link.seen[0]}.{link.seen[1]}); its state directory may "
                "have been put back, or two agents may share it. Give it a new one"
            )

    def _measure(self, report: Report, link: Link) -> None:
        """Compare the agent's capacity with the configured one. The smaller counts: more could never start there."""
        before, link.reported = link.reported, differing(report.capacity, self._configured[report.cluster])
        if link.reported != before:
            index = self._site.index[report.cluster]
            capacity = smaller(link.reported, self._site.clusters[index].capacity, self._site.resources)
            self._rounds.take(CapacityChanged(self._rounds.slot, index, capacity))

    def _share(self, report: Report, link: Link) -> None:
        """Take what others use of the cluster from what is free there, if it has changed."""
        before, link.others = link.others, report.others
        if link.others != before:
            index, resources = self._site.index[report.cluster], self._site.resources
            used = used_by_others(link.others, self._site.clusters[index].capacity, resources)
            known = self._rounds.clusters[index].others
            if used != (known or Resources([0] * len(used))):
                self._rounds.take(OthersChanged(self._rounds.slot, index, used))

    def _catch_up(self, report: Report, link: Link, now: float) -> None:
        """If the agent is ahead of the store, go on above all numbers that it knows."""
        sign = older_store.signs(report, self.epoch, self._next_id, self.tasks, now, self._site.may_run)
        if not sign:
            return
        soon = now < link.ahead + self._leases.lease
        if soon and (report.epoch > self.epoch or any(run.id[0] >= self._next_id for run in report.runs)):
            raise AgentRefused(f"cluster {report.cluster!r}: {sign}, again; restart the agent")
        if report.epoch > self.epoch:
            self.epoch, self._raised = report.epoch + 1, True
        for task, attempt in (run.id for run in report.runs):
            if task >= self._next_id:
                self._next_id, self._skipped = task + 1, True
            if (record := self.tasks.get(task)) is not None and attempt > record.attempt:
                self._skip_attempts(record, attempt)
        if not soon:
            link.ahead = now
            self._history.append(events.OlderStore(now, cluster=report.cluster, sign=sign, epoch=self.epoch))
        if now >= link.held + HOLD_AGAIN:  # one agent's word must not hold the others up again and again
            link.held = now
            self._hold_ends = max(self._hold_ends, self._until(now)) if self._holding else self._until(now)
            self._holding = True

    def _skip_attempts(self, record: TaskRecord, attempt: int) -> None:
        """Never give out a number that an agent knows; what is on a cluster keeps its own until it has ended."""
        if record.on_cluster:
            self._ahead[record.id] = max(attempt, self._ahead.get(record.id, 0))
        else:
            record.attempt = attempt
            self._dirty[record.id] = record

    def _hold(self, now: float) -> None:
        """Stop holding once no attempt can be alive of which nothing is known, or that is to be stopped.

        An agent stops what it is told to in less than the grace of a lease; who does not must not hold up the others.
        """
        waits = any(now < link.ends and (link.strays or not link.heard) for link in self._links.values())
        if self._holding and not (waits and now < self._hold_ends):
            self._holding, self._rounds.stale = False, True

    def _until(self, now: float) -> float:
        return now + self._leases.lease + self._leases.grace

    def _compare(self, report: Report, now: float) -> tuple[list[AttemptId], list[AttemptId]]:
        """Compare a report with the records. Returns the attempts to stop and the attempts to forget."""
        stops: list[AttemptId] = []
        forgets: list[AttemptId] = []
        for run in report.runs:
            record = self.tasks.get(run.id[0])
            current = (
                record is not None
                and record.on_cluster
                and (record.attempt, record.cluster, record.agent) == (run.id[1], report.cluster, report.agent)
            )
            if record is None or not current:
                (stops if run.outcome is None else forgets).append(run.id)
                if run.outcome is not None and ended_by_itself(run.outcome):
                    self._hear_late(record, run.id, run.outcome, report, now)
            elif run.outcome is None:
                self._begin(record, now)
                self._resized(record, run, now)
                self._hear(record, run, now)
            else:
                self._hear(record, run, now)
                self._end(record, run.outcome, now)
                forgets.append(run.id)
        reported = {run.id for run in report.runs}
        for record in list(self._on[report.cluster].values()):
            missing = record.agent == report.agent and record.attempt_id not in reported
            # A placed attempt may not have reached the agent yet; the answer sends it again.
            if missing and record.phase is Phase.RUNNING:
                self._end(record, Outcome("lost", reason="its agent does not know of it any more"), now)
        return stops, forgets

    def _hear_late(
        self, record: TaskRecord | None, ident: AttemptId, outcome: Outcome, report: Report, now: float
    ) -> None:
        """Process the result of an attempt that counts as lost: it is as good as any until a new attempt is granted.

        ``record``: None if its task has ended.
        """
        task, attempt = ident
        news = self._late.take(ident)
        if record is not None:
            lost = record.lost
            latest = attempt == record.attempt >= self._ahead.get(task, 0) and not record.on_cluster
            same = lost is not None and (lost.cluster, lost.agent) == (report.cluster, report.agent)
            if lost is not None and latest and same and outcome.result != "stopped":
                self._recover(record, lost, outcome, now)
                return
            known = self._refused.setdefault(task, set())
            news = 1 <= attempt <= record.attempt and attempt not in known and len(known) < MOST_REFUSED
            known |= {attempt} if news else set()
        if news:
            self._history.append(events.AttemptRefused(now, task, attempt, report.cluster, result=outcome.result))

    def _recover(self, record: TaskRecord, lost: LostAttempt, outcome: Outcome, now: float) -> None:
        """End a task with the result of its latest attempt, which had counted as lost."""
        self._unqueue(record)
        record.phase, record.cluster, record.agent = Phase.RUNNING, lost.cluster, lost.agent
        record.allocation, record.started = lost.allocation, lost.started
        record.warnings, record.lost, record.not_before = (LATE,), None, 0.0
        pauses.uncount_loss(record)
        self._note(events.AttemptRecovered, record, now)
        self._conclude(record, outcome, now)

    def _begin(self, record: TaskRecord, now: float) -> None:
        if record.phase is Phase.PLACED:
            record.phase, record.started = Phase.RUNNING, now
            self._dirty[record.id] = record
            self._note(events.AttemptStarted, record, now)
            size = Resources(record.allocation or ())
            self._rounds.take(TaskStarted(self._rounds.slot, record.id, self._index(record), size))

    def _resized(self, record: TaskRecord, run: RunReport, now: float) -> None:
        """Process the agent's confirmation of a resize: free what the attempt has given back."""
        size = resizing.confirmed(record, run, self._site.resources)
        if size is None or not (tuple(size) == record.allocation or self._rounds.resized(record.id, size)):
            return
        if tuple(size) != record.wanted:
            self._rigid.add(record.attempt_id)
        record.allocation, record.wanted = tuple(size), None
        self._dirty[record.id] = record
        self._note(events.AttemptResized, record, now, allocation=self._site.resources.natural(size))

    def _hear(self, record: TaskRecord, run: RunReport, now: float) -> None:
        news = self.progress.hear(record, run, now)
        for text in news.warnings:
            self._warn(record, text, now)
        if news.save:
            self._dirty[record.id] = record
        if news.progress is not None and record.phase is Phase.RUNNING:
            self._rounds.progressed(record.id, news.progress)

    def _warn(self, record: TaskRecord, text: str, now: float) -> None:
        if record.warned < MOST_WARNED:
            record.warned += 1
            self._note(events.Warned, record, now, text=text)

    def _index(self, record: TaskRecord) -> int:
        return self._site.index[record.cluster or ""]

    # --------------------------------------------------------------------- ends

    def _end(self, record: TaskRecord, outcome: Outcome, now: float) -> None:
        """End an attempt on a cluster. Only this method frees all resources of an attempt."""
        slot, index = self._rounds.slot, self._index(record)
        if outcome.result == "finished" and not record.cancelled:
            self._begin(record, now)
            self._rounds.take(TaskFinished(slot, record.id, index))
        else:
            self._rounds.take(TaskFailed(slot, record.id, index, outcome.result))
        del self._on[record.cluster or ""][record.id]
        self._conclude(record, outcome, now)

    def _conclude(self, record: TaskRecord, outcome: Outcome, now: float) -> None:
        """Decide what becomes of a task whose attempt has ended and holds nothing: it ends or waits again."""
        record.code, record.reason, record.output = outcome.code, outcome.reason, outcome.output
        record.results, record.results_until = outcome.results, outcome.results_until
        failed = outcome.result == "failed"
        # What an agent says is shown to everyone only if it is a word of the configuration.
        short = outcome.short if failed and outcome.short in self._site.resources.names else ""
        said = {"code": outcome.code, "reason": outcome.reason, "short": short}
        self._note(events.AttemptEnded, record, now, result=outcome.result, **said)
        if text := self.progress.ended(record, outcome):
            self._warn(record, text, now)
        if outcome.result == "lost":
            self._late.add(record.attempt_id)
        more = self._site.more(record, short) if short and not record.cancelled else None
        if outcome.result != "finished":
            pauses.count(record, outcome, now, more is not None)
        if record.cancelled:
            self._close(record, Phase.CANCELLED, now)
        elif outcome.result == "finished":
            self._close(record, Phase.FINISHED, now)
        elif more is not None:
            self._give_more(record, outcome, more, now)
        elif (why := pauses.final_reason(record, outcome, self._max_losses)) is None:
            self._requeue(record, outcome, now)
        else:
            record.reason = why
            self._close(record, Phase.FAILED if failed else Phase.LOST, now)

    def _give_more(self, record: TaskRecord, outcome: Outcome, least: Least, now: float) -> None:
        """Let a task that ran out of a resource wait for more of it, and its family begin with as much."""
        short, held = outcome.short, self._site.resources.natural(Resources(record.allocation or ()))[outcome.short]
        record.least = dict(least)
        record.reason = f"{outcome.reason}; from now on it gets at least {least[short]:g} {short}"
        self._note(events.RanShort, record, now, resource=short, held=held, least=least[short])
        self._requeue(record, outcome, now)
        if self._site.needs.learn(record.owner, record.spec.type, {short: least[short]}):
            self._shown = True
            family = record.owner, record.spec.type
            self._raising |= {
                r.id: None
                for r in self.tasks.values()
                if (r.owner, r.spec.type) == family and r.phase is Phase.QUEUED and r.id not in self._resting
            }
            self._raise_some()

    def _raise_some(self) -> None:
        """Show some waiting tasks with what their family has shown to need."""
        owners: dict[str, list[Task]] = {}
        for ident in list(islice(self._raising, RAISED_AT_ONCE)):
            del self._raising[ident]
            record = self.tasks.get(ident)
            if record is not None and record.phase is Phase.QUEUED and ident not in self._resting:
                with suppress(TapfingerError):  # else it stays as it is: a tick must not fail
                    owners.setdefault(record.owner, []).append(self._task(record))
        for owner, tasks in owners.items():
            self._rounds.change(tasks, owner)

    def _requeue(self, record: TaskRecord, outcome: Outcome, now: float) -> None:
        """Let a task wait again: at once after a long attempt, else after a rest in which schedulers do not see it."""
        pauses.requeue(record, outcome, now)
        self._rigid.discard(record.attempt_id)
        record.phase, record.cluster, record.agent = Phase.QUEUED, None, None
        record.allocation, record.started = None, None
        resizing.forget(record)
        forget(record)
        self._dirty[record.id] = record
        self._note(events.Requeued, record, now, until=record.not_before or None, setbacks=record.setbacks)
        self._resting.add(record.id, record.not_before)
        self._wake(now)

    def _wake(self, now: float) -> None:
        """Show tasks to schedulers whose rest is over."""
        for ident in self._resting.end(now):
            record = self.tasks[ident]
            try:
                self._rounds.arrive([self._task(record)], record.owner)
            except TapfingerError as error:  # the site may have forgotten its size, and be full of others
                record.reason = str(error)
                self._close(record, Phase.LOST, now)

    def _close(self, record: TaskRecord, phase: Phase, now: float) -> None:
        """Record the final phase of a task."""
        self._rigid.discard(record.attempt_id)
        if record.phase in ENDED:
            raise AssertionError(f"task {record.id} ends as {phase.value} and is {record.phase.value} already")
        record.phase, record.ended, record.wanted = phase, now, None
        self._dirty[record.id] = record
        self._note(events.CLOSED[phase], record, now)
        record.lost = None
        del self.tasks[record.id]
        self.texts.remove(record.spec, record.owner)
        self._ahead.pop(record.id, None)
        self._refused.pop(record.id, None)
        self._site.sizes.remove(record.id)

    # -------------------------------------------------------------------- ticks

    def _tick(self, now: float) -> None:
        self._rounds.advance(self._slot_of(now))
        self._wake(now)
        self._raise_some()
        for name, link in self._links.items():
            was = link.open
            if link.missing(now, self._leases.silence):
                self._show(name, was)
            if now >= link.ends:
                self._expire(name, link, now)
            self._tell(name, now)

    def _expire(self, name: str, link: Link, now: float) -> None:
        """Handle the end of an agent's lease: by now the agent has stopped all tasks that it may not keep."""
        if link.heard:
            was = link.open
            link.heard = False
            self._show(name, was)
        for record in list(self._on[name].values()):
            if record.spec.on_disconnect == "stop":
                self._end(record, Outcome("lost", reason=f"the lease of cluster {name} ended"), now)

    def _decided(self, answer: Answer, now: float) -> list[Orders]:
        self._asked = False
        if self._holding:
            answer = replace(answer, starts=(), sizes={})
        if answer.fault:
            self._history.append(events.SchedulerFault(now, text=answer.fault))
        before, waiting = self._rounds.clusters, self._rounds.waiting
        starts, sizes = self._rounds.settle(answer)
        slot = self._rounds.slot
        granted = {self._grant(s, now, grounds(s, before, waiting, answer.by, self._site, slot)) for s in starts}
        changed = {self._resize(self.tasks[task], size, now) for task, size in sizes.items()}
        return self._push((granted | changed) - {""})

    def _resize(self, record: TaskRecord, size: Resources, now: float) -> str:
        """Ask for a new size that is already debited. Returns the cluster to notify, or an empty text."""
        if not resizing.ask(record, size):
            return ""
        self._dirty[record.id] = record
        self._note(events.AttemptResizing, record, now, allocation=self._site.resources.natural(size))
        return record.cluster or ""

    def _grant(self, start: StartTask, now: float, why: Grounds) -> str:
        """Record a new attempt, which holds the resources that the decision has debited. Returns its cluster."""
        record = self.tasks[start.task.id]
        cluster = self._site.clusters[start.cluster].name
        record.phase, record.cluster, record.agent = Phase.PLACED, cluster, self._links[cluster].agent
        record.attempt = max(record.attempt, self._ahead.pop(record.id, 0)) + 1
        record.lost, record.not_before = None, 0.0
        record.allocation = tuple(start.allocation)
        resizing.forget(record)
        forget(record)
        record.code, record.reason = None, ""
        self._on[cluster][record.id] = record
        self._dirty[record.id] = record
        self._note(events.Granted, record, now, allocation=self._site.resources.natural(start.allocation), grounds=why)
        return cluster

    # ------------------------------------------------------------------- orders

    def _push(self, clusters: Iterable[str]) -> list[Orders]:
        """Orders that do not wait for a report; they repeat the lease that answered the last report."""
        orders = []
        for name in sorted(clusters):
            link = self._links[name]
            if link.heard and link.agent is not None:
                last = Report(name, link.agent, *link.seen, self.epoch)
                orders.append(self._orders(last, self._leases.lease))
        return orders

    def _orders(
        self, to: Report, lease: float, stops: Iterable[AttemptId] = (), forgets: Iterable[AttemptId] = ()
    ) -> Orders:
        link = self._links[to.cluster]
        link.sent += 1
        mine = [r for r in self._on[to.cluster].values() if lease and r.agent == to.agent]
        # What stray attempts hold is not free until they are gone.
        wanted = [] if link.strays else [r for r in mine if not r.cancelled]
        # While holding, an attempt that its agent has not reported may be of a task that runs elsewhere.
        placed = [] if self._holding else [r for r in wanted if r.phase is Phase.PLACED]
        return Orders(
            cluster=to.cluster,
            agent=to.agent,
            incarnation=to.incarnation,
            epoch=self.epoch,
            seq=link.sent,
            echo=to.seq,
            lease=lease,
            starts=launches(placed, self._site.resources),
            stops=(*stops, *(r.attempt_id for r in mine if r.cancelled)),
            forgets=tuple(forgets),
            sizes=tuple(
                SizeOrder(r.attempt_id, r.resized, self._site.resources.natural(Resources(r.wanted)))
                for r in wanted
                if r.wanted is not None
            ),
        )

    # -------------------------------------------------------------------- views

    def clusters(self, now: float) -> list[dict[str, object]]:
        """Each cluster as shown to people: its capacity, what is free, whether its agent is connected."""
        natural = self._site.resources.natural
        return [
            shown(view, cluster, self._links[view.name], self._on[view.name], natural, now)
            for view, cluster in zip(self._rounds.clusters, self._site.clusters, strict=True)
        ]

    def _note(self, kind: type[LiveEvent], record: TaskRecord, now: float, **own: Any) -> None:
        """Add an event about a task to the history; ``own``: the fields of its kind."""
        self._history.append(kind(now, record.id, record.attempt or None, record.cluster, **own))

    def validate(self) -> None:
        """Check that the machine and the schedulers' state agree; raises AssertionError."""
        self._rounds.validate()
        snapshot = self._rounds.snapshot
        queued = {r.id for r in self.tasks.values() if r.phase is Phase.QUEUED}
        seen = {view.id for view in snapshot.queue}
        if queued != seen | self._resting.tasks or seen & self._resting.tasks:
            raise AssertionError("the queue differs from the tasks that wait and do not rest")
        if self.texts.total != sum(memory_of(record.spec) for record in self.tasks.values()):
            raise AssertionError("the memory of texts differs from that of the tasks")
        for view in snapshot.clusters:
            held = {t.id: (tuple(t.allocation or ()), t.phase) for t in view.running}
            mine = {r.id: (r.allocation, r.phase) for r in self._on[view.name].values()}
            if held != mine:
                raise AssertionError(f"cluster {view.name} holds {held}, granted were {mine}")
