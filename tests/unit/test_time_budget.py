"""The time budget of the network, with a clock of the test's own."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tapfinger.schedulers.stages.time_budget import LONGEST_REST, TimeBudget


class Passes:
    """Passes of a network that take as long as the test says."""

    def __init__(self, budget_ms: float) -> None:
        self._now = 0.0
        self.budget = TimeBudget(budget_ms, lambda: self._now)

    @property
    def over(self) -> int:
        return self.budget.counters["over_budget"]

    def one(self, slot: int, ms: float) -> bool:
        """Whether it was allowed."""
        if not self.budget.allows(slot):
            return False
        begin = self.budget.begin()
        self._now += ms / 1e3
        self.budget.end(begin)
        return True


def test_passes_of_one_slot_share_the_budget() -> None:
    passes = Passes(10.0)
    assert [passes.one(0, 4.0) for _ in range(5)] == [True, True, True, False, False]
    assert passes.over == 1
    assert passes.one(1, 4.0)  # the next slot begins anew


def test_a_slow_network_is_asked_ever_less_often() -> None:
    passes = Passes(10.0)
    asked = [slot for slot in range(400) if passes.one(slot, 11.0)]
    assert [b - a - 1 for a, b in pairwise(asked)] == [1, 2, 4, 8, 16, 32, *[LONGEST_REST] * 5]
    assert passes.over == len(asked)


def test_a_pass_in_time_ends_the_rests() -> None:
    passes = Passes(10.0)
    took = {0: 20.0, 2: 20.0, 5: 1.0, 6: 20.0}
    asked = [slot for slot in range(9) if passes.one(slot, took.get(slot, 1.0))]
    assert asked == [0, 2, 5, 6, 8]


@pytest.mark.parametrize("ms", [0, 0.0])
def test_no_budget_no_limit(ms: float) -> None:
    passes = Passes(ms)
    assert all(passes.one(slot, 1e6) for slot in range(5))
    assert passes.over == 0
