"""A full disk, a disk that cannot be written, and a task that fills it: said, survived, and over by itself."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from live.disks import fill, small_disk
from live.sites import CONFIG, RealSite, opened, python
from live.test_faults import LAUNCH, OTHER, hosting
from live.test_resize import told
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError
from tapfinger.live.agent import leases, runtime
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.disk import FILES, MB, DiskWatch
from tapfinger.live.agent.leases import boot_clock, read_lease, write_lease
from tapfinger.live.agent.runtime import Host
from tapfinger.live.agent.trees import Extent
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.protocol.messages import Outcome

# --------------------------------------------------------------------------- the lease


def test_a_lease_is_renewed_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        lease = disk / "lease"
        write_lease(lease, 1000.0)
        filler = fill(disk)
        for n in range(50):
            assert write_lease(lease, 2000.5 + n).endswith("No space left on device")
            assert read_lease(lease) == supervise.lease_end(str(lease)) == 2000.5 + n
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "lease"], "nothing half-written is left"
        filler.unlink()
        assert write_lease(lease, 1e9 / 3) == ""
        assert read_lease(lease) == 1e9 / 3
        assert lease.stat().st_size == leases.LEASE_LENGTH


# ----------------------------------------------------------------------------- the host


class Room(NamedTuple):
    """What a file system says of its room."""

    f_files: int = 1_000_000
    f_favail: int = 900_000
    f_bavail: int = 1 << 30
    f_frsize: int = 4096
    f_flag: int = 0


def test_a_disk_without_room_for_more_files_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, room = DiskWatch(tmp_path, 100.0), Room()
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    assert watch.look() == ""
    room = Room(f_favail=FILES - 1)
    assert "nearly full, with room for less than 1000 more files; remove something" in watch.look()
    few, many = Extent(300 * MB, 20), Extent(0, FILES)
    assert watch.blame({(1, 1): few, (2, 1): many}) == (2, 1), "bytes are not what is lacking"
    assert watch.blame({(1, 1): few}) is None
    room = Room(f_favail=FILES + 1)
    assert watch.look() != "", "not well again at once"
    room = Room(f_favail=2 * FILES)
    assert (watch.look(), watch.full) == ("", False)
    room = Room(f_files=500, f_favail=20)
    assert "less than 25 more files" in watch.look(), "of a small disk, a share"
    room = Room(f_files=0, f_favail=0)
    assert DiskWatch(tmp_path, 100.0).look() == "", "a file system that does not count files"


def test_a_disk_that_takes_no_file_is_full_whatever_it_says_of_its_room(tmp_path: Path) -> None:
    """As with a quota of the agent's user."""
    watch = DiskWatch(tmp_path, 0.0)
    watch.refuses = "Disk quota exceeded"
    (tmp_path / ".room").mkdir()  # so it takes none
    assert (".room" in watch.look(), watch.full) == (True, True)
    assert watch.blame({(1, 1): Extent(0, 3 * FILES), (2, 1): Extent(0, 10)}) == (1, 1)
    (tmp_path / ".room").rmdir()
    assert (watch.look(), watch.full) == ("", False)


def test_an_end_needs_no_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1, files=20) as disk:
        run = Run(LAUNCH, disk / "run", {}, tmp_path / "lease")
        write_lease(run.lease, boot_clock() + 600.0)
        backend = opened(Process(), disk)
        launch = replace(LAUNCH, argv=(sys.executable, "-c", WAITS, str(tmp_path / "go")))
        backend.start(replace(run, launch=launch))
        wait_for((run.directory / "pid.json").exists)
        wait_for(lambda: not (run.directory / supervise.ENVIRONMENT).exists())
        fill(disk)
        with suppress(OSError):
            for n in range(20):
                (disk / f"{n}").touch()
        (tmp_path / "go").touch()
        assert wait_for(lambda: backend.poll(run)) == Outcome("finished", 0, output=0)


def test_so_does_the_end_of_one_whose_supervisor_was_killed(tmp_path: Path) -> None:
    run = Run(LAUNCH, tmp_path / "run", {}, tmp_path / "lease")
    run.directory.mkdir()
    (run.directory / supervise.SPARE).write_bytes(b" " * supervise.SPARE_SIZE)
    number = (run.directory / supervise.SPARE).stat().st_ino
    outcome = Process().poll(run)
    assert outcome is not None
    assert (outcome.result, Process().poll(run)) == ("lost", outcome)
    assert (run.directory / supervise.END).stat().st_ino == number


def test_an_end_is_written_whatever_has_become_of_the_file_for_it(tmp_path: Path) -> None:
    end = {"result": "finished", "code": 0, "reason": "", "output": 0}
    os.mkfifo(tmp_path / supervise.SPARE)
    supervise.write_end(str(tmp_path), end)
    assert json.loads((tmp_path / supervise.END).read_text()) == end


def test_a_full_disk_is_said_and_attempts_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = ["its disk is nearly full"]
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, devices):
        monkeypatch.setattr(host.house.disk, "look", lambda: trouble[0])
        wait_for(lambda: host.step() is not None and host.house.trouble)
        (first,) = told(host, 1, starts=(LAUNCH,))
        assert first.outcome == Outcome("lost", reason="its disk is nearly full")
        assert host.report().trouble == "its disk is nearly full"
        assert devices.free == {"cpu": 4}
        trouble[0] = ""
        wait_for(lambda: host.step() is not None and not host.house.trouble)
        (_, second) = told(host, 2, starts=(OTHER,))
        assert (second.outcome, host.report().trouble) == (None, "")


def test_a_disk_that_cannot_be_written_is_said_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, _):
        told(host, 1, starts=(LAUNCH,))

        def refuse(*_: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(runtime, "write_lease", refuse)
        host._clock = lambda: 11.0  # a later report, so that the lease is renewed
        told(host, 2)
        wait_for(lambda: host.step() is not None and "Read-only file system" in host.report().trouble)
        monkeypatch.undo()
        host._clock = lambda: 12.0
        told(host, 3)
        wait_for(lambda: host.step() is not None and not host.report().trouble)
        assert host.report().runs[0].outcome is None, "nothing has happened to what runs"


def test_an_agent_that_cannot_begin_says_why(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk / "runs").mkdir()
        (disk / "lock").touch()
        filler = fill(disk)
        context = BackendContext(disk, "c0")
        with pytest.raises(ConfigError, match="No space left on device"):
            Host(context, Fake(), Devices({}), 1.0)
        filler.unlink()
        Host(context, Fake(), Devices({}), 1.0).close()


# ----------------------------------------------------------------------------- for real

WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
FILLS = """
import time
try:
    with open("much", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 2**20)
except OSError:
    time.sleep(3600)
"""


def waits_for(path: Path, **more: object) -> object:
    spec = python(WAITS, cwd=None, **more)
    return spec.__class__(**{**{f: getattr(spec, f) for f in spec.__slots__}, "argv": (*spec.argv, str(path))})


def cluster(site: RealSite, name: str) -> dict[str, object]:
    assert site.client is not None
    return next(dict(c) for c in site.client.clusters() if c["name"] == name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[RealSite, Path]]:
    """A site whose left cluster has a small disk, and leases that are short and yet long for a busy machine."""
    made = RealSite(tmp_path, lease=20.0)
    text = CONFIG.replace("lease_seconds = 120.0", "lease_seconds = 20.0")
    made.config.write_text(text + "min_free_mb = 16.0\n")
    with small_disk(made.state / "agents" / "left", 96) as disk:
        try:
            made.up()
            yield made, disk
        finally:
            made.close()


def test_a_task_that_fills_the_disk_fails_and_others_run_on(site: tuple[RealSite, Path], tmp_path: Path) -> None:
    real, disk = site
    client = real.client
    assert client is not None
    (quiet,) = client.submit(waits_for(tmp_path / "go", clusters=("left",)))  # type: ignore[arg-type]
    wait_for(lambda: client.show(quiet).phase is Phase.RUNNING)
    (hog,) = client.submit(python(FILLS, cwd=None, clusters=("left",)))
    info = client.wait(hog, PATIENCE)
    assert info.phase is Phase.FAILED
    assert "the disk of its cluster was nearly full, and it had put " in info.reason
    assert info.results == "", "its files are gone"
    wait_for(lambda: not cluster(real, "left")["trouble"])
    assert client.show(quiet).attempt == 1
    (tmp_path / "go").touch()
    assert client.wait(quiet, PATIENCE).phase is Phase.FINISHED
    (after,) = client.submit(python("pass", cwd=None, clusters=("left",)))
    assert client.wait(after, PATIENCE).phase is Phase.FINISHED
    assert not any(disk.glob(f"r*/*{hog}.1"))


def test_on_a_full_disk_tasks_live_longer_than_the_lease(site: tuple[RealSite, Path], tmp_path: Path) -> None:
    real, disk = site
    client = real.client
    assert client is not None
    (task,) = client.submit(waits_for(tmp_path / "go", clusters=("left",)))  # type: ignore[arg-type]
    wait_for(lambda: client.show(task).phase is Phase.RUNNING)
    filler = fill(disk)
    wait_for(lambda: "nearly full" in str(cluster(real, "left")["trouble"]))
    (stuck,) = client.submit(python("pass", cwd=None, clusters=("left",)))
    wait_for(lambda: "its disk is nearly full" in json.dumps(client.explain(stuck)["clusters"]))
    (elsewhere,) = client.submit(python("pass", cwd=None))
    assert client.wait(elsewhere, PATIENCE).cluster == "right"
    written = boot_clock() + 20.0  # no lease that was written before the disk was full lasts longer
    wait_for(lambda: boot_clock() > written)
    info = client.show(task)
    assert (info.phase, info.attempt) == (Phase.RUNNING, 1)
    filler.unlink()
    (tmp_path / "go").touch()
    assert client.wait(task, PATIENCE).phase is Phase.FINISHED
    info = client.wait(stuck, PATIENCE)
    assert (info.phase, info.cluster) == (Phase.FINISHED, "left")
    assert all(process.poll() is None for process in real.processes.values())
    assert "Traceback" not in (real.state / "left.log").read_text()
