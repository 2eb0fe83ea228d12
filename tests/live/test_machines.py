"""Coordinator and agent as lists of stimuli -> instructions."""

from __future__ import annotations

import pytest
from live.protocol import make_site

from tapfinger.core.contract import Decision, Phase, Placement, Resize, SchedulerContext, Snapshot
from tapfinger.core.model import Resources
from tapfinger.errors import AgentRefused, ConfigError, NotFound, NotLeading, UnknownNameError
from tapfinger.live.agent.machine import (
    MOST_UNANSWERED,
    Agent,
    AgentTick,
    ForgetRun,
    Found,
    HoldLease,
    Observed,
    StartRun,
    StopRun,
)
from tapfinger.live.coordinator.decisions import RoundQuestion
from tapfinger.live.coordinator.inputs import Cancel, Decided, Drain, GiveUp, Leases, Submit, Tick
from tapfinger.live.coordinator.machine import MOST_LATE, Coordinator, Predecessor
from tapfinger.live.coordinator.rounds import WINDOW, Rounds
from tapfinger.live.coordinator.shown_needs import Kept
from tapfinger.live.coordinator.site import Site
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.live.protocol.messages import Launch, Orders, Outcome, Report, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.registry import create

SPEC = TaskSpec(argv=("work",), type="small")


class Driven:
    """A coordinator with an agent's part played by hand."""

    def __init__(
        self,
        records: list[TaskRecord] | None = None,
        epoch: int = 1,
        scheduler: object = None,
        site: Site | None = None,
        needs: Kept = (),
    ) -> None:
        self.site = site or make_site()
        chosen = create("scheduler", scheduler, {}) if isinstance(scheduler, str) else scheduler
        chosen = chosen or create("scheduler", "min", {})
        rounds = Rounds(self.site, chosen, 0, fallback=create("scheduler", "min", {}))  # type: ignore[arg-type]
        next_id = 1 + max((record.id for record in records or []), default=0)
        left = Predecessor(records or [], next_id=next_id, needs=needs)
        self.machine = Coordinator(self.site, rounds, Leases(6.0, 1.0), epoch, 0.0, left)
        self.seq = 0
        self.saved: dict[int, TaskRecord] = {}
        self.history: list[LiveEvent] = []

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.history]

    def tell(self, stimulus: object, now: float) -> tuple[Orders, ...]:
        done = self.machine.handle(stimulus, now)  # type: ignore[arg-type]
        self.machine.validate()
        self.saved |= {r.id: r for r in done.records}
        self.history += done.history
        if isinstance(stimulus, Tick) and (question := self.machine.ask()) is not None:
            return done.orders + self.tell(Decided(question.answer()), now)
        return done.orders

    def report(self, now: float, *runs: RunReport, cluster: str = "c0", agent: str = "a") -> Orders:
        self.seq += 1
        (orders,) = self.tell(Report(cluster, agent, 1, self.seq, self.machine.epoch, runs), now)
        return orders


def granted(spec: TaskSpec = SPEC) -> Driven:
    """Task 1 is granted to c0, the only cluster with an agent."""
    driven = Driven()
    driven.report(0.0)
    driven.tell(Submit([spec]), 0.1)
    (orders,) = driven.tell(Tick(), 0.2)
    assert [launch.id for launch in orders.starts] == [(1, 1)]
    return driven


def test_a_task_from_submission_to_its_end() -> None:
    driven = granted()
    free = driven.machine.clusters(0.2)[0]["free"]
    assert free == {"cpu": 7.0, "gpu": 4.0}, "debited at the grant"
    driven.report(0.5, RunReport((1, 1)))
    assert driven.saved[1].phase is Phase.RUNNING
    orders = driven.report(0.9, RunReport((1, 1), Outcome("finished", 0, output=12)))
    assert orders.forgets == ((1, 1),)
    assert (driven.saved[1].phase, driven.saved[1].code, driven.saved[1].output) == (Phase.FINISHED, 0, 12)
    assert driven.machine.clusters(1.0)[0]["free"] == {"cpu": 8.0, "gpu": 4.0}
    assert driven.kinds == ["joined", "submitted", "granted", "started", "ended", "finished"]


def test_a_grant_is_repeated_until_it_is_reported() -> None:
    driven = granted()
    assert [launch.id for launch in driven.report(0.5).starts] == [(1, 1)]
    assert driven.report(0.6, RunReport((1, 1))).starts == ()


def test_nothing_is_granted_where_no_agent_was_heard_of() -> None:
    driven = Driven()
    driven.tell(Submit([SPEC]), 0.1)
    assert driven.tell(Tick(), 0.2) == ()
    assert driven.machine.tasks[1].phase is Phase.QUEUED


def test_failures_are_retried_as_often_as_asked() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", retries=1))
    driven.report(0.5, RunReport((1, 1), Outcome("failed", 3)))
    assert driven.saved[1].phase is Phase.QUEUED
    (orders,) = driven.tell(Tick(), 1.5)
    assert [launch.id for launch in orders.starts] == [(1, 2)]
    driven.report(1.9, RunReport((1, 2), Outcome("failed", 4)))
    assert (driven.saved[1].phase, driven.saved[1].code, driven.saved[1].failures) == (Phase.FAILED, 4, 2)


def test_cancel_wins_over_a_result_that_is_on_its_way() -> None:
    driven = granted()
    (orders,) = driven.tell(Cancel(1), 0.5)
    assert orders.stops == ((1, 1),)
    assert orders.starts == ()
    assert driven.saved[1].cancelled, "saved before anyone is told"
    driven.report(0.9, RunReport((1, 1), Outcome("finished", 0)))
    assert driven.saved[1].phase is Phase.CANCELLED
    with pytest.raises(NotFound, match="no task 1 that could be cancelled"):
        driven.tell(Cancel(1), 1.0)


def test_a_lost_cluster_s_task_waits_for_the_lease_and_runs_elsewhere() -> None:
    driven = granted()
    driven.report(0.5, RunReport((1, 1)))
    driven.report(0.5, cluster="c1", agent="b")
    assert driven.tell(Tick(), 7.4) == ()
    driven.report(7.4, cluster="c1", agent="b")
    driven.tell(Tick(), 7.5)
    (orders,) = driven.tell(Tick(), 8.5)
    assert [(orders.cluster, launch.id) for launch in orders.starts] == [("c1", (1, 2))]
    late = driven.report(8.6, RunReport((1, 1), Outcome("finished", 0)))
    assert late.forgets == ((1, 1),)
    assert driven.machine.tasks[1].phase is Phase.PLACED, "the result of an old attempt does not count"
    assert driven.kinds[-2:] == ["joined", "refused"]


@pytest.mark.parametrize(("code", "noted"), [(3, True), (0, True), (-15, False), (None, False)])
def test_what_had_exited_just_as_it_was_stopped_is_noted(code: int | None, noted: bool) -> None:
    driven = granted()
    driven.report(0.5, RunReport((1, 1)))
    driven.tell(Tick(), 7.5)
    assert "requeued" in driven.kinds
    stopped = Outcome("stopped", code, "the lease of its agent ended")
    driven.report(7.6, RunReport((1, 1), stopped))
    assert ("refused" in driven.kinds) == noted
    assert driven.machine.tasks[1].phase is Phase.QUEUED, "nobody knows whether it has done all its work"
    driven.report(7.7, RunReport((1, 1), stopped))
    assert driven.kinds.count("refused") == noted, "once"


def test_a_task_to_be_kept_stays_with_its_silent_cluster_until_that_is_given_up() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", on_disconnect="keep", requeue_lost=False))
    driven.report(0.5, RunReport((1, 1)))
    with pytest.raises(ConfigError, match="its agent may hold a lease for 6 more seconds"):
        driven.tell(GiveUp("c0"), 1.0)
    driven.tell(Tick(), 60.0)
    assert driven.machine.tasks[1].phase is Phase.RUNNING
    driven.tell(GiveUp("c0"), 61.0)
    assert driven.saved[1].phase is Phase.LOST


def test_a_cluster_that_was_given_up_gets_another_machine() -> None:
    driven = Driven()
    for seq in (1, 2):
        driven.tell(Report("c0", "old", 5, seq, 1), 0.1)
    driven.tell(Tick(), 8.0)
    driven.tell(GiveUp("c0"), 8.1)
    (orders,) = driven.tell(Report("c0", "new", 1, 1, 1), 8.2)
    assert (orders.agent, orders.lease) == ("new", 6.0)
    assert driven.machine.clusters(8.2)[0]["connected"]


def test_an_agent_whose_numbers_began_anew_is_told() -> None:
    driven = Driven()
    driven.tell(Report("c0", "a", 5, 1, 1), 0.1)
    late = Report("c0", "a", 1, 9, 1)
    for _ in range(MOST_LATE - 1):
        assert driven.tell(late, 0.2) == ()
    with pytest.raises(AgentRefused, match=r"20 reports in a row .* \(1\.9 after 5\.1\); .* Give it a new one"):
        driven.tell(late, 0.3)
    driven.tell(Report("c0", "a", 5, 2, 1), 0.4)
    assert driven.tell(late, 0.5) == (), "they were not in a row"


def test_an_agent_that_is_not_accepted_makes_no_late_report_count() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", on_disconnect="keep"))
    late = Report("c0", "a", 1, 2, 1)
    driven.seq = 3
    driven.report(0.5, RunReport((1, 1)))
    driven.tell(Tick(), 8.0)
    (orders,) = driven.tell(Report("c0", "b", 1, 1, 0), 8.1)
    assert orders.lease == 0.0, "made before this coordinator led"
    assert driven.tell(late, 8.2) == ()
    assert driven.machine.tasks[1].phase is Phase.RUNNING, "it is older than the report that has the task"


def test_a_new_coordinator_takes_up_running_tasks() -> None:
    old = granted()
    old.report(0.5, RunReport((1, 1)))
    new = Driven([old.saved[1]], epoch=2)
    assert new.machine.clusters(0.0)[0]["free"] == {"cpu": 7.0, "gpu": 4.0}
    # A report from before it began proves nothing: the task may be missing only because it had not started then.
    (orders,) = new.tell(Report("c0", "a", 1, 5, 1, ()), 0.1)
    assert (orders.epoch, orders.lease, orders.stops) == (2, 0.0, ())
    assert new.machine.tasks[1].phase is Phase.RUNNING
    new.seq = 5
    new.report(0.2, RunReport((1, 1)))
    new.report(0.3, RunReport((1, 1), Outcome("finished", 0)))
    assert new.saved[1].phase is Phase.FINISHED
    assert "granted" not in new.kinds


def test_a_coordinator_whose_term_may_be_over_does_nothing() -> None:
    driven = granted()
    driven.machine.leads_until = 5.0
    assert driven.report(4.9, RunReport((1, 1))).lease == 6.0
    before = (driven.machine.clusters(5.0), dict(driven.machine.tasks))
    for stimulus in (Tick(), Submit([SPEC]), Cancel(1), Report("c0", "a", 1, 99, 1)):
        with pytest.raises(NotLeading, match="stands by"):
            driven.tell(stimulus, 5.0)
    assert (driven.machine.clusters(5.0), dict(driven.machine.tasks)) == before


def test_a_long_queue_hides_no_kind_of_task() -> None:
    driven = Driven()
    driven.report(0.0)
    driven.tell(Submit([TaskSpec(("work",), "small", clusters=("c1",))] * (WINDOW + 10)), 0.1)
    driven.tell(Submit([SPEC]), 0.2)
    (orders,) = driven.tell(Tick(), 0.3)
    assert [launch.id for launch in orders.starts] == [(WINDOW + 11, 1)]


def test_a_second_agent_is_refused_while_the_first_may_act() -> None:
    driven = granted()
    with pytest.raises(AgentRefused, match="'c0' has another agent, a, whose lease lasts for 6 more seconds"):
        driven.report(1.0, agent="b")
    driven.tell(Tick(), 8.0)
    assert [launch.id for launch in driven.report(8.0, agent="b").starts] == [], "the task was granted to another"


def test_a_drained_cluster_finishes_what_it_has() -> None:
    driven = granted()
    driven.tell(Drain("c0"), 0.3)
    driven.tell(Submit([SPEC]), 0.4)
    assert driven.tell(Tick(), 0.5) == ()
    driven.tell(Drain("c0", drained=False), 0.6)
    assert [launch.id for launch in driven.tell(Tick(), 0.7)[0].starts] == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TaskSpec(("x",), "smal"), "no task type 'smal'. Did you mean 'small'"),
        (TaskSpec(("x",), "small", clusters=("c9",)), "no cluster 'c9'"),
        (TaskSpec(("x" * 200_000, "y" * 70_000), "small"), "270000 characters, 262144 are possible"),
        (TaskSpec(("x",), "small", minimum={"cpu": 5}), "minimum 5 cpu, 0 gpu exceeds maximum 4 cpu, 2 gpu"),
        (TaskSpec(("x",), "small", maximum={"cpu": 9}), "'small' is from 1 cpu, 0 gpu to 4 cpu, 2 gpu"),
        (TaskSpec(("x",), "small", minimum={"tpu": 1}), "unknown: tpu"),
        (TaskSpec(("x",), "large", minimum={"gpu": 4}, clusters=("c2",)), "fits none of its eligible clusters"),
    ],
)
def test_what_could_never_run_is_refused_and_nothing_of_its_batch_is_taken(spec: TaskSpec, message: str) -> None:
    driven = Driven()
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        driven.tell(Submit([SPEC, spec]), 0.0)
    assert driven.machine.tasks == {}
    driven.tell(Submit([SPEC]), 0.1)
    assert list(driven.machine.tasks) == [1]


def test_tasks_may_ask_for_a_size_within_their_type() -> None:
    driven = Driven(scheduler=create("scheduler", "greedy", {}))
    driven.report(0.0)
    driven.tell(Submit([TaskSpec(("x",), "small", minimum={"cpu": 2}, maximum={"cpu": 3, "gpu": 1})]), 0.1)
    (orders,) = driven.tell(Tick(), 0.2)
    (launch,) = orders.starts
    assert 2 <= launch.allocation["cpu"] <= 3
    assert launch.allocation["gpu"] <= 1


class Failing:
    one_shot = True

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        raise ZeroDivisionError("oh")


def test_where_a_scheduler_fails_another_decides() -> None:
    driven = Driven(scheduler=Failing())
    driven.report(0.0)
    driven.tell(Submit([SPEC]), 0.1)
    (orders,) = driven.tell(Tick(), 0.2)
    assert [launch.id for launch in orders.starts] == [(1, 1)]
    assert "fault" in driven.kinds


# --------------------------------------------------------------- decisions that come late


def asked(*specs: TaskSpec) -> tuple[Driven, RoundQuestion]:
    """Tasks wait, c0 and c1 have agents, and a question is open."""
    driven = Driven()
    driven.report(0.0)
    driven.report(0.0, cluster="c1", agent="b")
    driven.tell(Submit(list(specs)), 0.1)
    driven.machine.handle(Tick(), 0.2)
    question = driven.machine.ask()
    assert question is not None
    return driven, question


def starts(orders: tuple[Orders, ...]) -> set[tuple[str, int]]:
    return {(o.cluster, launch.id[0]) for o in orders for launch in o.starts}


def test_one_question_at_a_time_and_the_machine_goes_on_meanwhile() -> None:
    driven, question = asked(SPEC)
    driven.tell(Submit([SPEC]), 0.3)
    assert driven.machine.ask() is None
    assert not driven.machine.wants_round
    assert len(starts(driven.tell(Decided(question.answer()), 0.4))) == 1
    assert driven.machine.wants_round, "task 2 came while the question was open"
    (_, launched) = driven.tell(Tick(), 0.5)[-1].starts
    assert launched.id == (2, 1)


def test_a_task_that_was_cancelled_meanwhile_is_not_started() -> None:
    driven, question = asked(SPEC, SPEC)
    driven.tell(Cancel(1), 0.3)
    assert {task for _, task in starts(driven.tell(Decided(question.answer()), 0.4))} == {2}
    assert driven.machine.wants_round


def test_nothing_is_started_on_a_cluster_that_was_closed_meanwhile() -> None:
    driven, question = asked(*[SPEC] * 12)
    answer = question.answer()
    assert {start.cluster for start in answer.starts} == {0, 1}, "too many for one of them"
    driven.tell(Drain("c1"), 0.3)
    assert {cluster for cluster, _ in starts(driven.tell(Decided(answer), 0.4))} == {"c0"}
    assert driven.machine.wants_round


def test_a_running_task_is_as_old_after_a_restart_as_before() -> None:
    record = TaskRecord(1, SPEC, "", 0.0, Phase.RUNNING, 1, "c0", "a", (1, 0), started=2.0)
    site = make_site()
    rounds = Rounds(site, create("scheduler", "min", {}), 10)
    machine = Coordinator(site, rounds, Leases(6.0, 1.0), 2, 10.0, Predecessor([record], next_id=2))
    (view,) = machine.snapshot.clusters[0].running
    assert (view.elapsed, view.service) == (8, (8, 0))


class Resizing:
    """Shrinks task 1 to one cpu, and starts the others with four cpus each on the first cluster."""

    one_shot = True

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        starts = tuple(Placement(task.id, 0, Resources((4, 0))) for task in snapshot.queue)
        shrinks = tuple(Resize(task.id, Resources((1, 0))) for task in snapshot.clusters[0].running)
        return Decision(starts, shrinks)


def test_resizes_are_left_out_and_what_needs_the_room_they_would_make() -> None:
    driven = Driven(scheduler=Resizing())
    driven.report(0.0)
    driven.tell(Submit([SPEC]), 0.1)
    driven.tell(Tick(), 0.2)
    driven.report(0.3, RunReport((1, 1)))
    driven.tell(Submit([SPEC, SPEC]), 0.4)
    (orders,) = driven.tell(Tick(), 0.5)
    assert [launch.id for launch in orders.starts] == [(2, 1)], "eight cpus, of which task 1 keeps its four"
    assert driven.machine.tasks[1].allocation == (4, 0)
    assert "fault" not in driven.kinds


# ------------------------------------------------------------------------- agent

LAUNCH = Launch((1, 1), ("work",), {"cpu": 1.0}, {})


def new_agent(**more: object) -> Agent:
    return Agent("c0", "a", 1, 100.0, 2.0, **more)  # type: ignore[arg-type]


def orders(seq: int = 1, echo: int = 1, epoch: int = 1, lease: float = 6.0, **more: object) -> Orders:
    return Orders("c0", "a", 1, epoch, seq, echo, lease, **more)  # type: ignore[arg-type]


def test_an_agent_starts_reports_and_forgets() -> None:
    agent = new_agent()
    assert agent.handle(AgentTick(), 100.0) == [Report("c0", "a", 1, 1, 0, ())]
    assert agent.handle(orders(starts=(LAUNCH,)), 101.0) == [
        HoldLease(106.0),  # from when the report was sent
        StartRun(LAUNCH),
        Report("c0", "a", 1, 2, 1, (RunReport((1, 1)),)),
    ]
    assert agent.handle(orders(2, starts=(LAUNCH,)), 101.1) == [], "told twice, started once"
    end = Outcome("finished", 0)
    assert agent.handle(Observed({(1, 1): end}), 102.0) == [Report("c0", "a", 1, 3, 1, (RunReport((1, 1), end),))]
    assert agent.handle(orders(3, 3, forgets=((1, 1),)), 102.1)[1:] == [ForgetRun((1, 1)), Report("c0", "a", 1, 4, 1)]


def test_an_agent_stops_its_tasks_when_the_lease_ends_but_for_those_to_be_kept() -> None:
    agent = new_agent()
    agent.handle(AgentTick(), 100.0)
    kept = Launch((2, 1), ("work",), {"cpu": 1.0}, {}, on_disconnect="keep")
    agent.handle(orders(starts=(LAUNCH, kept)), 100.1)
    assert not any(isinstance(i, StopRun) for i in agent.handle(AgentTick(), 105.9))
    assert [i for i in agent.handle(AgentTick(), 106.0) if isinstance(i, StopRun)] == [StopRun((1, 1), at_once=True)]
    assert not any(isinstance(i, StopRun) for i in agent.handle(AgentTick(), 107.0)), "once is enough"


def test_an_agent_starts_nothing_without_a_lease() -> None:
    agent = new_agent()
    agent.handle(AgentTick(), 100.0)
    assert not any(isinstance(i, StartRun) for i in agent.handle(orders(starts=(LAUNCH,)), 106.0))
    assert not any(isinstance(i, StartRun) for i in agent.handle(orders(2, lease=0.0, starts=(LAUNCH,)), 106.1))


def test_an_agent_that_nobody_answers_remembers_no_more_and_no_more() -> None:
    agent = new_agent()
    for second in range(2 * MOST_UNANSWERED):
        agent.report(100.0 + second)
    assert len(agent._sent) == MOST_UNANSWERED
    last, now = 2 * MOST_UNANSWERED, 99.0 + 2 * MOST_UNANSWERED
    forgotten = orders(1, last - MOST_UNANSWERED, lease=1e6)
    assert not any(isinstance(instruction, HoldLease) for instruction in agent.handle(forgotten, now))
    assert agent.handle(orders(2, last), now)[0] == HoldLease(now + 6.0)


def test_an_agent_says_that_what_it_never_started_never_will() -> None:
    agent = new_agent()
    agent.handle(AgentTick(), 100.0)
    (_, report) = agent.handle(orders(stops=((1, 1),)), 100.1)
    assert isinstance(report, Report)
    assert report.runs == (RunReport((1, 1), Outcome("stopped", reason="it had not started")),)


@pytest.mark.parametrize(
    "late",
    [
        orders(5, epoch=2, starts=(LAUNCH,)),
        orders(9, epoch=1, starts=(LAUNCH,)),
        Orders("c0", "a", 0, 3, 9, 1, 6.0, (LAUNCH,)),
        Orders("c0", "other", 1, 3, 9, 1, 6.0, (LAUNCH,)),
    ],
    ids=["copy", "old coordinator", "predecessor", "other agent"],
)
def test_an_agent_does_not_obey_what_is_late_or_meant_for_others(late: Orders) -> None:
    agent = new_agent()
    agent.handle(AgentTick(), 100.0)
    agent.handle(orders(5, epoch=2), 100.1)
    assert agent.handle(late, 100.2) == []


def test_a_restarted_agent_goes_on_with_what_it_finds() -> None:
    found = [Found((1, 1), "stop", None), Found((2, 3), "stop", Outcome("finished", 0))]
    agent = new_agent(found=found, lease_until=103.0)
    (report,) = agent.handle(AgentTick(), 100.0)
    assert isinstance(report, Report)
    assert [run.id for run in report.runs] == [(1, 1), (2, 3)]
    assert StopRun((1, 1), at_once=True) in agent.handle(AgentTick(), 103.0)


def test_a_cluster_that_was_given_up_is_closed_at_once() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", on_disconnect="keep"))
    driven.machine._links["c0"].ends = 0.2  # as after a pause in which no tick came
    question = None
    driven.machine.handle(Submit([SPEC]), 0.3)
    question = driven.machine.ask()
    assert question is not None
    driven.tell(GiveUp("c0"), 0.4)
    driven.tell(Decided(question.answer()), 0.5)
    assert [record.phase for record in driven.machine.tasks.values()] == [Phase.QUEUED] * 2
