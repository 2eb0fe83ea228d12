"""The checker of the nemeses notices what it is there for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from soak.checker import MOST, check_attempts, check_grants, check_repeated, check_share, median_wait, most_in_an_hour
from soak.clocks import DAY, real_time

NOW = time.time()


def event(kind: str, at: float, task: int = 1, attempt: int | None = None, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "at": NOW + at, "task": task, "attempt": attempt, "cluster": "left", "data": data}


def test_attempts_are_counted_in_any_hour() -> None:
    assert most_in_an_hour([]) == 0
    assert most_in_an_hour([0.0, 3000.0, 3601.0, 3700.0, 7300.0]) == 3
    grants = [event("granted", 300.0 * n) for n in range(MOST)]
    check_attempts(grants)
    with pytest.raises(AssertionError, match="11 attempts"):
        check_attempts([*grants, event("granted", 3599.0)])


def test_a_clock_that_jumped_does_not_hide_attempts() -> None:
    grants = [event("granted", n + DAY * (n % 3 - 1)) for n in range(MOST + 1)]
    assert [real_time(line["at"]) for line in grants] == pytest.approx([NOW + n for n in range(MOST + 1)])
    with pytest.raises(AssertionError, match="11 attempts"):
        check_attempts(grants)


def test_waits_are_those_for_the_first_attempt() -> None:
    history = [event("submitted", 0.0), event("submitted", 0.0, 2), event("granted", 1.0), event("granted", 4.0, 2)]
    assert median_wait([*history, event("granted", 9.0)], [1, 2, 3]) == pytest.approx(2.5)


def test_bad_tasks_that_hold_much_are_noticed() -> None:
    begin, end = [event("submitted", 0.0), event("granted", 0.0, 2)], [event("ended", 100.0, 2)]
    attempts = [event("granted", 1.0), event("ended", 11.0), event("granted", 50.0), event("ended", 60.0)]
    assert check_share([*begin, *attempts, *end], [1]) == pytest.approx(0.025)
    assert check_share([*begin, *attempts, *end], []) == 0.0
    with pytest.raises(AssertionError, match=r"12\.5%"):
        check_share([*begin, *end], [2])


def test_more_than_a_cluster_has_is_noticed() -> None:
    with pytest.raises(AssertionError, match="5"):
        check_grants([event("granted", n, n, allocation={"cpu": 1}) for n in range(5)])


@pytest.mark.parametrize("told", ["", "refused"])
def test_a_completion_in_vain_must_be_told(tmp_path: Path, told: str) -> None:
    for attempt in (1, 2):
        (tmp_path / f"1.{attempt}").write_text("1.0\nexit 0\n")
    (tmp_path / "1.3").write_text("1.0\n")
    history = [event("ended", 0.0, 1, 1, result="lost"), event("ended", 0.0, 1, 2, result="finished")]
    if told:
        assert check_repeated([*history, event(told, 1.0, 1, 1, result="finished")], tmp_path) == {told: 1}
    else:
        with pytest.raises(AssertionError, match="attempt 1 ran to completion"):
            check_repeated(history, tmp_path)
