"""Other sizes are tried where they are in doubt and not too dear, and never where they do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import R, constant_type

from tapfinger.core.contract import (
    ClusterView,
    Decision,
    Mode,
    Phase,
    Placement,
    Resize,
    SchedulerContext,
    Snapshot,
    TaskView,
)
from tapfinger.core.estimates import duration
from tapfinger.core.model import Cluster, ResourceTypes, TaskType
from tapfinger.errors import ConfigError
from tapfinger.schedulers.exploring import Exploring, exploring, neighbours
from tapfinger.testing import check_scheduler

BOX = constant_type((1, 1), (8, 8), 10.0, "any")


def doubted(doubt: float, at: tuple[int, int] = (4, 4)) -> TaskType:
    """Certain at one size only."""
    index = BOX.profile.index(at)
    doubts = tuple(0.0 if n == index else doubt for n in range(64))
    return replace(BOX, profile=replace(BOX.profile, doubt=doubts))


class Always:
    """Starts every task at one size, and resizes what it is told to."""

    one_shot = True

    def __init__(self, size: tuple[int, int] = (4, 4), *resizes: Resize) -> None:
        self._size, self._resizes = R(size), resizes

    def reset(self, context: SchedulerContext) -> None:
        pass

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(tuple(Placement(t.id, 0, self._size) for t in snapshot.queue), self._resizes)


def sizes(kind: TaskType, scheduler: Exploring, free: tuple[int, int], tasks: int, *on: TaskView) -> list[tuple]:
    capacity = R((800, 800))
    context = SchedulerContext(ResourceTypes(), (Cluster("c", capacity),), (kind,), Mode.MULTI, seed=3)
    scheduler.reset(context)
    view = ClusterView(0, "c", capacity, R(free), on, (), True, None)
    queue = tuple(TaskView(n, kind, 0, (0,), Phase.QUEUED) for n in range(tasks))
    return [p.allocation for p in scheduler.decide(Snapshot(0, 0, (view,), queue)).placements]


def test_it_keeps_the_contract() -> None:
    check_scheduler(lambda: exploring(share=0.2))


def test_nothing_is_tried_where_nothing_is_in_doubt_or_nothing_may_be_lost() -> None:
    for kind, share in ((BOX, 0.5), (doubted(0.01), 0.5), (doubted(1.0), 0.0)):
        scheduler = Exploring(Always(), share)
        assert set(sizes(kind, scheduler, (800, 800), 100)) == {(4, 4)}
        assert scheduler.trials == 0


def test_trials_are_neighbours_that_fit_and_cost_no_more_than_their_share() -> None:
    kind = doubted(0.6)
    scheduler = Exploring(Always(), 0.05)
    given = sizes(kind, scheduler, (400, 400), 100)  # all of it is taken: only smaller sizes fit
    tried = [size for size in given if size != (4, 4)]
    assert 0 < len(tried) == scheduler.trials < 50
    assert set(tried) <= set(neighbours(kind, R((4, 4))))
    assert sum(size[0] for size in given) <= 400
    assert sum(size[1] for size in given) <= 400
    # They are believed to be as fast; by the doubt about them they may cost exp(0.36) times that.
    assert len(tried) * (1.4333 - 1.0) * duration(kind, R((4, 4))) <= 0.05 * 10.0 * 100 + 1e-6


def test_growth_needs_room_and_is_left_alone_where_others_change() -> None:
    kind = doubted(0.6, (1, 1))
    ample = sizes(kind, Exploring(Always((1, 1)), 0.5), (800, 800), 50)
    assert any(size != (1, 1) for size in ample)
    assert set(sizes(kind, Exploring(Always((1, 1)), 0.5), (50, 50), 50)) == {(1, 1)}
    running = TaskView(77, kind, 0, (0,), Phase.RUNNING, 0, R((2, 2)))
    resizing = Exploring(Always((1, 1), Resize(77, R((1, 1)))), 0.5)
    assert set(sizes(kind, resizing, (800, 800), 50, running)) == {(1, 1)}


def test_the_same_seed_tries_the_same() -> None:
    kind = doubted(0.6)
    assert sizes(kind, Exploring(Always(), 0.1), (800, 800), 60) == sizes(
        kind, Exploring(Always(), 0.1), (800, 800), 60
    )


@pytest.mark.parametrize("share", [-0.1, 0.51, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"must be from 0 to 0\.5"):
        Exploring(Always(), share)
