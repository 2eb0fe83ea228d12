"""Attempts in vain: rests that grow, an end to losses, late results, and lines of history that stay few."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import mean, median
from types import SimpleNamespace

import pytest
from live.protocol import CAPACITIES, World
from live.test_machines import SPEC, Driven, granted
from live.test_protocol import NeverRests

from tapfinger.commands import insight
from tapfinger.core.contract import Phase
from tapfinger.live.coordinator import late_results, machine, resizing
from tapfinger.live.coordinator.inputs import Cancel, Submit, Tick
from tapfinger.live.coordinator.late_results import LateResults, lost_in
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.coordinator.pauses import LONG, RESTS, Resting, rest
from tapfinger.live.insight.explain import rests
from tapfinger.live.protocol.events import Granted
from tapfinger.live.protocol.messages import Outcome, RunReport
from tapfinger.live.protocol.records import TaskRecord, TaskSpec

LOST = Outcome("lost", reason="its supervisor was killed")


def lose(driven: Driven, now: float, outcome: Outcome = LOST) -> TaskRecord:
    """The attempt that task 1 has now ends in vain."""
    driven.report(now, RunReport((1, driven.machine.tasks[1].attempt), outcome))
    return driven.saved[1]


def again(driven: Driven, now: float) -> float:
    """Report until task 1 is granted again; returns when that was."""
    while not driven.machine.tasks[1].on_cluster:
        now += 0.5
        driven.report(now)
        driven.tell(Tick(), now)
    return now


def test_rests_grow_and_ten_losses_in_a_row_are_the_end() -> None:
    driven, now, grants = granted(), 0.2, [0.2]
    for n, seconds in enumerate([*RESTS, *RESTS[-1:] * 3], 1):
        record = lose(driven, now)
        assert (record.phase, record.setbacks, record.not_before) == (Phase.QUEUED, n, now + seconds)
        assert driven.machine.waiting == 1
        assert not driven.machine.snapshot.queue, "schedulers do not see it"
        assert driven.machine.next_due == now + seconds
        grants.append(again(driven, now))
        assert seconds - 1e-6 <= grants[-1] - now <= seconds + 1.0
        now = grants[-1]
    assert sum(at <= 3600.0 for at in grants) == 9
    record = lose(driven, now)
    assert (record.phase, record.losses) == (Phase.LOST, 10)
    assert record.reason == "it was lost 10 times in a row; the last time: its supervisor was killed"


def test_failures_rest_by_the_same_rule_and_end_by_their_own() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", retries=2))
    assert lose(driven, 1.0, Outcome("failed", 3)).not_before == 2.0
    assert lose(driven, again(driven, 1.0)).setbacks == 2
    now = again(driven, driven.saved[1].not_before)
    assert lose(driven, now, Outcome("failed", 3)).not_before == now + RESTS[2]
    record = lose(driven, again(driven, now), Outcome("failed", 4))
    assert (record.phase, record.code, record.failures, record.losses) == (Phase.FAILED, 4, 3, 1)


def test_an_attempt_that_ran_for_long_begins_the_count_anew() -> None:
    driven = granted()
    lose(driven, 1.0)
    now = again(driven, 1.0)
    driven.report(now, RunReport((1, 2)))
    for step in range(int(LONG)):
        driven.report(now + step, RunReport((1, 2)))
    record = lose(driven, now + LONG)
    assert (record.phase, record.setbacks, record.lost_in_a_row, record.losses) == (Phase.QUEUED, 0, 0, 2)
    assert [view.id for view in driven.machine.snapshot.queue] == [1], "it need not rest"


def test_a_rest_outlives_the_coordinator_but_not_a_clock_that_was_ahead() -> None:
    record = lose(granted(), 0.0)
    assert record.not_before == 1.0
    new = Driven([record], epoch=2)
    new.report(0.1)
    assert new.tell(Tick(), 0.9) == ()
    (orders,) = new.tell(Tick(), 1.0)
    assert [launch.id for launch in orders.starts] == [(1, 2)]
    new = Driven([replace(lose(granted(), 0.0), not_before=1e9)], epoch=2)
    assert new.machine.next_due == rest(1)


def test_a_task_with_a_size_of_its_own_stops_nobody_after_a_restart() -> None:
    """Schedulers are told of its type again: one that they do not know would let each of them fail for ever."""
    own = replace(SPEC, minimum={"cpu": 2.0})
    rests = TaskRecord(1, own, "me", 0.0, attempt=1, setbacks=2, not_before=4.0)
    new = Driven([rests, TaskRecord(2, SPEC, "you", 0.0)], epoch=2)
    assert "small[2,0:4,2]" in new.site.sizes, "its size counts while it rests"
    new.report(0.1)
    new.tell(Tick(), 0.2)
    new.tell(Tick(), 4.5)
    assert all(record.on_cluster for record in new.machine.tasks.values())
    assert "fault" not in new.kinds


def test_a_resting_task_keeps_its_place_in_the_queue() -> None:
    driven = granted()
    lose(driven, 1.0)
    driven.tell(Submit([SPEC] * 20), 1.5)
    driven.report(2.0)
    driven.tell(Tick(), 2.0)
    assert driven.machine.tasks[1].on_cluster, "it is the oldest"


def test_a_resting_task_can_be_cancelled() -> None:
    driven = granted()
    lose(driven, 1.0)
    driven.tell(Cancel(1), 1.5)
    assert driven.saved[1].phase is Phase.CANCELLED
    assert driven.machine.next_due == float("inf")
    driven.tell(Tick(), 5.0)


def test_the_order_of_rests_forgets_those_that_ended_early() -> None:
    resting = Resting()
    for task, until in ((1, 5.0), (2, 3.0), (3, 4.0)):
        resting.add(task, until)
    assert resting.discard(2)
    assert not resting.discard(2)
    assert (resting.next, 3 in resting, 2 in resting) == (4.0, True, False)
    resting.discard(3)
    resting.add(3, 9.0)
    assert resting.end(5.0) == [1]
    assert resting.end(100.0) == [3]


def test_explain_says_until_when_and_why() -> None:
    driven = granted()
    record = lose(driven, 1.0)
    assert rests(record, 1.5).endswith("(in 0.5 s): its attempt was lost because: its supervisor was killed.")
    record = lose(driven, again(driven, 1.0))
    assert "its attempts were lost 2 times in a row, the last time because: its s" in rests(record, record.not_before)
    record.lost_in_a_row = 1
    assert "its attempts failed or were lost 2 times in a row" in rests(record, record.not_before)
    record.lost_in_a_row, record.reason, record.code = 0, "", 3
    assert rests(record, record.not_before).endswith("failed 2 times in a row, the last time with code 3.")


def test_the_command_shows_no_empty_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"phase": "queued", "summary": "Task 1 rests.", "clusters": [], "overtaken_by": [], "waited": 2.0}
    told["estimate"] = {"seconds": 3.0, "how": "it rests until then"}

    @contextmanager
    def client(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(explain=lambda _: told)

    monkeypatch.setattr(insight, "open_client", client)
    insight.explain(1)
    said = capsys.readouterr().out
    assert "rests" in said
    assert "in about 3.0 s" in said
    assert "verdict" not in said


# -------------------------------------------------------------------- late results


def silent() -> Driven:
    """Task 1 ran on c0, whose lease has ended: it rests."""
    driven = granted()
    driven.report(0.5, RunReport((1, 1)))
    driven.tell(Tick(), 8.0)
    assert driven.saved[1].phase is Phase.QUEUED
    return driven


@pytest.mark.parametrize("rested", [False, True])
def test_the_result_of_a_lost_attempt_counts_while_there_is_no_newer_one(rested: bool) -> None:
    driven = silent()
    if rested:
        driven.tell(Tick(), 9.5)
        assert driven.machine.snapshot.queue
    orders = driven.report(9.6, RunReport((1, 1), Outcome("finished", 0, output=5)))
    assert orders.forgets == ((1, 1),)
    record = driven.saved[1]
    assert (record.phase, record.code, record.cluster, record.started, record.losses) == (
        Phase.FINISHED,
        0,
        "c0",
        0.5,
        0,
    )
    assert record.warnings == (machine.LATE,), "its duration teaches nothing"
    assert driven.kinds[-3:] == ["recovered", "ended", "finished"]


def test_a_late_failure_counts_as_the_failure_that_it_was() -> None:
    driven = silent()
    driven.report(8.1, RunReport((1, 1), Outcome("failed", 7)))
    record = driven.saved[1]
    assert (record.phase, record.failures, record.losses, record.setbacks) == (Phase.FAILED, 1, 0, 1)


def test_a_late_result_of_another_agent_does_not_count() -> None:
    driven = silent()
    driven.report(8.1, RunReport((1, 1), Outcome("finished", 0)), cluster="c1", agent="b")
    assert driven.saved[1].phase is Phase.QUEUED


def test_a_result_that_comes_too_late_is_noted_once() -> None:
    driven = silent()
    driven.report(9.0, cluster="c1", agent="b")
    driven.tell(Tick(), 9.1)
    assert driven.saved[1].attempt == 2
    for n in range(20):
        late = RunReport((1, 1), Outcome("finished", 0))
        future = RunReport((1, 2 + n), Outcome("finished", 0))
        driven.report(9.2 + n / 10, late, future)
    assert driven.kinds.count("refused") == 2, "attempts 1 and 2, which is another agent's"


def ended_elsewhere() -> Driven:
    """A task whose first attempt was lost, and whose second finished on another cluster."""
    driven = silent()
    driven.report(9.0, cluster="c1", agent="b")
    driven.tell(Tick(), 9.1)
    driven.report(9.2, RunReport((1, 2), Outcome("finished", 0)), cluster="c1", agent="b")
    assert driven.saved[1].phase is Phase.FINISHED
    return driven


def test_a_result_that_comes_after_the_end_of_its_task_is_noted_once() -> None:
    driven = ended_elsewhere()
    driven.report(9.3, RunReport((1, 2), Outcome("finished", 0)), cluster="c1", agent="b")
    assert "refused" not in driven.kinds, "a result that counted and is told again"
    for n in range(3):
        orders = driven.report(9.4 + n / 10, RunReport((1, 1), Outcome("finished", 0)))
        assert orders.forgets == ((1, 1),)
    assert driven.kinds.count("refused") == 1


def test_a_new_coordinator_knows_which_attempts_were_lost() -> None:
    driven = ended_elsewhere()
    assert lost_in(driven.history) == [(1, 1)]
    driven.report(9.4, RunReport((1, 1), Outcome("finished", 0)))
    assert lost_in(driven.history) == []


def test_few_lost_attempts_are_remembered() -> None:
    late = LateResults([(1, 1)])
    for n in range(late_results.MOST):
        late.add((2, n))
    assert not late.take((1, 1)), "the oldest goes first"
    assert late.take((2, 0))
    assert not late.take((2, 0)), "once"


def test_warnings_and_resizes_of_a_task_end() -> None:
    driven = granted(TaskSpec(argv=("work",), type="small", retries=1000))
    now = 0.2
    for n in range(30):
        ident = (1, driven.machine.tasks[1].attempt)
        driven.report(now, RunReport(ident, Outcome("failed", 1), faults=tuple(f"{n}.{k}" for k in range(50))))
        now = driven.machine.next_due
        driven.report(now)
        driven.tell(Tick(), now)
    assert driven.kinds.count("warning") == machine.MOST_WARNED
    driven = granted(TaskSpec(argv=("work",), type="small", resizable=True))
    driven.report(0.5, RunReport((1, 1)))
    assert driven.machine._resizable == [1]
    driven.machine.tasks[1].resized = resizing.MOST
    assert driven.machine._resizable == []


# ------------------------------------------------------------------- other tasks


def waits(hopeless: int, coordinator: type[Coordinator] = Coordinator) -> list[float]:
    """Seconds that healthy tasks wait on a site without troubles, beside tasks that nothing can start."""
    world = World(1, coordinator)
    world.trouble = False
    for host, capacity in zip(world.hosts.values(), CAPACITIES, strict=True):
        host.capacity = capacity
    bad = TaskSpec(argv=("work",), type="small", env={"RAISES": "yes", "MARK": "bad"}, retries=1000)
    for _ in range(20):
        world.step()  # every agent is heard
    if hopeless:
        world.tell(Submit([bad] * hopeless))
    good = 0
    for step in range(1200):
        if step % 3 == 0 and good < 300:
            good += 1
            env = {"FAKE_SECONDS": f"{2 + good % 5}", "MARK": f"good {good}"}
            world.tell(Submit([TaskSpec(argv=("work",), type=("small", "large")[good % 2], env=env)]))
        world.step()
    first = {line.task: line.at for line in reversed(world.disk.history) if isinstance(line, Granted)}
    healthy = [r for r in world.disk.records.values() if "RAISES" not in r.spec.env]
    assert len(healthy) == 300
    return [first.get(record.id, world.now) - record.submitted for record in healthy]


def test_no_task_is_delayed_by_another_s_failures() -> None:
    alone, beside = waits(0), waits(8)
    assert median(beside) <= 1.05 * median(alone)
    assert mean(beside) <= 1.05 * mean(alone)
    assert mean(waits(8, NeverRests)) > 2.0 * mean(alone), "or this would prove nothing"
