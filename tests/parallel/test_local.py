"""Pools on this machine: results, failures, lost workers, repeated batches."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import wait as wait_for_one

import numpy as np
import pytest
from waiting import PATIENCE

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.parallel.base import JobFailed, WorkerLost
from tapfinger.parallel.choose import open_pool
from tapfinger.parallel.local import InProcess, Processes


def draw(seed):
    return np.random.default_rng(seed).normal(size=3)


def process_of(_):
    time.sleep(0.05)
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


def fail(kind):
    raise {"own": ConfigError("tasks = 0 must be 1 or more"), "bug": ZeroDivisionError("oh")}.get(
        kind, UnknownNameError("scheduler", "x", ["y"])
    )


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(seconds):
    time.sleep(seconds)


@pytest.fixture(scope="module")
def two():
    with Processes(2) as pool:
        yield pool


def test_results_are_those_of_this_process(two):
    seeds = range(7)
    here = InProcess().gather(draw, seeds)
    assert sorted(index for index, _ in two.run(draw, seeds)) == list(seeds)
    for mine, other in zip(here, two.gather(draw, seeds), strict=True):
        assert mine.tolist() == other.tolist()
        other += 1  # results may be written to
    assert two.gather(draw, []) == []


def test_processes_have_one_thread_and_stay_between_batches(two, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    seen = {worker for _ in range(5) for worker in two.gather(process_of, range(4))}
    assert len(seen) <= 2
    assert {threads for _, threads in seen} == {"1"}
    assert os.getpid() not in {pid for pid, _ in seen}
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("kind", "said"),
    [("own", "^tasks = 0 must be 1 or more$"), ("bug", r"(?s)in fail.*ZeroDivisionError: oh"), ("odd", "no scheduler")],
)
def test_a_job_that_raises_ends_its_batch_and_not_the_pool(two, kind, said):
    with pytest.raises(JobFailed, match=said) as caught:
        two.gather(fail, [kind])
    assert caught.value.index == 0
    assert two.gather(draw, [1])[0].tolist() == draw(1).tolist()


def test_in_this_process_an_exception_stays_what_it_is():
    with pytest.raises(ZeroDivisionError, match="oh"), open_pool() as pool:
        pool.gather(fail, ["bug"])


def test_a_lost_process_ends_its_batch_and_not_the_pool():
    with open_pool(2) as pool:
        with pytest.raises(WorkerLost, match="the process died"):
            pool.gather(die, range(3))
        assert pool.gather(draw, [1])[0].tolist() == draw(1).tolist()


def stopped_batch(pool, other):
    with pool:
        next(pool.run(sleep, [0, 900, 900]))
        other.start()
        raise KeyboardInterrupt


def test_an_exception_ends_processes_at_once_and_only_those_of_the_pool():
    before = multiprocessing.active_children()
    other = multiprocessing.get_context("spawn").Process(target=sleep, args=(900,))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stopped_batch(Processes(2), other)
    ours = [process for process in multiprocessing.active_children() if process not in (*before, other)]
    # The executor's own thread reaps them too; while it does, a dead process can still count as alive for us.
    assert all(wait_for_one([process.sentinel], PATIENCE) for process in ours)
    assert other.is_alive()
    assert time.monotonic() - begin < 600
    other.kill()
    other.join()
