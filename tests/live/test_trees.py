"""Directories of tasks are measured and removed, however deep, closed or full of links they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from live.test_faults import hosting
from live.test_resize import told
from live.test_results import LAUNCH, run_in

from tapfinger.live.agent.disk import DiskRules
from tapfinger.live.agent.results import Results
from tapfinger.live.agent.trees import extent_of, remove_tree, size_of
from tapfinger.live.backends.fake import Fake
from tapfinger.live.protocol.messages import Outcome
from tapfinger.live.protocol.wire import FileRequest, LogSize

#: Levels at which paths are too long, and calls within calls too many.
DEPTH = 1500
SIZE = 3_000_000


def deep(top: Path) -> None:
    top.mkdir()
    handle = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("abc", dir_fd=handle)
        below = os.open("abc", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    file = os.open("big", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=handle)
    os.write(file, b"x" * SIZE)
    os.close(file)
    os.close(handle)


def test_depth_hides_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    top = tmp_path / "top"
    deep(top)
    (top / ".up-0").write_text("in the way")
    (top / ".up-1").mkdir()
    (top / ".up-1" / "file").touch()
    assert size_of(top) >= SIZE
    remove_tree(top)
    assert not top.exists()


def test_a_file_with_many_names_counts_once(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    (top / "big").write_bytes(b"x" * SIZE)
    for n in range(40):
        (top / "below" / f"{n}").hardlink_to(top / "big")
    (top / "small").touch()
    extent = extent_of(top)
    assert SIZE <= extent.size == size_of(top) < 2 * SIZE
    assert extent.files == 3


def test_a_link_in_place_of_a_directory_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x" * SIZE)
    outside.chmod(0o555)
    link = tmp_path / "link"
    link.symlink_to(outside)
    assert size_of(link) == 0
    remove_tree(link)
    assert not link.is_symlink()
    top = tmp_path / "top"
    (top / "closed" / "deeper").mkdir(parents=True)
    (top / "closed" / "deeper" / "out").symlink_to(outside)
    (top / "closed" / "file").symlink_to(outside / "precious")
    (top / "closed").chmod(0)
    assert size_of(top) < SIZE
    remove_tree(top)
    assert not top.exists()
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert outside.stat().st_mode & 0o777 == 0o555


def test_a_link_in_place_of_the_working_directory_is_not_kept(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    kept = Results(tmp_path, DiskRules(keep_results_hours=1.0))
    run = run_in(tmp_path)
    run.work.rmdir()
    run.work.symlink_to(outside)
    assert kept.told(run, Outcome("finished", 0)).results == ""
    kept.discard(run.work)  # as when its task has filled the disk
    run.work.symlink_to(outside)
    kept.keep(run)
    assert not run.directory.exists()
    assert not kept.place(run.id).is_symlink()
    assert (outside / "precious").exists()


def test_files_are_found_while_they_wait_to_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    with hosting(tmp_path, Fake(clock=lambda: now[0])) as (host, _):
        monkeypatch.setattr(host.house, "let_go", lambda _: None)  # its thread removes a large directory
        told(host, 1, starts=(LAUNCH,))
        work = tmp_path / "runs" / "1.1" / "task" / "work"
        work.mkdir(parents=True, exist_ok=True)
        (work / "model.bin").write_text("weights")
        now[0] += 100.0
        told(host, 2)
        told(host, 3, forgets=((1, 1),))
        host.arrived(LogSize((1, 1), 0))
        assert not host._runs, "it is forgotten"
        assert host.files(FileRequest(7, (1, 1), "model.bin")).data == "weights"


def test_a_look_that_fails_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    with hosting(tmp_path, Fake(clock=lambda: now[0])) as (host, _):
        told(host, 1, starts=(LAUNCH,))
        with monkeypatch.context() as patch:
            patch.setattr(host.house.disk, "look", lambda: 1 // 0)
            told(host, 2)
        now[0] += 100.0
        (run,) = told(host, 3)
        assert run.outcome is not None
