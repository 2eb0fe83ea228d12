"""The readable simulator: who ends when, on hand-computed cases."""

from typing import Any

import pytest
from helpers import R, Scripted, StartAll, log_of, make_workload, make_world, place, resize

from tapfinger.core import session as session_module
from tapfinger.core.contract import Decision, Placement, SchedulerContext, Snapshot
from tapfinger.core.events import ClusterJoined, ClusterLost, Event, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.model import Noise, unit_uniform
from tapfinger.errors import CapacityExceeded, InvalidDecision
from tapfinger.sim import run as run_module
from tapfinger.sim.run import StuckError, run_scheduler
from tapfinger.workloads.world import draw_workload


def of_slots(slots: float, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": "steady",
            "minimum": {"cpu": 2, "gpu": 1},
            "maximum": {"cpu": 16, "gpu": 16},
            "speed": {"kind": "constant", "slots": slots},
            **more,
        }
    ]


def ends(events: list[Event]) -> dict[int, int]:
    """Task -> slot in which it ended."""
    return {e.task: e.slot for e in events if isinstance(e, TaskFinished)}


@pytest.mark.parametrize("slots", [1, 4, 10])
def test_completion_is_end_minus_arrival_plus_one(slots: int) -> None:
    world = make_world(task_types=of_slots(slots))
    events, totals = log_of(world, StartAll(), make_workload([0, 3]))
    assert ends(events) == {0: slots - 1, 1: 3 + slots - 1}
    assert totals.total_completion_time == 2 * slots


def test_waiting_counts_towards_completion() -> None:
    # Two tasks that need the whole cluster: the second waits four slots, then runs four.
    events, totals = log_of(make_world(), StartAll(16, 16), make_workload([0, 0]))
    assert ends(events) == {0: 3, 1: 7}
    assert totals.total_completion_time == 4 + 8


def test_what_ends_in_a_slot_is_free_in_the_next() -> None:
    events, _ = log_of(make_world(task_types=of_slots(1)), StartAll(16, 16), make_workload([0, 0, 0]))
    assert ends(events) == {0: 0, 1: 1, 2: 2}


def test_order_of_events_within_and_between_slots() -> None:
    world = make_world(task_types=of_slots(1))
    events, _ = log_of(world, StartAll(16, 16), make_workload([0, 1, 1]))
    assert [(e.slot, type(e).__name__) for e in events] == [
        (0, "TaskArrived"),
        (0, "TaskStarted"),
        (0, "TaskFinished"),
        (1, "TaskArrived"),
        (1, "TaskArrived"),
        (1, "TaskStarted"),
        (1, "TaskFinished"),
        (2, "TaskStarted"),
        (2, "TaskFinished"),
    ]


def test_the_papers_sensitive_task_takes_as_long_as_its_profile_says() -> None:
    speed = {"kind": "tanh", "resource": "gpu", "scale": 16, "shape_offset": 1.2}
    world = make_world(task_types=of_slots(1, speed=speed))
    for gpu, slots in ((1, 21), (2, 10), (5, 4), (9, 3), (10, 2), (16, 2)):
        events, _ = log_of(world, StartAll(2, gpu), make_workload([0]))
        assert ends(events) == {0: slots - 1}


def test_schedulers_see_progress_only_if_tasks_report_it() -> None:
    for reports, expected in ((True, [None, 0.25, 0.5, 0.75]), (False, [None] * 4)):
        scheduler = Scripted({(0, 0): place(0, 0, 2, 1)})
        log_of(make_world(reports_progress=reports), scheduler, make_workload([0]))
        seen = [s.clusters[0].running[0].progress for s in scheduler.seen if s.clusters[0].running]
        assert seen == expected


# ----------------------------------------------------------------- switching


@pytest.mark.parametrize(("cost", "end"), [(0.0, 3), (0.25, 4), (0.5, 4), (1.0, 4), (1.5, 5), (2.0, 5)])
def test_a_resize_loses_its_share_of_a_slots_gain(cost: float, end: int) -> None:
    # Four slots of 0.25; with half a slot lost, 0.875 is done after four slots and a fifth is needed.
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (2, 0): resize(0, 4, 4)})
    events, _ = log_of(make_world(switching_cost=cost), scheduler, make_workload([0]))
    assert ends(events) == {0: end}


def test_half_a_slots_gain_is_lost_exactly_once() -> None:
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (1, 0): resize(0, 4, 4)})
    log_of(make_world(switching_cost=0.5), scheduler, make_workload([0]))
    progress = [s.clusters[0].running[0].progress for s in scheduler.seen if s.turn == 0 and s.clusters[0].running]
    assert progress == [0.25, 0.375, 0.625, 0.875]


def test_a_resize_to_the_same_size_costs_nothing() -> None:
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (2, 0): resize(0, 2, 1)})
    events, _ = log_of(make_world(switching_cost=0.5), scheduler, make_workload([0]))
    assert ends(events) == {0: 3}


def test_a_paused_task_keeps_its_progress_and_pays_when_it_resumes() -> None:
    for cost, end in ((0.0, 6), (0.5, 7)):
        script = {(0, 0): place(0, 0, 2, 1), (1, 0): resize(0, 0, 0), (4, 0): resize(0, 2, 1)}
        scheduler = Scripted(script)
        events, totals = log_of(make_world(switching_cost=cost), scheduler, make_workload([0]))
        assert ends(events) == {0: end}
        assert totals.total_completion_time == end + 1
        paused = [s.clusters[0].paused[0] for s in scheduler.seen if s.clusters[0].paused]
        assert {(t.progress, t.elapsed) for t in paused} == {(0.25, 1)}


# --------------------------------------------------------------------- noise


@pytest.mark.parametrize("kind", ["additive", "relative"])
def test_noise_follows_the_tasks_key_and_its_own_running_slots(kind: str) -> None:
    world = make_world(noise={"kind": kind, "amplitude": 0.1})
    # Paused for two slots: the noise of its second running slot is the same as without the pause.
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (1, 0): resize(0, 0, 0), (3, 0): resize(0, 2, 1)})
    work = make_workload([0])
    log_of(world, scheduler, work)
    seen = [s.clusters[0].running[0].progress for s in scheduler.seen if s.turn == 0 and s.clusters[0].running]
    expected, at = [], 0.0
    for counter in range(3):
        at += Noise(kind, 0.1).apply(0.25, int(work.noise_key[0]), counter)
        expected.append(at)
    assert seen[:3] == pytest.approx([expected[0], expected[1], expected[2]])
    assert unit_uniform(int(work.noise_key[0]), 0) != unit_uniform(int(work.noise_key[0]), 1)


# ------------------------------------------------------------------- outages


def test_an_outage_sends_tasks_back_and_they_start_anew() -> None:
    world = make_world(outages=[{"cluster": 0, "start": 2, "end": 5}])
    events, totals = log_of(world, StartAll(8, 8), make_workload([0, 0]))
    assert [e for e in events if isinstance(e, ClusterLost | ClusterJoined)] == [ClusterLost(2, 0), ClusterJoined(5, 0)]
    assert [(e.slot, e.task) for e in events if isinstance(e, TaskStarted)] == [(0, 0), (0, 1), (5, 0), (5, 1)]
    assert ends(events) == {0: 8, 1: 8}
    assert totals.total_completion_time == 18


def test_a_task_that_ends_as_its_cluster_goes_has_ended() -> None:
    world = make_world(outages=[{"cluster": 0, "start": 4, "end": 5}])
    events, _ = log_of(world, StartAll(), make_workload([0]))
    assert ends(events) == {0: 3}


def test_other_clusters_go_on_and_take_over() -> None:
    two = [{"name": "c", "count": 2, "capacity": {"cpu": 2, "gpu": 1}}]
    world = make_world(clusters=two, outages=[{"cluster": 0, "start": 2, "end": 100}])
    events, _ = log_of(world, StartAll(), make_workload([0, 0], clusters=2))
    assert [(e.slot, e.task, e.cluster) for e in events if isinstance(e, TaskStarted)] == [
        (0, 0, 0),
        (0, 1, 1),
        (4, 0, 1),
    ]
    assert ends(events) == {1: 3, 0: 7}


# -------------------------------------------------------------- whole worlds


def test_three_resources_with_units_by_configuration_alone() -> None:
    world = make_world(
        resources={"cpu": 1, "gpu": 1, "memory": 4},
        clusters=[{"name": "c0", "capacity": {"cpu": 16, "gpu": 4, "memory": 64}}],
        task_types=of_slots(
            3,
            minimum={"cpu": 1, "gpu": 0, "memory": 16},
            maximum={"cpu": 4, "gpu": 1, "memory": 32},
            speed={"kind": "amdahl", "seconds": 60, "parallel": {"cpu": 0.5, "memory": 0.5}},
        ),
    )
    assert world.clusters[0].capacity == (16, 4, 16)
    assert world.task_types[0].minimum == (1, 0, 4)
    # At the minimum 60 s are six slots; twice the memory and twice the cpus halve it.
    assert world.task_types[0].profile.slots((1, 0, 4)) == 6
    assert world.task_types[0].profile.slots((2, 0, 8)) == 3
    events, totals = log_of(world, StartAll(), make_workload([0] * 5))
    # Memory is what runs out: four at a time, then one.
    assert ends(events) == {0: 5, 1: 5, 2: 5, 3: 5, 4: 11}
    assert totals.total_completion_time == 4 * 6 + 12


def test_the_same_seed_gives_the_same_event_log_and_another_seed_another() -> None:
    world = make_world(noise={"kind": "additive", "amplitude": 0.1})
    first, again, other = (log_of(world, StartAll(), seed=seed)[0] for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_arrivals_do_not_depend_on_the_scheduler() -> None:
    world = make_world(arrivals={"kind": "poisson", "rate": 2})
    logs = [log_of(world, scheduler, seed=3)[0] for scheduler in (StartAll(), StartAll(16, 16))]
    came = [[e for e in log if isinstance(e, TaskArrived)] for log in logs]
    assert came[0] == came[1]
    assert logs[0] != logs[1]


def test_the_objective_equals_the_sum_of_completion_times() -> None:
    world = make_world(tasks=60, arrivals={"kind": "poisson", "rate": 3})
    work = draw_workload(world, 1)
    events, totals = log_of(world, StartAll(4, 4), work)
    assert totals.total_completion_time == sum(end - int(work.slot[task]) + 1 for task, end in ends(events).items())
    assert totals.tasks == 60


def test_a_bad_decision_ends_the_run_with_its_error() -> None:
    with pytest.raises(CapacityExceeded):
        run_scheduler(
            make_world(),
            Scripted({(0, 0): Decision(placements=(Placement(0, 0, R([16, 16])), Placement(1, 0, R([2, 1]))))}),
            0,
            workload=make_workload([0, 0]),
        )


def test_decisions_are_timed_in_slots_that_begin_with_a_waiting_task() -> None:
    # Arrivals in slots 0, 9 and 10; with room for one task at a time, task 2 waits until it can start in slot 13.
    _, totals = log_of(make_world(), StartAll(16, 16), make_workload([0, 9, 10]))
    assert totals.slots == 17
    assert len(totals.decision_seconds) == 6
    assert min(totals.decision_seconds) > 0
    # Resizing over an empty queue, in a slot before or after, is not added to another slot's time.
    restless = Scripted({(0, 0): place(0, 0, 2, 1), (1, 0): resize(0, 3, 1), (1, 1): resize(0, 4, 1)})
    _, totals = log_of(make_world(), restless, make_workload([0]))
    assert len(totals.decision_seconds) == 1


def test_a_scheduler_that_resizes_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_TURNS", 20)
    resizes = {(1, turn): resize(0, 3 + turn % 2, 1) for turn in range(1000)}
    restless = Scripted({(0, 0): place(0, 0, 2, 1), **resizes})
    with pytest.raises(InvalidDecision, match=r"^Scripted was still not void"):
        run_scheduler(make_world(), restless, 0, workload=make_workload([0]))


# ------------------------------------------------------------ runs without end


class Refuses(StartAll):
    """Starts nothing for its first slots after a task comes."""

    def __init__(self, patience: int) -> None:
        super().__init__()
        self._patience = patience

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        waited = snapshot.slot - max((t.arrival for t in snapshot.queue), default=0)
        return super().decide(snapshot) if waited >= self._patience else Decision()


def test_a_scheduler_that_never_starts_a_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "STUCK_SLOTS", 50)
    with pytest.raises(StuckError, match="Refuses has started nothing for 51 slots although 1 tasks wait"):
        log_of(make_world(), Refuses(10_000), make_workload([0]))


def test_long_quiet_times_patience_and_outages_are_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "STUCK_SLOTS", 50)
    events, _ = log_of(make_world(), Refuses(40), make_workload([0, 500]))
    assert ends(events) == {0: 43, 1: 543}
    world = make_world(outages=[{"cluster": 0, "start": 1, "end": 200}])
    events, _ = log_of(world, Refuses(30), make_workload([1]))
    assert ends(events) == {0: 203}


def test_a_task_longer_than_the_limit_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "STUCK_SLOTS", 50)
    events, _ = log_of(make_world(task_types=of_slots(300)), StartAll(), make_workload([0]))
    assert ends(events) == {0: 299}
