import numpy as np
import pytest
from helpers import R, constant_type, make_task
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import load_scenario
from tapfinger.core.events import (
    ClusterClosed,
    ClusterJoined,
    ClusterLost,
    TaskArrived,
    TaskFailed,
    TaskFinished,
    TaskRequeued,
    TaskResized,
    TaskStarted,
    TaskWithdrawn,
)
from tapfinger.core.model import Cluster
from tapfinger.evaluation import accumulate
from tapfinger.evaluation.accumulate import SlotSeries, align
from tapfinger.evaluation.metrics import MetricsCollector
from tapfinger.evaluation.specs import parse_spec
from tapfinger.records import EventLog, LogHeader, read_events
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.world import build_world

SMALL = constant_type((2, 1), (4, 4), name="small")
BIG = constant_type((4, 3), (4, 4), name="big")
CLUSTERS = (Cluster("c0", R((4, 4))), Cluster("c1", R((4, 4))))


def measure(*events, clusters=CLUSTERS):
    collector = MetricsCollector(("cpu", "gpu"), clusters, (SMALL, BIG))
    for event in events:
        collector(event)
    return collector.record("toy", "by hand", 0)


def arrived(ident, slot, eligible=(0,), kind=SMALL):
    return TaskArrived(slot, make_task(ident, kind, slot, eligible))


def test_times_of_a_task():
    record = measure(arrived(5, 1), TaskStarted(3, 5, 0, R((2, 1))), TaskFinished(6, 5, 0))
    assert (record.completion.tolist(), record.waiting_time.tolist(), record.running.tolist()) == ([6], [2], [4])
    assert (record.start[0], record.end[0], record.slots, record.tasks) == (3, 6, 7, 1)
    assert record.in_system.tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert record.waiting.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert record.used[:, 0].tolist() == [[0, 0]] * 3 + [[2, 1]] * 4
    assert record.utilisation == pytest.approx([8 / 56, 4 / 56])
    assert record.cluster_utilisation == pytest.approx(np.array([[8 / 28, 4 / 28], [0, 0]]))


def test_a_withdrawn_task_leaves_the_queue_and_is_no_failure():
    record = measure(arrived(0, 0), arrived(1, 0), TaskStarted(0, 0, 0, R((2, 1))), TaskWithdrawn(1, 1))
    assert record.in_system.tolist() == [2, 2]
    assert record.waiting.tolist() == [1, 1]
    record = measure(arrived(0, 0), TaskWithdrawn(1, 0), arrived(1, 5))
    assert (record.tasks, record.failed, len(record.completion)) == (2, 0, 0)
    assert record.in_system.tolist() == [1, 1, 0, 0, 0]


def test_a_requeued_task_waits_again_and_gives_back_what_it_held():
    record = measure(
        arrived(0, 0, (0, 1)),
        TaskStarted(0, 0, 0, R((2, 1))),
        TaskRequeued(1, 0, 0),
        TaskStarted(4, 0, 1, R((4, 4))),
        TaskFinished(5, 0, 1),
    )
    assert record.waiting.tolist() == [0, 0, 1, 1, 0, 0]
    assert record.used[:, 0].tolist() == [[2, 1]] * 2 + [[0, 0]] * 4
    assert record.used[:, 1].tolist() == [[0, 0]] * 4 + [[4, 4]] * 2
    assert (record.completion[0], record.running[0], record.start[0], record.cluster[0]) == (6, 4, 0, 1)


def test_what_is_free_on_a_closed_cluster_is_not_idle():
    clusters = CLUSTERS[:1]
    events = [arrived(0, 0), TaskStarted(0, 0, 0, R((2, 1))), arrived(1, 1), ClusterClosed(1, 0)]
    # Open in slot 1: half of the cpus and three of four gpus idle while task 1 waits. Closed in slots 2 and 3.
    record = measure(*events, ClusterJoined(4, 0), TaskStarted(4, 1, 0, R((2, 1))), clusters=clusters)
    assert record.idle == pytest.approx([2 / (4 + 2 + 2), 3 / (4 + 1 + 1)])
    assert record.used[:, 0].tolist() == [[2, 1]] * 4


def test_pauses_are_waiting_and_the_last_size_counts():
    record = measure(
        arrived(0, 0),
        TaskStarted(0, 0, 0, R((2, 1))),
        TaskResized(2, 0, 0, R((0, 0))),
        TaskResized(5, 0, 0, R((4, 3))),
        TaskFinished(6, 0, 0),
    )
    assert (record.running[0], record.waiting_time[0], record.completion[0]) == (4, 3, 7)
    assert record.allocation.tolist() == [[4, 3]]
    assert record.used[:, 0, 1].tolist() == [1, 1, 0, 0, 0, 3, 3]


def test_a_lost_cluster_sends_its_tasks_back():
    record = measure(
        arrived(0, 0, (0, 1)),
        TaskStarted(0, 0, 0, R((4, 4))),
        ClusterLost(2, 0),
        TaskStarted(3, 0, 1, R((2, 1))),
        ClusterJoined(4, 0),
        TaskFinished(4, 0, 1),
    )
    assert (record.running[0], record.waiting_time[0], record.cluster[0], record.start[0]) == (4, 1, 1, 0)
    assert record.waiting.tolist() == [0, 0, 1, 0, 0]
    assert record.used[:, 0, 0].tolist() == [4, 4, 0, 0, 0]
    # In the one waiting slot only c1 is there, wholly free, and the task would fit.
    assert (record.idle.tolist(), record.held_back.tolist(), record.waiting_slots) == ([1, 1], [1, 1], 1)


def test_failed_tasks_are_counted_apart():
    record = measure(
        arrived(0, 0),
        arrived(1, 0),
        TaskStarted(0, 0, 0, R((2, 1))),
        TaskStarted(0, 1, 0, R((2, 1))),
        TaskFailed(0, 0, 0),
        TaskFinished(1, 1, 0),
    )
    assert (record.tasks, record.failed, record.task.tolist()) == (2, 1, [1])
    assert record.in_system.tolist() == [2, 1]


def test_fragmentation_tells_stranded_from_held_back():
    record = measure(
        arrived(0, 0, (0,)),
        arrived(1, 0, (0, 1), BIG),
        arrived(2, 0, (1,)),
        # Slot 0: c0 has (2, 3) free, and only the big one waits for it, which does not fit: stranded.
        # c1 is wholly free, and both who wait for it fit: held back.
        TaskStarted(0, 0, 0, R((2, 1))),
        # Slot 1: task 2 takes half of c1; the big one fits nowhere: all free amounts are stranded.
        TaskStarted(1, 2, 1, R((2, 2))),
        TaskFinished(1, 0, 0),
        TaskFinished(1, 2, 1),
        TaskStarted(2, 1, 0, R((4, 4))),
        TaskFinished(2, 1, 0),
    )
    assert record.waiting_slots == 2
    assert record.idle == pytest.approx([(6 + 4) / 16, (7 + 5) / 16])
    assert record.stranded == pytest.approx([(2 + 4) / 16, (3 + 5) / 16])
    assert record.held_back == pytest.approx([4 / 16, 4 / 16])


def test_overtaking_counts_later_arrivals_on_usable_clusters():
    record = measure(
        arrived(0, 0, (0, 1)),
        arrived(1, 1, (0,)),
        TaskStarted(1, 1, 0, R((2, 1))),  # overtakes 0
        TaskFinished(1, 1, 0),
        arrived(2, 2, (0,)),
        TaskStarted(2, 0, 0, R((2, 1))),
        TaskStarted(2, 2, 0, R((2, 1))),  # starts in the same slot: overtakes nobody
        TaskFinished(2, 0, 0),
        TaskFinished(2, 2, 0),
    )
    assert record.overtaken.tolist() == [1, 0, 0]


def test_a_cluster_that_cannot_hold_the_minimum_is_not_usable():
    tiny = (Cluster("c0", R((1, 1))), Cluster("c1", R((4, 4))))
    record = measure(
        arrived(0, 0, (0, 1), BIG),
        TaskStarted(1, 0, 1, R((4, 3))),
        TaskFinished(1, 0, 1),
        clusters=tiny,
    )
    # Slot 0: the free unit of c0 is idle, but neither stranded nor held back.
    assert record.idle.tolist() == [1, 1]
    assert record.held_back == pytest.approx([4 / 5, 4 / 5])
    assert record.stranded.tolist() == [0, 0]


def brute_force_overtaken(arrival, start, cluster, eligible):
    return [
        sum(arrival[k] > arrival[j] and start[k] < start[j] and cluster[k] in eligible[j] for k in range(len(arrival)))
        for j in range(len(arrival))
    ]


@pytest.mark.parametrize(("scheduler", "tasks", "rate"), [("random", 150, 6), ("min@pending=2", 400, 0.9)])
def test_overtaking_equals_brute_force(scheduler, tasks, rate):
    overrides = [f"tasks={tasks}", f"arrivals.rate={rate}", "clusters.0.capacity.gpu=4"]
    world = build_world(load_scenario("multi-3", overrides))
    collector = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    eligible = {}
    totals = run_scheduler(
        world,
        parse_spec(scheduler).create(),
        3,
        (collector, lambda e: eligible.update({e.task.id: e.task.eligible}) if isinstance(e, TaskArrived) else None),
    )
    record = collector.record("x", scheduler, 3)
    expected = brute_force_overtaken(record.arrival, record.start, record.cluster, eligible)
    assert record.overtaken.tolist() == expected
    assert max(expected) > 5
    assert record.completion.sum() == totals.total_completion_time
    assert (record.in_system * record.bin_lengths).sum() == pytest.approx(totals.total_completion_time)
    assert record.slots == totals.slots


def test_a_log_read_back_gives_the_same_measurements(tmp_path):
    world = build_world(load_scenario("synthetic-3", ["tasks=60", "outages=[{cluster=0,start=5,end=15}]"]))
    live = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    path = tmp_path / "log.jsonl.gz"
    with EventLog(path, LogHeader("s", "min", 0, world.resources.names, world.clusters)) as log:
        run_scheduler(world, parse_spec("tiresias").create(), 0, (live, log))
    again = MetricsCollector(world.resources.names, world.clusters, world.task_types)
    for event in read_events(path, {t.name: t for t in world.task_types}):
        again(event)
    one, two = live.record("s", "min", 0), again.record("s", "min", 0)
    assert all(np.array_equal(value, getattr(two, name)) for name, value in vars(one).items())


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=60))
def test_a_series_keeps_sums_in_bins_of_any_width(spans):
    full, slot = [], 0
    limit, accumulate.MAX_BINS = accumulate.MAX_BINS, 16
    try:
        series = SlotSeries(1)
        for length, level in spans:
            series.add(np.array([slot]), np.array([length]), np.array([[level]]))
            full += [level] * length
            slot += length
    finally:
        accumulate.MAX_BINS = limit
    bins = -(-slot // series.width)
    assert bins <= 16
    assert bins > 8 or series.width == 1
    padded = np.pad(full, (0, bins * series.width - slot)).reshape(bins, series.width).sum(axis=1)
    assert series.sums[:bins, 0].tolist() == padded.tolist()


def test_the_most_tasks_in_the_system_are_those_of_one_slot(monkeypatch):
    monkeypatch.setattr(accumulate, "MAX_BINS", 4)
    tasks = [event for i in range(3) for event in (arrived(i, 1), TaskStarted(1, i, 0, R((1, 1))))]
    ends = [TaskFinished(1, 0, 0), TaskFinished(1, 1, 0), TaskFinished(30, 2, 0)]
    record = measure(*tasks, *ends)
    assert record.bin_slots == 8
    assert record.in_system.max() < 2
    assert record.in_system_max == 3


def test_series_of_different_width_are_aligned_exactly(monkeypatch):
    short = measure(arrived(0, 0), TaskStarted(1, 0, 0, R((2, 1))), TaskFinished(3, 0, 0))
    monkeypatch.setattr(accumulate, "MAX_BINS", 4)
    long = measure(arrived(0, 0), TaskStarted(0, 0, 0, R((2, 1))), TaskFinished(8, 0, 0))
    assert (short.bin_slots, long.bin_slots) == (1, 4)
    width, used = align([short, long], "used")
    assert width == 4
    assert used[0, :, 0, 0].tolist() == [6 / 4, 0, 0]  # after its end a run uses nothing
    assert used[1, :, 0, 0].tolist() == [2, 2, 0.5]
