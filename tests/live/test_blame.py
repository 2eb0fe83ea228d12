"""Who is ended for a full disk: only whose directory explains it, whatever others hide."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from live.disks import small_disk
from live.plain_user import as_plain_user
from live.test_results import run_in

from tapfinger.live.agent import housekeeping
from tapfinger.live.agent.disk import MB, DiskRules, DiskWatch
from tapfinger.live.agent.housekeeping import Housekeeping
from tapfinger.live.agent.kept import KeptRun
from tapfinger.live.agent.reports import Following
from tapfinger.live.agent.starts import Began
from tapfinger.live.agent.trees import Extent, extent_of
from tapfinger.live.protocol.messages import AttemptId

# --------------------------------------------------------------------------- the rule


def blamed(watch: DiskWatch, *megabytes: int, taken: int = 0, doubtful: tuple[int, ...] = ()) -> AttemptId | None:
    """Who is blamed; ``megabytes``: of tasks 1, 2 and so on. ``taken``: since the oldest began."""
    extents = {(n, 1): Extent(size * MB, 1, n not in doubtful) for n, size in enumerate(megabytes, 1)}
    free = watch.free or Extent(0, 0)
    return watch.blame(extents, Extent(free.size + taken * MB, free.files))


def test_who_is_to_blame(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 100.0)
    assert blamed(watch) is None
    assert blamed(watch, 400, 300) is None, "it is not by far the largest"
    assert blamed(watch, 400, 150, 150, 150) is None, "the others have more"
    assert blamed(watch, 30, 300) == (2, 1)


def test_it_must_help(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 100.0)
    assert blamed(watch, 120) is None, "without it the disk would be full as well"
    watch.free = Extent(40 * MB, 0)
    assert blamed(watch, 120) == (1, 1)
    watch.free = Extent(99 * MB, 0)
    assert blamed(watch, 40) is None


def test_nobody_is_blamed_for_what_is_in_no_directory(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 100.0)
    assert blamed(watch, 200, 20, taken=390) == (1, 1)
    assert blamed(watch, 200, 20, taken=410) is None


def test_what_cannot_be_measured_is_suspected(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path, 100.0)
    assert blamed(watch, 300, 10, doubtful=(2,)) is None, "the other one may have more"
    assert blamed(watch, 300, 10, doubtful=(1,)) == (1, 1)
    assert blamed(watch, 200, 10, taken=700, doubtful=(2,)) == (2, 1), "nothing else explains it"
    assert blamed(watch, 200, 10, 10, taken=700, doubtful=(2, 3)) is None, "nobody knows which"


# ---------------------------------------------------------------------------- measuring

CLOSES = """
import os, sys
from pathlib import Path
from tapfinger.live.agent.trees import extent_of
top = Path(sys.argv[1])
(top / "task" / "work" / "listed").mkdir(parents=True)
for file in ("task/work/big", "task/work/listed/big"):
    (top / file).write_bytes(b"x" * 3_000_000)
(top / "task" / "work" / "listed").chmod(0o455)
(top / "task" / "work").chmod(0o044)
(top / "task").chmod(0)
whole = extent_of(top)
assert whole.size >= 6_000_000 and whole.files == 5 and whole.complete, whole
modes = [os.stat(top / name).st_mode & 0o777 for name in ("task", "task/work", "task/work/listed")]
assert modes == [0o700, 0o744, 0o755], modes
(top / "task").chmod(0)
def refuse(*_, **__): raise PermissionError(1, "Operation not permitted")
os.chmod, chmod = refuse, os.chmod  # as with a directory of another user
part = extent_of(top)
chmod(top / "task", 0o700)
assert part.files == 1 and not part.complete, part
assert extent_of(top / "none").complete
"""


def test_closed_directories_are_measured(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    as_plain_user(CLOSES, tmp_path / "top")


def test_what_takes_too_long_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert extent_of(tmp_path).complete
    assert not extent_of(tmp_path, 0.0).complete


# ------------------------------------------------------------------------ on a small disk


def kept_run(agent: Path, number: int) -> KeptRun:
    run = run_in(agent, (number, 1))
    return KeptRun(run, Following(run.reports, Began.now()))


def test_who_hides_its_files_gets_nobody_else_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        house = Housekeeping(disk, DiskRules(min_free_mb=16.0), lambda _: [])
        quiet, hog = kept_run(disk, 1), kept_run(disk, 2)
        assert not house.disk.look()
        for kept in (quiet, hog):
            house.begins(kept.run.id)
        (quiet.run.work / "checkpoint").write_bytes(b"x" * 12 * MB)

        def ended() -> list[int]:
            """Tasks that are ended for the full disk."""
            assert "nearly full" in house.disk.look()
            assert house.disk.full
            house._looking, house._next = False, 0.0
            house.tidy((quiet, hog))
            house.workers.settle(60.0)
            return [kept.run.id[0] for kept in (quiet, hog) if kept.verdict]

        with (hog.run.work / "big").open("wb") as file:
            file.write(b"x" * 40 * MB)
            file.flush()
            (hog.run.work / "big").unlink()
            assert ended() == []
        (hog.run.work / "big").write_bytes(b"x" * 40 * MB)
        with monkeypatch.context() as patch:
            patch.setattr(housekeeping, "LOOK", 0.0)
            quiet.ended = True
            assert ended() == [2], "the only one that cannot be measured has what nothing else explains"
        assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
            "what task 2 attempt 1 has put on the full disk cannot be measured"
        ]
        quiet.ended, hog.verdict = False, ""
        assert ended() == [2]
        house.workers.close()
        assert os.listdir(quiet.run.work) == ["checkpoint"]
