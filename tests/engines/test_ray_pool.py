"""The same jobs and comparisons on a real Ray cluster: equal results, lost workers, clear errors."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tapfinger.config import load_scenario
from tapfinger.errors import ConfigError, MissingDependency
from tapfinger.evaluation.cells import EVENTS, CellStore
from tapfinger.evaluation.runner import CellFailed, Interrupted, Runner
from tapfinger.evaluation.specs import parse_specs
from tapfinger.parallel import on_ray
from tapfinger.parallel.base import JobFailed, WorkerLost
from tapfinger.parallel.choose import open_pool
from tapfinger.parallel.local import InProcess
from tapfinger.parallel.on_ray import RayPool, RayUnavailable, check_answer, on_worker
from tapfinger.parallel.sameness import differences, fingerprint
from tapfinger.schedulers.naive import Min
from tapfinger.training.config import DeviationConfig, GroupConfig, TrainConfig
from tapfinger.training.trainer import Trainer
from tapfinger.workloads.world import build_world

# Any of them may be the first to start a cluster (ray_starting.LONGEST; workers import this module and do not have that
# one), and every new worker imports torch first.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(700), pytest.mark.xdist_group("ray")]

SPECS = parse_specs("min,random")


@pytest.fixture(scope="module")
def pool(cluster):
    """Stays connected, so that the pools of later tests in this process need not connect again."""
    with RayPool(cluster) as pool:
        yield pool


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """results.json of the command without a cluster."""
    folder = tmp_path_factory.mktemp("here")
    return results(folder)


def scenario():
    return load_scenario("multi-3", ["tasks=25"])


def draw(seed):
    return np.random.default_rng(seed).normal(size=3)


def process_of(_):
    time.sleep(0.05)
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


def fail(_):
    raise ConfigError("tasks = 0 must be 1 or more")


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(job):
    """Ends its worker the first time, as a machine that is switched off would."""
    seed, marker = job
    if marker is not None and not Path(marker).exists():
        Path(marker).mkdir()  # no file: the contents of files that an option names are part of a cell's key
        die(None)
    return draw(seed)


class DiesOnce(Min):
    """Min whose process is killed in its first run."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def decide(self, snapshot):
        if snapshot.slot == 3:
            die_once((0, self.marker))
        return super().decide(snapshot)


def test_results_are_those_of_this_process(pool):
    for _ in range(2):
        there = pool.gather(draw, range(7))
        assert [array.tolist() for array in there] == [draw(seed).tolist() for seed in range(7)]
        there[0] += 1  # results may be written to
    assert pool.gather(draw, []) == []


def test_workers_have_one_thread_and_stay_between_batches(pool):
    seen = {worker for _ in range(10) for worker in pool.gather(process_of, range(2))}
    assert len(seen) < 10
    assert {threads for _, threads in seen} == {"1"}
    assert os.getpid() not in {pid for pid, _ in seen}


def test_more_jobs_than_are_handed_in_at_a_time(pool, monkeypatch):
    monkeypatch.setattr(on_ray, "IN_FLIGHT", 3)
    assert [array.tolist() for array in pool.gather(draw, range(10))] == [draw(seed).tolist() for seed in range(10)]


def test_a_lost_worker_changes_nothing(pool, tmp_path):
    marker = tmp_path / "killed"
    there = pool.gather(die_once, [(0, None), (1, str(marker)), (2, None), (3, None)])
    assert marker.exists()
    assert [array.tolist() for array in there] == [draw(seed).tolist() for seed in range(4)]


def test_a_job_that_always_ends_its_worker_is_given_up(pool):
    with pytest.raises(WorkerLost, match="lost 4 times") as caught:
        pool.gather(die, [0])
    assert caught.value.index == 0
    assert pool.gather(draw, [1])[0].tolist() == draw(1).tolist()


def test_a_job_that_raises_ends_its_batch_and_not_the_pool(pool):
    with pytest.raises(JobFailed, match=r"^tasks = 0 must be 1 or more$"):
        pool.gather(fail, [0])
    assert pool.gather(draw, [1])[0].tolist() == draw(1).tolist()


def test_a_worker_with_other_code_is_refused(pool, monkeypatch):
    monkeypatch.setattr(on_ray, "fingerprint", lambda: {**fingerprint(), "numpy": "1.0"})
    with pytest.raises(
        RayUnavailable, match=f"on {socket.gethostname()}, numpy is {np.__version__} there and 1.0 here"
    ):
        pool.gather(draw, [1])


def test_what_counts_as_other_code():
    assert fingerprint().keys() >= {"Python", "tapfinger", "the source of tapfinger", "numpy"}
    assert differences(fingerprint(), fingerprint()) == ""
    assert differences({"torch": "2"}, {}) == differences({}, {"torch": "2"}) == ""
    assert on_worker({"the source of tapfinger": "x"}, b"never read")[0] == "unlike"


class Killing:
    """A pool on which one worker is killed in the middle of training."""

    def __init__(self, pool, marker):
        self.pool, self.marker, self.cores = pool, marker, pool.cores

    def gather(self, function, jobs):
        markers = [self.marker, *[None] * (len(jobs) - 1)]  # one worker only: two at once would both be first
        return self.pool.gather(roll_or_die, list(zip([function] * len(jobs), jobs, markers, strict=True)))


def roll_or_die(job):
    function, shard, marker = job
    die_once((0, marker))
    return function(shard)


def test_training_gives_the_same_weights_also_with_a_lost_worker(pool, tmp_path):
    world = build_world(scenario())
    config = TrainConfig(
        teacher="none",
        refinements=1,
        iterations=1,
        workloads=2,
        selection_runs=2,
        deviation=DeviationConfig(workloads=2, actions=3),
        group=GroupConfig(group=2),
    )
    marker = tmp_path / "killed"
    here = Trainer(world, config, tmp_path / "here", None, InProcess()).run()[0].state_dict()
    there = Trainer(world, config, tmp_path / "there", None, Killing(pool, str(marker))).run()[0].state_dict()
    assert marker.exists()
    for name, value in here.items():
        assert value.equal(there[name]), name


def test_cells_are_the_same_and_a_lost_worker_costs_none(pool, cluster, tmp_path):
    marker = tmp_path / "killed"
    specs = (*SPECS, *parse_specs(f"{__name__}:DiesOnce@marker={str(marker)!r}"))
    there = Runner(CellStore(tmp_path / "there"), ray=cluster).run(scenario(), specs, (0, 1))
    assert marker.exists()  # so it does not die here
    here = Runner(CellStore(tmp_path / "here")).run(scenario(), specs, (0, 1))
    assert (here.reused, there.reused) == (0, 0)
    for cell, folder in here.folders.items():
        assert (folder / EVENTS).read_bytes() == (there.folders[cell] / EVENTS).read_bytes()
    for text, runs in here.records.items():
        assert [run.completion.tolist() for run in runs] == [run.completion.tolist() for run in there.records[text]]
    assert Runner(CellStore(tmp_path / "there"), ray=cluster).run(scenario(), specs, (0, 1)).reused == 6


def test_an_interrupted_comparison_goes_on_where_it_stopped(pool, cluster, tmp_path):
    def stop_after_two(done, total):
        if done == 2:
            raise KeyboardInterrupt

    store = CellStore(tmp_path)
    with pytest.raises(Interrupted, match="2 of 8"):
        Runner(store, on_progress=stop_after_two, ray=cluster).run(scenario(), SPECS, range(4))
    assert Runner(store).run(scenario(), SPECS, range(4)).reused == 2


def test_other_files_on_a_worker_are_an_error(pool, cluster, tmp_path, monkeypatch):
    from tapfinger.evaluation import runner

    def cells_of_another_key(*arguments):
        return [runner.Cell(c.scenario, c.directory, c.spec, c.seed, "0" * 40) for c in made(*arguments)]

    made = runner.make_cells
    monkeypatch.setattr(runner, "make_cells", cells_of_another_key)
    with pytest.raises(CellFailed, match=r"scheduler 'min', seed 0.*has not the same files"):
        Runner(CellStore(tmp_path), ray=cluster).run(scenario(), SPECS[:1], (0,))


def command(folder, *words):
    """A comparison by the command, in a process of its own, that keeps nothing outside the folder."""
    environment = {**os.environ, "TAPFINGER_CACHE_DIR": str(folder / "cells"), "HOME": str(folder)}
    words = ("compare", "multi-3", "--set", "tasks=25", "--json", "results.json", *words)
    line = [sys.executable, "-m", "tapfinger", *words]
    return subprocess.Popen(line, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def results(folder, *words):
    """results.json but for decision times, which are measured."""
    process = command(folder, "--schedulers", "min,random", "--seeds", "0:3", *words)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    found = json.loads((folder / "results.json").read_text())
    for scheduler in found["schedulers"].values():
        del scheduler["decision_ms"]
    return found


def test_the_command_gives_the_same_results(here, cluster, tmp_path):
    assert results(tmp_path, "--ray", cluster) == here


def test_a_cluster_of_its_own_gives_the_same_and_leaves_nothing_at_home(here, tmp_path, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert results(tmp_path, "--ray", "local") == here
    assert not (tmp_path / ".ray").exists()


def test_sigterm_ends_the_command_in_order(cluster, tmp_path):
    (tmp_path / "slow_xyz.py").write_text(
        "import time\nfrom pathlib import Path\nfrom tapfinger.schedulers.naive import Min\n"
        "class Slow(Min):\n    def decide(self, snapshot):\n"
        f"        Path({str(tmp_path)!r}, 'begun').touch()\n        time.sleep(900)\n"
    )
    process = command(tmp_path, "--schedulers", "slow_xyz:Slow", "--seeds", "0:2", "--ray", cluster)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    said = process.communicate()[1]
    assert (process.returncode, "interrupted after 0 of 2 runs" in said) == (143, True), said


def test_without_its_token_a_cluster_refuses(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    process = command(tmp_path, "--schedulers", "min", "--ray", cluster)
    said = process.communicate()[1]
    assert process.returncode == 2
    assert "asks for its token: set RAY_AUTH_MODE=token" in said.replace("\n", " ")
    assert "Traceback" not in said


def test_a_process_has_one_cluster(pool, cluster):
    with open_pool(ray="auto") as same:
        assert same.gather(draw, [1])[0].tolist() == draw(1).tolist()
    assert pool.gather(draw, [1])[0].tolist() == draw(1).tolist()  # the other one has not left the cluster
    with pytest.raises(RayUnavailable, match=f"connected to the Ray cluster {cluster} already, not to 'local'"):
        open_pool(ray="local")


@pytest.mark.parametrize("address", ["somewhere", "ray://head:10001", ":6379", "head:port"])
def test_what_is_no_address(address):
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        check_answer(address)


def test_nobody_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RayUnavailable, match=f"no Ray cluster answers at 127.0.0.1:{port}: .*refused"):
        check_answer(f"127.0.0.1:{port}")


def test_something_else_at_the_address(monkeypatch):
    monkeypatch.setattr(on_ray, "ANSWER_SECONDS", 3)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(RayUnavailable, match=r"answers at 127.0.0.1:.* within 3 seconds"),
    ):
        check_answer(f"127.0.0.1:{server.getsockname()[1]}")


def test_processes_and_a_cluster_exclude_each_other():
    with pytest.raises(ConfigError, match="--jobs 2"):
        open_pool(2, "local")


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match=r"pip install 'tapfinger\[ray\]'"):
        open_pool(ray="auto")
