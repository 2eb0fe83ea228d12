"""Turns, rounds and slots, on an executor that only records."""

import pytest
from helpers import R, Scripted, StartAll, make_state, make_task, place, resize

from tapfinger.core import session as session_module
from tapfinger.core.contract import VOID, Decision, Mode, Proposal, Scheduler
from tapfinger.core.events import Command, Event, StartTask, TaskArrived, TaskFinished, TaskStarted
from tapfinger.core.session import Session, SlotOutcome
from tapfinger.errors import CapacityExceeded, InvalidDecision


class Recorder:
    """Three tasks at slot 0, one at slot 1; tasks start when told and end in the slot they started."""

    def __init__(self) -> None:
        self.commands: list[tuple[int, list[Command]]] = []
        self.exhausted = False

    def begin(self) -> list[Event]:
        # Not in canonical order on purpose.
        return [TaskArrived(0, make_task(i, eligible=(0, 1))) for i in (2, 0, 1)]

    def run_slot(self, slot: int, commands: list[Command]) -> SlotOutcome:
        self.commands.append((slot, list(commands)))
        starts = [c for c in commands if isinstance(c, StartTask)]
        events: list[Event] = [TaskFinished(slot, c.task.id, c.cluster) for c in starts]
        events += [TaskStarted(slot, c.task.id, c.cluster, c.allocation) for c in starts]
        if slot == 0:
            events.insert(0, TaskArrived(1, make_task(3, arrival=1, eligible=(0, 1))))
            self.exhausted = True
        return SlotOutcome(events)


def new_session(mode: Mode = Mode.MULTI) -> tuple[Session, Recorder, list[Event]]:
    executor, log = Recorder(), []
    return Session(make_state((16, 16), (16, 16), mode=mode), executor, [log.append]), executor, log


def test_a_multi_task_round_ends_when_the_scheduler_is_void() -> None:
    session, _, _ = new_session()
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (0, 1): place(1, 0, 2, 1), (0, 2): place(2, 1, 2, 1)})
    session.play_round(scheduler)
    assert [s.turn for s in scheduler.seen] == [0, 1, 2, 3]
    assert [len(s.queue) for s in scheduler.seen] == [3, 2, 1, 0], "each turn sees what the last one did"


def test_a_one_shot_scheduler_is_asked_once_per_slot() -> None:
    session, _, _ = new_session()
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (0, 1): place(1, 0, 2, 1)}, one_shot=True)
    session.play_round(scheduler)
    assert len(scheduler.seen) == 1
    assert session.state.tasks_in_system == 3


def test_a_single_task_round_is_one_turn() -> None:
    session, _, _ = new_session(Mode.SINGLE)
    scheduler = Scripted({(0, 0): place(0, 0, 2, 1), (0, 1): place(1, 1, 2, 1)})
    session.play_round(scheduler)
    assert len(scheduler.seen) == 1


def test_turn_says_whether_the_round_is_settled() -> None:
    multi, single = new_session()[0], new_session(Mode.SINGLE)[0]
    assert not multi.turn(place(0, 0, 2, 1))
    assert multi.turn(VOID)
    assert single.turn(place(0, 0, 2, 1))


def test_commands_of_all_turns_reach_the_executor_once_and_in_order() -> None:
    session, executor, _ = new_session()
    session.play_round(StartAll())
    session.end_slot()
    session.play_round(StartAll())
    session.end_slot()
    assert [(slot, [c.task.id for c in commands]) for slot, commands in executor.commands] == [(0, [0, 1, 2]), (1, [3])]


def test_events_come_to_sinks_in_canonical_order() -> None:
    session, _, log = new_session()
    session.play_round(StartAll())
    session.end_slot()
    assert [(e.slot, type(e).__name__, e.task.id if isinstance(e, TaskArrived) else e.task) for e in log] == [
        (0, "TaskArrived", 0),
        (0, "TaskArrived", 1),
        (0, "TaskArrived", 2),
        (0, "TaskStarted", 0),
        (0, "TaskStarted", 1),
        (0, "TaskStarted", 2),
        (0, "TaskFinished", 0),
        (0, "TaskFinished", 1),
        (0, "TaskFinished", 2),
        (1, "TaskArrived", 3),
    ]


def test_the_objective_counts_tasks_before_they_end_and_done_waits_for_all() -> None:
    session, _, _ = new_session()
    session.play_round(StartAll())
    assert session.end_slot() == 3
    assert not session.done, "task 3 has just come"
    assert session.end_slot() == 1, "it waits: nobody decided"
    session.play_round(StartAll())
    assert session.end_slot() == 1
    assert session.done
    assert session.total_tasks_in_system == 5


def test_lost_proposals_are_counted() -> None:
    session, _, _ = new_session()
    lost = Proposal(1, 0, R([2, 1]))
    session.turn(Decision(placements=place(0, 0, 2, 1).placements, lost=(lost, lost)))
    assert session.conflicts == 2


def test_a_bad_decision_reaches_neither_state_nor_executor() -> None:
    session, executor, _ = new_session()
    session.turn(place(0, 0, 15, 15))
    before = session.state.snapshot()
    with pytest.raises(CapacityExceeded):
        session.turn(place(1, 0, 2, 2))
    assert session.state.snapshot() == before
    session.turn(VOID)
    session.end_slot()
    assert [c.task.id for c in executor.commands[0][1]] == [0]


def test_a_scheduler_that_resizes_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_TURNS", 20)
    session, _, _ = new_session()
    session.turn(place(0, 0, 2, 1))
    session.state.apply(TaskStarted(0, 0, 0, R([2, 1])))
    restless = Scripted({(0, turn): resize(0, 2 + turn % 2, 1) for turn in range(1000)})
    with pytest.raises(InvalidDecision, match="Scripted was still not void after 20 turns"):
        session.play_round(restless)


def test_the_test_schedulers_fulfil_the_contract() -> None:
    assert isinstance(Scripted({}), Scheduler)
    assert isinstance(StartAll(), Scheduler)
