"""``tapfinger profile`` with real processes: good tasks, and every bad one that people have."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from waiting import PATIENCE, wait_for

from tapfinger.cli import app
from tapfinger.errors import TapfingerError
from tapfinger.profiles.table import load_profile, read_rows

TASK = """
import json, os, sys, time
cpus, gpus = float(os.environ["TAPFINGER_CPUS"]), float(os.environ["TAPFINGER_GPUS"])
def report(progress, **metrics):
    with open(os.environ["TAPFINGER_REPORT"], "a") as file:
        file.write(json.dumps({"t": time.time(), "progress": progress, "metrics": metrics}) + "\\n")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Profile a task of these lines; returns what was printed, or raises what a user would be told."""
    monkeypatch.chdir(tmp_path)

    def invoke(lines, *options, grid=("--grid", "cpu=1 gpu=0:1", "--gpus", "1")):
        (tmp_path / "my_task.py").write_text(TASK + lines)
        words = ["profile", *grid, "--busy", "1", "--no-pictures", *options, "--", sys.executable, "my_task.py"]
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, TapfingerError):
            raise result.exception
        assert result.exception is None or result.exit_code, result.output
        return result.output

    return invoke


def lines_of(path="my_task.runs.jsonl"):
    return [json.loads(line) for line in Path(path).read_text().splitlines()][1:]


def test_from_a_task_to_a_scenario(run, tmp_path):
    output = run("time.sleep(0.2 if gpus else 1.5)", "--pictures", "--repeats", "1")
    profile = load_profile(tmp_path / "my_task.csv", "my_task")
    assert "differ" not in output, "no allocation was run twice"
    assert 0.2 < profile.seconds({"cpu": 1, "gpu": 1}) < profile.seconds({"cpu": 1, "gpu": 0}) < 60.0
    assert (tmp_path / "my_task.heatmap.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "my_task.curves.png").stat().st_size > 5000
    toml = output[output.index("[[task_types]]") : output.index("A whole scenario")]
    assert 'speed = { kind = "table", file = "my_task.csv" }' in toml
    scenario = 'name = "mine"\nmode = "multi"\ntasks = 5\n[[clusters]]\nname = "a"\ncapacity = {cpu = 4, gpu = 2}\n'
    scenario += '[arrivals]\nkind = "poisson"\nrate = 1\n'
    (tmp_path / "mine.toml").write_text(scenario + toml)
    played = CliRunner().invoke(app, ["simulate", "mine.toml", "--scheduler", "greedy"])
    assert played.exit_code == 0, played.output
    assert not list(tmp_path.glob(".my_task*"))
    # Again: everything is known, nothing is run.
    before = lines_of()
    run("time.sleep(0.2 if gpus else 1.5)", "--repeats", "1")
    assert lines_of() == before


def test_bad_runs_are_recorded_and_never_in_the_profile(run):
    output = run(
        """
if gpus == 0: sys.exit("needs a gpu")
if gpus == 1: print("x" * 3_000_000); report(0.5, loss=1.0); report(7); report(1.0, loss=0.5)
if gpus == 2: report(0.5); sys.exit(0)
if gpus == 3: time.sleep(600)
""",
        "--repeats",
        "1",
        "--limit",
        "6",
        grid=("--grid", "cpu=1", "--grid", "gpu=0:3", "--gpus", "3"),
    )
    found = {line["cell"]["gpu"]: line for line in lines_of()}
    assert [found[gpu]["result"] for gpu in range(4)] == ["failed", "finished", "unfinished", "limit"]
    assert "needs a gpu" in found[0]["tail"]
    assert [point[1:] for point in found[1]["curve"]] == [[0.5, {"loss": 1.0}], [1.0, {"loss": 0.5}]]
    assert "above 1" in found[1]["faults"][0]
    assert "progress was 0.5" in found[2]["reason"]
    assert found[3]["seconds"] < 300
    assert [row.amounts["gpu"] for _, row in read_rows("my_task.csv")] == [1.0]
    assert "failed: it exited with 1; it said: needs a gpu" in output
    assert "Did not run with 1 cpu, 0 gpu" in output
    assert "minimum = { cpu = 1, gpu = 1 }" in output
    assert "maximum = { cpu = 1, gpu = 1 }" in output


def test_a_task_that_fails_everywhere_is_an_error_with_its_last_words(run):
    with pytest.raises(TapfingerError, match="did not finish under any of the 2 allocations") as error:
        run("raise RuntimeError('no data')")
    assert "RuntimeError: no data" in str(error.value)
    assert not Path("my_task.csv").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "profile.txt"], "end in .csv"),
        (["--out", "no/such/place.csv"], "there is no directory"),
        (["--cwd", "no-such-place"], "there is no such directory"),
        (["--budget", "soon"], "must be a time above 0"),
        (["--type", "a b"], "must be a name"),
        (["--backend", "slurm"], "must be process or ray"),
        (["--backend", "ray", "--ray-address", "http://127.0.0.1:9"], "no answer from Ray"),
        (["--env", "NAME"], "must look like NAME=VALUE"),
    ],
)
def test_bad_options_are_said_before_anything_runs(run, options, words):
    with pytest.raises(TapfingerError, match=words):
        run("open('ran', 'w')", *options)
    assert not Path("ran").exists()


def test_more_than_the_machine_has_is_refused(run):
    with pytest.raises(TapfingerError, match="up to 4096 cpu, but this machine has"):
        run("", grid=("--grid", "cpu=4096"))
    with pytest.raises(TapfingerError, match="up to 64 gpu, but this machine has"):
        run("", grid=("--grid", "cpu=1", "--grid", "gpu=64"))


def test_what_is_there_is_not_overwritten(run):
    Path("my_task.csv").write_text("precious")
    with pytest.raises(TapfingerError, match="it would be lost"):
        run("")
    assert Path("my_task.csv").read_text() == "precious"
    Path("my_task.runs.jsonl").write_text('{"tapfinger_profile": 1, "type": "another"}\n')
    with pytest.raises(TapfingerError, match="its type is 'another'"):
        run("")
    assert Path("my_task.csv").read_text() == "precious"
    run("", "--fresh", "--repeats", "1")
    assert len(lines_of()) == 2


def test_ctrl_c_ends_the_task_keeps_the_runs_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "my_task.py").write_text(
        TASK + "open(f'pid-{gpus:g}', 'w').write(str(os.getpid())); time.sleep(900 if gpus == 0 and not "
        "os.path.exists('quick') else 0.1)"
    )
    words = [sys.executable, "-m", "tapfinger", "profile", "--grid", "cpu=1", "gpu=0:1", "--gpus", "1", "--busy", "1"]
    words += ["--repeats", "1", "--no-pictures", "--", sys.executable, "my_task.py"]
    first = subprocess.Popen(
        words,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell lets what it runs in the background ignore Ctrl-C; the tests may be run so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: ((tmp_path / "pid-0").exists() and (tmp_path / "pid-0").read_text()) or first.poll() is not None)
    assert first.poll() is None, first.communicate()
    first.send_signal(signal.SIGINT)
    output = first.communicate(timeout=PATIENCE)[0]
    assert first.returncode == 130
    assert "The same command goes on from here" in output
    assert not _alive(int((tmp_path / "pid-0").read_text()))
    assert [line["cell"]["gpu"] for line in lines_of(tmp_path / "my_task.runs.jsonl")] == [1.0]
    assert len(read_rows(tmp_path / "my_task.csv")) == 1

    (tmp_path / "quick").write_text("")
    second = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert second.returncode == 0, second.stderr
    assert "going on from 1 earlier runs" in second.stdout
    assert [line["cell"]["gpu"] for line in lines_of(tmp_path / "my_task.runs.jsonl")] == [1.0, 0.0]
    assert len(read_rows(tmp_path / "my_task.csv")) == 2


def test_what_a_killed_profiler_left_running_is_ended_by_the_next(tmp_path):
    (tmp_path / "my_task.py").write_text(
        TASK + "open('pid', 'a').write(f'{os.getpid()}\\n'); time.sleep(0.1 if os.path.exists('quick') else 900)"
    )
    words = [sys.executable, "-m", "tapfinger", "profile", "--grid", "cpu=1", "--busy", "1", "--repeats", "1"]
    words += ["--no-pictures", "--", sys.executable, "my_task.py"]
    first = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    first.kill()
    first.wait()
    left = int((tmp_path / "pid").read_text())
    assert _alive(left)
    (tmp_path / "quick").write_text("")
    second = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert second.returncode == 0, second.stderr
    assert not _alive(left)
    assert len(lines_of(tmp_path / "my_task.runs.jsonl")) == 1


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
