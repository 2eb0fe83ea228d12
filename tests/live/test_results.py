"""What a task leaves in its own directory is kept for a while, and can be fetched through the coordinator."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from live.sites import CONFIG, RealSite, python
from live.test_faults import hosting
from live.test_resize import told
from typer.testing import CliRunner
from waiting import PATIENCE, wait_for

from tapfinger.cli import app
from tapfinger.errors import AgentUnavailable, CoordinatorError, NotFetched, NotFound, TooMany
from tapfinger.live.agent import files, results
from tapfinger.live.agent.disk import DiskRules
from tapfinger.live.agent.results import LEAST, Results
from tapfinger.live.agent.trees import Extent
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.http import fetching
from tapfinger.live.http.client import Client
from tapfinger.live.protocol.messages import Launch, Outcome
from tapfinger.live.protocol.wire import CHUNK, FileAnswer, FileRequest, LogSize, Message
from tapfinger.live.service import files as desk

LAUNCH = Launch((1, 1), ("x",), {"cpu": 1.0}, {})

LEAVES = """
import os
os.makedirs("deep/er")
with open("model.bin", "wb") as file:
    file.write(bytes(range(256)) * 4096)
with open("deep/er/note", "w") as file:
    file.write("hello")
os.symlink("/etc/passwd", "way out")
os.mkfifo("pipe")
"""


def run_in(agent: Path, ident: tuple[int, int] = (1, 1), **more: object) -> Run:
    directory = agent / "runs" / f"{ident[0]}.{ident[1]}"
    directory.mkdir(parents=True)
    run = Run(Launch(ident, ("x",), {"cpu": 1.0}, {}, **more), directory)  # type: ignore[arg-type]
    run.work.mkdir(parents=True)
    return run


# -------------------------------------------------------------------------- keeping


def test_files_are_kept_and_the_outcome_says_where(tmp_path: Path) -> None:
    kept = Results(tmp_path, DiskRules(keep_results_hours=1.0))
    run = run_in(tmp_path)
    assert kept.told(run, Outcome("finished", 0)) == Outcome("finished", 0), "an empty directory is not kept"
    (run.work / "model.bin").write_bytes(b"x" * 5000)
    before = time.time()
    outcome = kept.told(run, Outcome("finished", 0))
    assert outcome.results == str(tmp_path / "results" / "1.1")
    assert outcome.results_until is not None
    assert before + 3600.0 <= outcome.results_until <= time.time() + 3600.0
    kept.keep(run)
    assert (tmp_path / "results" / "1.1" / "model.bin").stat().st_size == 5000
    assert not run.directory.exists()
    assert kept.told(run, Outcome("finished", 0)).results == outcome.results, "a later agent says the same"


def test_directories_of_their_own_choice_are_left_alone(tmp_path: Path) -> None:
    kept = Results(tmp_path, DiskRules())
    run = run_in(tmp_path, cwd="/tmp")
    (run.work / "x").touch()
    kept.keep(run)
    assert kept.told(run, Outcome("finished", 0)).results == ""
    assert not (tmp_path / "results").exists()


def keep_three(agent: Path, rules: DiskRules) -> Results:
    kept = Results(agent, rules)
    for n in (1, 2, 3):
        run = run_in(agent, (n, 1))
        (run.work / "data").write_bytes(b"x" * 100_000)
        kept.keep(run)
    return kept


def names(agent: Path) -> list[str]:
    return sorted(path.name for path in (agent / "results").iterdir() if path.is_dir())


def test_the_oldest_go_first_when_there_is_too_much(tmp_path: Path) -> None:
    kept = keep_three(tmp_path, DiskRules(max_results_gb=250_000 / 2**30))
    kept.tidy()
    assert names(tmp_path) == ["2.1", "3.1"]
    kept.tidy(full=True)
    assert names(tmp_path) == ["3.1"], "a full disk takes one more at a time"
    assert sorted(os.listdir(tmp_path / "results")) == [".3.1.json", "3.1"]


def test_only_so_many_are_kept_and_each_counts_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST", 2)
    keep_three(tmp_path, DiskRules()).tidy()
    assert names(tmp_path) == ["2.1", "3.1"]
    (tmp_path / "results" / "2.1" / "data").unlink()
    note = json.dumps({"boot": results.boot_id(), "at": results.boot_clock(), "wall": time.time(), "size": 0})
    for name in names(tmp_path):
        (tmp_path / "results" / f".{name}.json").write_text(note)
    Results(tmp_path, DiskRules(max_results_gb=1.5 * results.LEAST / 2**30)).tidy()
    assert len(names(tmp_path)) == 1, "also what holds nothing but names takes room"


def test_a_look_reads_no_note_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep_three(tmp_path, DiskRules())
    read: list[str] = []
    real = results.read_json

    def counted(path: Path) -> Any:
        read.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(results, "read_json", counted)
    kept.tidy()
    assert read == []
    later = Results(tmp_path, DiskRules())
    later.tidy()
    later.tidy()
    assert sorted(read) == [".1.1.json", ".2.1.json", ".3.1.json"], "of an earlier agent once each"


def test_directories_with_very_many_files_are_measured_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread keeps, removes and measures for all attempts: none of them may keep it busy."""
    clock, given = [0.0], list[tuple[str, float]]()

    def slow(path: Path, seconds: float) -> Extent:
        given.append((path.name, seconds))
        clock[0] += seconds
        return Extent(int(seconds * 1000), 1, complete=False)

    monkeypatch.setattr(results, "extent_of", slow)
    monkeypatch.setattr(results.time, "monotonic", lambda: clock[0])
    kept = keep_three(tmp_path, DiskRules())
    assert given == [("1.1", 0.5), ("2.1", 0.5), ("3.1", 0.5)]
    given.clear()
    kept._prune(False)
    assert [seconds for _, seconds in given] == [5.0, 5.0]
    kept._prune(False)
    assert [seconds for _, seconds in given] == [5.0, 5.0, 5.0]
    assert len({name for name, _ in given}) == 3
    kept._prune(False)
    again = Results(tmp_path, DiskRules())
    again._prune(False)
    assert len(given) == 3, "after a whole turn nothing is measured again"
    assert [entry.size for entry in again._entries(again._below(tmp_path / "results", "*.1"))] == [5000] * 3


def test_what_was_noted_by_an_earlier_version_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_three(tmp_path, DiskRules())
    note = tmp_path / "results" / ".1.1.json"
    note.write_text(json.dumps({"boot": "b", "at": 1.0, "wall": time.time(), "size": 7000}))
    (tmp_path / "results" / ".2.1.json").write_text("[]")
    monkeypatch.setattr(results, "TURNS", 0.0)  # no time for measuring
    kept = Results(tmp_path, DiskRules())
    sizes = {entry.path.name: entry.size for entry in kept._entries(kept._below(tmp_path / "results", "*.1"))}
    assert (sizes["1.1"], sizes["2.1"]) == (7000, LEAST), "where nothing is noted, it is measured by a later look"
    assert sizes["3.1"] >= 100_000


def test_they_go_when_their_time_is_over_whatever_the_wall_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep_three(tmp_path, DiskRules(keep_results_hours=1.0))
    real = time.time()
    monkeypatch.setattr(results.time, "time", lambda: real + 1e9)
    kept.tidy()
    assert len(names(tmp_path)) == 3, "the wall clock has jumped"
    now = results.boot_clock()
    monkeypatch.setattr(results, "boot_clock", lambda: now + 3601.0)
    kept.tidy()
    assert names(tmp_path) == []


def test_directories_that_a_task_has_closed_are_removed_too(tmp_path: Path) -> None:
    kept = Results(tmp_path, DiskRules(keep_results_hours=1e-9))
    run = run_in(tmp_path)
    (run.work / "closed" / "deep").mkdir(parents=True)
    (run.work / "closed" / "deep" / "file").touch()
    (run.work / "link").symlink_to(tmp_path)
    (run.work / "closed").chmod(0)
    kept.keep(run)
    kept.tidy()
    assert names(tmp_path) == []
    assert tmp_path.is_dir()


@pytest.mark.parametrize("mode", [0o555, 0])
def test_a_directory_that_its_task_has_closed_is_kept(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def strict(self: Path, target: Path) -> Path:
        """Binds root as others: a directory's entry for the one above it changes."""
        if self.stat().st_mode & self.parent.stat().st_mode & 0o200 == 0:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", strict)
    kept, run = Results(tmp_path, DiskRules()), run_in(tmp_path)
    (run.work / "model.bin").write_text("weights")
    run.work.chmod(mode)
    run.visible.chmod(mode)
    place = tmp_path / "results" / "1.1"
    assert kept.told(run, Outcome("finished", 0)).results == str(place)
    kept.keep(run)
    assert (place / "model.bin").read_text() == "weights"
    kept.tidy()
    assert names(tmp_path) == ["1.1"]


def test_what_cannot_be_opened_is_not_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, run = Results(tmp_path, DiskRules()), run_in(tmp_path)
    (run.work / "model.bin").touch()
    monkeypatch.setattr(results, "make_open", lambda _: False)
    assert kept.told(run, Outcome("finished", 0)).results == ""


def test_nothing_is_promised_without_a_place_for_it(tmp_path: Path) -> None:
    kept, run = Results(tmp_path, DiskRules()), run_in(tmp_path)
    (run.work / "model.bin").touch()
    (tmp_path / "results").touch()  # as on a full disk, no directory can be made
    assert kept.told(run, Outcome("finished", 0)).results == ""
    kept.keep(run)
    assert not run.directory.exists()


def test_files_are_kept_when_nothing_can_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(results, "replace_file", full)
        kept = keep_three(tmp_path, DiskRules())
        kept.tidy()
    assert names(tmp_path) == ["1.1", "2.1", "3.1"]
    kept.tidy()
    assert len(os.listdir(tmp_path / "results")) == 6, "it is noted when it can be"


def test_notes_about_nothing_go(tmp_path: Path) -> None:
    kept = keep_three(tmp_path, DiskRules())
    (tmp_path / "results" / ".9.1.json").write_text("{}")
    (tmp_path / "results" / "2.1" / "data").unlink()
    (tmp_path / "results" / "2.1").rmdir()
    kept.tidy()
    assert sorted(os.listdir(tmp_path / "results")) == [".1.1.json", ".3.1.json", "1.1", "3.1"]


def test_an_agent_keeps_files_when_a_run_may_be_forgotten(tmp_path: Path) -> None:
    now = [10.0]
    with hosting(tmp_path, Fake(clock=lambda: now[0])) as (host, _):
        told(host, 1, starts=(LAUNCH,))
        work = tmp_path / "runs" / "1.1" / "task" / "work"
        work.mkdir(parents=True, exist_ok=True)
        (work / "model.bin").write_text("weights")
        ask = FileRequest(7, (1, 1), "model.bin")
        assert host.files(ask).data == "weights", "also while it runs"
        now[0] += 100.0
        (run,) = told(host, 2)
        assert run.outcome is not None
        assert run.outcome.results == str(tmp_path / "results" / "1.1")
        told(host, 3, forgets=((1, 1),))
        host.arrived(LogSize((1, 1), 0))
        wait_for(lambda: not (tmp_path / "runs" / "1.1").exists())
        assert host.files(ask).data == "weights"
        assert "no files of task 9 attempt 1 are kept" in host.files(FileRequest(8, (9, 1))).fault


def test_another_task_of_the_same_number_does_not_get_files_of_the_first(tmp_path: Path) -> None:
    """As with a new or an older store, which gives out numbers again."""
    earlier = run_in(tmp_path)
    (earlier.work / "hers").write_text("secret")
    Results(tmp_path, DiskRules()).keep(earlier)
    now = [10.0]
    with hosting(tmp_path, Fake(clock=lambda: now[0])) as (host, _):
        told(host, 1, starts=(LAUNCH,))
        work = tmp_path / "runs" / "1.1" / "task" / "work"
        work.mkdir(parents=True, exist_ok=True)
        assert host.files(FileRequest(7, (1, 1), "hers")).data != "secret"
        (work / "his").write_text("model")
        now[0] += 100.0
        told(host, 2)
        told(host, 3, forgets=((1, 1),))
        host.arrived(LogSize((1, 1), 0))
        wait_for(lambda: not (tmp_path / "runs" / "1.1").exists())
        assert os.listdir(tmp_path / "results" / "1.1") == ["his"]
    kept = Results(tmp_path, DiskRules())
    kept.tidy()
    assert sorted(os.listdir(tmp_path / "results")) == [".1.1.json", "1.1"]


def test_files_of_the_first_go_also_where_the_other_task_cannot_start(tmp_path: Path) -> None:
    earlier = run_in(tmp_path)
    (earlier.work / "hers").write_text("secret")
    Results(tmp_path, DiskRules()).keep(earlier)
    with hosting(tmp_path, Fake(clock=lambda: 10.0)) as (host, _):
        told(host, 1, starts=(replace(LAUNCH, secrets={"GONE": None}),))
        assert "no files of task 1 attempt 1 are kept" in host.files(FileRequest(8, (1, 1))).fault


# ------------------------------------------------------------------------- answering


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "file").write_bytes(bytes(range(256)) * 2048)
    (made / "out").symlink_to("/etc")
    (made / "loop").symlink_to("loop")
    os.mkfifo(made / "pipe")
    (tmp_path / "secret").write_text("secret")
    return made


@pytest.mark.parametrize(
    "path", ["out/passwd", "out", "../secret", "sub/../../secret", "loop", "pipe", "sub/none", "./x"]
)
def test_nothing_outside_of_the_directory_is_read(root: Path, path: str) -> None:
    for listed in (False, True):
        told = files.answer(FileRequest(1, (1, 1), path, listed), root)
        assert told.fault.startswith("task 1 attempt 1 has no file")
        assert (told.data, told.entries) == ("", ())


def test_a_file_comes_in_pieces_and_a_directory_in_pages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (root / "sub" / "file").read_bytes()
    first = files.answer(FileRequest(1, (1, 1), "sub/file"), root)
    second = files.answer(FileRequest(2, (1, 1), "/sub//file", offset=CHUNK), root)
    assert (first.data + second.data).encode("latin-1") == whole
    assert first.size == len(whole)
    assert files.answer(FileRequest(3, (1, 1), "sub/file", offset=10**9), root).data == ""
    monkeypatch.setattr(files, "PAGE", 3)
    page = files.answer(FileRequest(4, (1, 1), listed=True), root)
    assert ([(e.name, e.kind) for e in page.entries], page.more) == (
        [("loop", "link"), ("out", "link"), ("pipe", "special")],
        True,
    )
    page = files.answer(FileRequest(5, (1, 1), listed=True, after="pipe"), root)
    assert ([(e.name, e.kind) for e in page.entries], page.more) == ([("sub", "directory")], False)


# ---------------------------------------------------------------------------- asking


def test_agents_that_are_away_or_silent_or_of_another_cluster_give_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "PATIENCE", 0.2)

    async def scene() -> None:
        sent: list[Message] = []
        there = [True]

        def send(_cluster: str, message: Message) -> bool:
            sent.append(message)
            return there[0]

        one = desk.FileDesk(send)
        asking = asyncio.create_task(one.ask("left", (1, 1), "x"))
        while not sent:
            await asyncio.sleep(0)
        assert isinstance(sent[0], FileRequest)
        one.answered("right", FileAnswer(sent[0].number, data="forged"))
        one.answered("left", FileAnswer(sent[0].number, data="real"))
        assert (await asking).data == "real"
        with pytest.raises(AgentUnavailable, match=r"has not answered for 0.2 s"):
            await one.ask("left", (1, 1), "x")
        there[0] = False
        with pytest.raises(AgentUnavailable, match="is not connected"):
            await one.ask("left", (1, 1), "x")
        monkeypatch.setattr(desk, "WAITING", 0)
        with pytest.raises(TooMany):
            await one.ask("left", (1, 1), "x")
        assert not one._asked
        assert not one._at
        assert not one._of

    asyncio.run(scene())


def test_an_agent_that_does_not_answer_takes_no_places_from_others() -> None:
    async def scene() -> None:
        def send(cluster: str, message: Message) -> bool:
            if cluster == "quick" and isinstance(message, FileRequest):
                asyncio.get_running_loop().call_soon(one.answered, cluster, FileAnswer(message.number, data="x"))
            return True

        one = desk.FileDesk(send)

        async def ask(cluster: str, asker: str) -> str:
            return (await one.ask(cluster, (1, 1), "a", asker=asker)).data

        askers = [f"m{n % 2}" for n in range(3 * desk.WAITING_OF_ONE)]
        asking = [asyncio.create_task(ask("silent", asker)) for asker in askers]
        for _ in range(5):
            await asyncio.sleep(0)
        assert sum(not one.done() for one in asking) == desk.WAITING_AT_ONE
        assert await ask("quick", "ann") == "x"
        with pytest.raises(TooMany, match="of your requests"):
            await ask("quick", "m0")
        with pytest.raises(TooMany, match="on cluster 'silent'"):
            await ask("silent", "ann")
        for waits in asking:
            waits.cancel()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(result) for result in results} <= {TooMany, asyncio.CancelledError}
        assert not one._at
        assert not one._of

    asyncio.run(scene())


# -------------------------------------------------------------------------- fetching


def test_a_file_that_cannot_be_fetched_does_not_keep_others_from_it(tmp_path: Path) -> None:
    names = ("bad\ud800", "gone", "in the way", "model.bin")

    def ask(path: str, params: dict[str, object]) -> httpx.Response:
        if path.endswith("/files"):
            entries = [{"name": name, "kind": "file", "size": 3, "modified": 1.0} for name in names]
            return httpx.Response(200, content=json.dumps({"files": entries, "more": False}))
        if params["path"] == "gone":
            raise NotFound("task 1 has no file 'gone'")
        return httpx.Response(200, content=b"yes", headers={"X-Size": "3"})

    (tmp_path / "in the way").mkdir()
    with pytest.raises(NotFetched, match="3 of 4 files were not fetched") as told_of:
        fetching.fetch_all(ask, 1, "", tmp_path, None)
    assert told_of.value.fetched == (str(tmp_path / "model.bin"),)
    assert (tmp_path / "model.bin").read_bytes() == b"yes"
    assert [line.removeprefix(f"{tmp_path}/").partition(":")[0] for line in told_of.value.failed] == [
        "bad\ud800 cannot be written",
        "gone cannot be fetched",
        "in the way cannot be written",
    ]


# -------------------------------------------------------------------------- for real


def test_results_of_a_task_are_fetched_through_the_coordinator(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    try:
        client = site.up()
        (task, other) = client.submit(python(LEAVES, cwd=None), python("pass", cwd=str(tmp_path)))
        info = client.wait(task, PATIENCE)
        assert info.code == 0
        assert info.results.endswith(f"/results/{task}.1")
        assert info.results_until is not None
        assert info.results_until > time.time() + 71 * 3600
        wait_for(lambda: Path(info.results).is_dir())  # its run is forgotten by now
        assert [(f.path, f.kind) for f in client.files(task)] == [
            ("deep", "directory"),
            ("deep/er", "directory"),
            ("deep/er/note", "file"),
            ("model.bin", "file"),
            ("pipe", "special"),
            ("way out", "link"),
        ]
        to = tmp_path / "to"
        assert client.fetch(task, to=to) == [to / "deep/er/note", to / "model.bin"]
        whole = bytes(range(256)) * 4096
        assert (to / "model.bin").read_bytes() == whole
        check_command(site, task, tmp_path / "again")
        check_refusals(site, client, task, other)
        site.kill("left")
        site.kill("right")
        with pytest.raises(CoordinatorError, match=r"is not connected|has not answered"):
            client.fetch(task, "model.bin", to=tmp_path / "never")
    finally:
        site.close()


def check_command(site: RealSite, task: int, to: Path) -> None:
    """The command goes on with what was fetched in part."""
    assert site.client is not None
    (entry,) = site.client.files(task, "model.bin")
    to.mkdir()
    part = to / fetching.part_of(entry)
    part.write_bytes(b"?" * 1000)  # as if it had come: it is gone on with, not fetched again
    state = ["--state", str(site.state)]
    told = CliRunner().invoke(app, ["get", str(task), "model.bin", "--to", str(to), *state])
    assert told.exit_code == 0, told.output
    assert (to / "model.bin").read_bytes()[:1010] == b"?" * 1000 + (bytes(range(256)) * 4)[1000:1010]
    barred = to.parent / "barred"
    barred.mkdir()
    (barred / "deep").touch()  # where a directory should be
    told = CliRunner().invoke(app, ["get", str(task), "--to", str(barred), *state])
    assert told.exit_code == 1, told.output
    assert f"{barred / 'deep/er/note'} cannot be written" in told.output
    assert "1 of 2 files were not fetched" in told.output
    assert (barred / "model.bin").read_bytes() == bytes(range(256)) * 4096
    told = CliRunner().invoke(app, ["get", str(task), "--list", *state])
    assert "way out  (link)" in told.output
    assert "1048576  model.bin" in told.output
    told = CliRunner().invoke(app, ["show", str(task), *state])
    assert f"'tapfinger get {task}' fetches them" in told.output


def check_refusals(site: RealSite, client: Client, task: int, other: int) -> None:
    """Others get nothing; who asks for what is not there is told so."""
    with pytest.raises(NotFound, match="has no file 'none'"):
        client.fetch(task, "none")
    with pytest.raises(NotFound, match="TapFinger keeps no files of it"):
        list(client.files(other))
    with pytest.raises(NotFound, match="no attempt 5"):
        list(client.files(task, attempt=5))
    for role in ("viewer", "submitter"):
        with Client(site.url, client.new_token(role, role)) as someone:
            with pytest.raises(CoordinatorError, match="a file of task 1 is for first, who owns it, and for operators"):
                list(someone.files(task))
            with pytest.raises(CoordinatorError, match="a file of task 1 is for first, who owns it, and for operators"):
                someone.fetch(task, "model.bin")


def test_the_configuration_says_how_long(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    site.config.write_text(CONFIG + "keep_results_hours = 0.0\n")
    try:
        client = site.up()
        (task,) = client.submit(python("open('x', 'w').close()", cwd=None))
        info = client.wait(task, PATIENCE)
        assert (info.code, info.results) == (0, "")
        wait_for(lambda: not any((site.state / "agents").glob(f"*/*/{task}.*")))
    finally:
        site.close()
