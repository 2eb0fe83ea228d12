"""What tasks say of their progress, and what is believed of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tapfinger
from tapfinger.progress import MOST, MOST_FAULTS, ProgressCheck, ProgressReader, ProgressReport
from tapfinger.reporting import INTERVAL, LONGEST, MOST_METRICS, VARIABLE, _Reporter


def run(code: str, path: Path | str | None, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    env.pop(VARIABLE, None)
    if path is not None:
        env[VARIABLE] = str(path)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_outside_it_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    tapfinger.report("nonsense", loss="more")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = "import tapfinger, sys; tapfinger.report(0.5); print({'numpy', 'pydantic', 'torch'} & sys.modules.keys())"
    assert run(code, None).stdout == "set()\n"


def test_a_hurried_task_writes_few_lines_and_always_the_last(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    code = "import tapfinger\nfor i in range(20001): tapfinger.report(i / 40000, loss=1 - i / 40000)"
    assert run(code, path).returncode == 0
    said = lines(path)
    assert said[0]["progress"] == 0.0
    assert (said[-1]["progress"], said[-1]["metrics"]) == (0.5, {"loss": 0.5})
    assert len(said) <= 2 + (said[-1]["t"] - said[0]["t"]) / INTERVAL  # type: ignore[operator]


def test_all_done_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    code = "import os, tapfinger; tapfinger.report(0.5); tapfinger.report(0.6); tapfinger.report(1); os._exit(0)"
    run(code, path)
    assert [line["progress"] for line in lines(path)] == [0.5, 1.0]


def test_a_forked_child_does_not_repeat_what_its_parent_held_back(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    code = """
import os, sys, tapfinger
tapfinger.report(0.1); tapfinger.report(0.2)
if (pid := os.fork()) == 0: sys.exit()
os.waitpid(pid, 0)
"""
    run(code, path)
    assert [line["progress"] for line in lines(path)] == [0.1, 0.2]


@pytest.mark.parametrize("what", ["None", "'half'", "object()", "[1]", "1 / 2 if False else {}"])
def test_what_is_no_number_is_passed_over_with_one_warning(tmp_path: Path, what: str) -> None:
    path = tmp_path / "reports"
    done = run(f"import tapfinger\nfor _ in range(3): tapfinger.report({what})\ntapfinger.report(0.5)", path)
    assert done.returncode == 0
    assert done.stderr.count("tapfinger.report: progress must be a number") == 1
    assert [line["progress"] for line in lines(path)] == [0.5]


def test_a_number_that_is_no_progress_is_passed_on_to_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    done = run("import tapfinger, time\nfor p in (-1, 7, float('nan')): tapfinger.report(p); time.sleep(0.25)", path)
    assert done.stderr.count("must be from 0 to 1") == 1
    said = [report.progress for report in ProgressReader(path).read()]
    assert said[:2] == [-1.0, 7.0]
    assert math.isnan(said[2])


def test_metrics_that_are_no_numbers_or_too_many_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    many = ", ".join(f"m{n}=1" for n in range(MOST_METRICS))
    done = run(f"import tapfinger; tapfinger.report(0.5, bad='x', nan=float('nan'), {many}, more=1)", path)
    (line,) = lines(path)
    assert list(line["metrics"]) == [f"m{n}" for n in range(MOST_METRICS)]  # type: ignore[call-overload]
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["/no/such/directory/reports", "/", "/dev/full"])
def test_where_nothing_can_be_written_the_task_goes_on(where: str) -> None:
    done = run("import tapfinger; tapfinger.report(0.5); print('went on')", where)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert done.stderr.count("\n") == 1


def test_a_pipe_that_nobody_reads_keeps_no_task_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run("import tapfinger; tapfinger.report(0.5); print('went on')", pipe).stdout == "went on\n"
    assert ProgressReader(pipe).read() == []


def test_the_file_begins_anew_before_it_is_too_long(tmp_path: Path) -> None:
    path, reporter, reader = tmp_path / "reports", _Reporter(), ProgressReader(tmp_path / "reports")
    metrics = {f"a_rather_long_name_of_a_metric_{n}": n / 7 for n in range(9)}
    seen = []
    for n in range(4000):
        reporter.report(str(path), 1.0, {**metrics, "n": n})
        assert path.stat().st_size <= LONGEST
        if n % 100 == 0:
            seen += [report.metrics["n"] for report in reader.read()]
    seen += [report.metrics["n"] for report in reader.read()]
    assert seen == sorted(seen)
    assert seen[-1] == 3999
    assert len(seen) > 3800  # what came between the last look and the new beginning is lost


def line(progress: object, t: object = 1.0) -> str:
    return json.dumps({"t": t, "progress": progress, "metrics": {}}) + "\n"


def test_a_reader_gives_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    reader = ProgressReader(path)
    assert reader.read() == []
    whole = line(0.25)
    path.write_text(whole + whole[:10])
    assert [r.progress for r in reader.read()] == [0.25]
    with path.open("a") as file:
        file.write(whole[10:])
    assert [r.progress for r in reader.read()] == [0.25]
    assert reader.read() == []
    assert reader.garbage == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00\xff\xfe",
        b"[]",
        b"{}",
        b'{"t": 1}',
        b'{"t": 1, "progress": "0.5"}',
        b'{"t": true, "progress": 1}',
        b"[" * 9999,
        b'{"t": 1, "progress": 1, "metrics": 3}',
        b'{"t": NaN, "progress": 1}',
        b'{"t": 1' + b"0" * 400 + b', "progress": 1}',
    ],
)
def test_garbage_is_passed_over_and_said(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "reports"
    path.write_bytes(bad + b"\n" + line(0.5).encode())
    reader, check = ProgressReader(path), ProgressCheck()
    assert [r.progress for r in check.read_of(reader)] == [0.5]
    assert reader.garbage == 1
    assert "no reports" in check.faults[0]


def test_of_a_flood_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    with path.open("wb") as file:
        file.write(b"x" * (3 * MOST))
        file.write(b"\n" + line(0.5).encode())
    reader, check = ProgressReader(path), ProgressCheck()
    began = time.thread_time()
    assert [r.progress for r in check.read_of(reader)] == [0.5]
    assert time.thread_time() - began < 1.0
    assert any("bytes at once" in fault for fault in check.faults)
    with path.open("ab") as file:
        file.write(b"y" * MOST)  # a line without an end is not kept
    reader.read()
    assert len(reader._rest) <= MOST // 4


def judged(*said: float) -> tuple[list[float], ProgressCheck]:
    check = ProgressCheck()
    believed = check.take(ProgressReport(float(n), p, {}) for n, p in enumerate(said))
    return [report.progress for report in believed], check


def test_each_kind_of_nonsense_is_said_once_and_not_believed() -> None:
    believed, check = judged(0.1, -1, -2, math.nan, math.nan, 1.5, math.inf, 0.5, 0.2, 0.3, 0.5, 1.0)
    assert believed == [0.1, 0.5, 0.5, 1.0]
    assert [next(w for w in ("below", "NaN", "above", "backwards") if w in f) for f in check.faults] == [
        "below",
        "NaN",
        "above",
        "backwards",
    ]
    assert check.complete
    assert check.trusted


def test_a_task_that_reports_and_never_reaches_the_end_is_not_complete() -> None:
    assert judged()[1].complete
    assert judged(0.2, 0.7)[1].complete is False
    assert judged(0.2, 7.0)[1].complete is False
    assert judged(0.1 * 3 + 0.7 - 1e-9)[1].complete


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_what_is_believed_is_progress(said: list[float]) -> None:
    believed, check = judged(*said)
    assert believed == sorted(believed)
    assert all(0.0 <= progress <= 1.0 for progress in believed)
    assert len(check.faults) <= MOST_FAULTS
    # Nothing that fits is left out.
    best = -1.0
    for progress in said:
        if 0.0 <= progress <= 1.0 and progress >= best:
            best = progress
    assert (check.last.progress if check.last else -1.0) == best


@given(st.binary(max_size=3000))
def test_any_bytes_can_be_read(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        for report in ProgressReader(file.name).read():
            assert isinstance(report.progress, float)
