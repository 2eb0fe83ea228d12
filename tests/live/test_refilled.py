"""A living task that goes on filling a removed directory, which it has got hold of, keeps nothing else from going."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from live.test_results import keep_three, names
from waiting import wait_for

from tapfinger.live.agent import results, trees
from tapfinger.live.agent.disk import DiskRules
from tapfinger.live.agent.housekeeping import Housekeeping
from tapfinger.live.agent.results import Results
from tapfinger.live.agent.trees import STEP, extent_of, remove_tree

#: Files beyond which something is taken to loop for ever.
FOR_EVER = 100 * STEP


@pytest.fixture
def refilled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts a new file into a directory called ``held`` for each one that is removed from it; the list has them."""
    made: list[str] = []
    unlink = os.unlink

    def refill(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        if dir_fd is not None and name.startswith("held"):
            assert len(made) < FOR_EVER, "it goes on for ever"
            made.append(f"held{len(made)}")
            os.close(os.open(made[-1], os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=dir_fd))

    monkeypatch.setattr(trees.os, "unlink", refill)
    return made


def held(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "held").touch()
    return directory


@pytest.mark.parametrize("below", ["", "a", "a/b/c"])
def test_removing_ends_although_files_come_back(tmp_path: Path, refilled: list[str], below: str) -> None:
    top = tmp_path / "top"
    held(top / below)
    (top / "other").mkdir()
    (top / "other" / "file").touch()
    remove_tree(top)
    assert refilled
    assert not (top / "other").exists()


def test_removing_ends_although_every_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    tries = itertools.count()

    def taken(*_: object, **__: object) -> None:
        assert next(tries) < FOR_EVER, "it goes on for ever"
        raise OSError(errno.EEXIST, "File exists")

    monkeypatch.setattr(trees.os, "rename", taken)
    remove_tree(tmp_path / "top")
    assert next(tries) > 0


def test_nothing_takes_longer_than_it_is_given(tmp_path: Path) -> None:
    top = held(tmp_path / "top")
    (top / "below").mkdir()
    assert extent_of(top).files == 2
    assert extent_of(top, 0.0).files == 0
    remove_tree(top, 0.0)
    assert sorted(os.listdir(top)) == ["below", "held"]
    remove_tree(top, 60.0)
    assert not top.exists()


@pytest.mark.usefixtures("refilled")
def test_the_rest_waits_for_a_later_turn_and_all_else_goes(tmp_path: Path) -> None:
    kept = keep_three(tmp_path, DiskRules(keep_results_hours=1e-9))
    left = held(tmp_path / "results" / ".gone-0.1")
    (tmp_path / "runs" / ".gone-7.1" / "work").mkdir(parents=True)
    held(tmp_path / "runs" / "8.1" / "task" / "work")
    kept.discard(tmp_path / "runs" / "8.1")
    (beyond,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".gone-8.1"))
    kept.tidy()
    assert names(tmp_path) == [left.name]
    assert list((tmp_path / "runs").iterdir()) == [beyond]
    for path in (left, beyond):
        for file in sorted(path.rglob("held*")):
            file.rename(file.with_name("free"))
    kept.tidy()
    assert (names(tmp_path), list((tmp_path / "runs").iterdir())) == ([], [])


def test_each_gets_its_turn_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    now = [100.0]

    def stubborn(path: Path, seconds: float) -> None:
        turns.append(path.name)
        now[0] += seconds

    monkeypatch.setattr(results, "remove_tree", stubborn)
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    kept = Results(tmp_path, DiskRules())
    for n in range(4):
        (tmp_path / "results" / f".gone-{n}.1").mkdir(parents=True)
    for _ in range(4):
        before = now[0]
        kept.tidy()
        assert now[0] <= before + results.TURNS
    assert sorted(turns) == sorted(2 * [f".gone-{n}.1" for n in range(4)])
    assert set(turns[:4]) == set(turns[4:])


def test_the_disk_is_looked_at_whatever_else_there_is_to_do(tmp_path: Path) -> None:
    house, go = Housekeeping(tmp_path, DiskRules(), lambda _: []), threading.Event()
    house._do(lambda: go.wait() and None)
    house.tidy(())
    assert house.workers.in_hand == 2
    house.heard("its disk is nearly full")  # so that the next look would be due
    house.tidy(())
    assert house.workers.in_hand == 2, "one look at a time"
    looks: list[bool] = []

    def failing(full: bool) -> None:
        looks.append(full)
        raise RuntimeError("for a test")

    house.results.tidy = failing  # type: ignore[method-assign]
    go.set()
    wait_for(lambda: not house.workers.in_hand)
    house.heard("")
    house.tidy(())
    wait_for(lambda: len(looks) == 2)
    house.workers.close()
