"""Tasks on a real Ray cluster of this machine: the contract, leases, restarts, and a whole site."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines.ray_head import Head
from engines.ray_starting import LONGEST
from live.sites import RealSite, opened, python
from waiting import PATIENCE, wait_for

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError
from tapfinger.live.agent.leases import boot_clock, read_lease, write_lease
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import Backend, Run
from tapfinger.live.backends.ray import Ray
from tapfinger.live.backends.ray_jobs import RayJobs, RayUnreachable
from tapfinger.live.backends.spool import Spool
from tapfinger.live.protocol.messages import Launch, Outcome
from tapfinger.testing import check_backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONGEST + 180), pytest.mark.xdist_group("ray")]


class Maker:
    """Makes backends, one after the other: a new one takes the place of a predecessor that is gone."""

    def __init__(self, head: Head, directory: Path) -> None:
        self.head = head
        self.directory = directory
        self.last: Ray | None = None

    def close(self) -> None:
        if self.last is not None:
            self.last.close()

    def __call__(self) -> Ray:
        self.close()
        made = Ray(self.head.url, self.head.token, python=sys.executable, linger=0.5)
        self.last = opened(made, self.directory, stop_seconds=1.0, max_log=40_000)
        return self.last


@pytest.fixture(scope="module", autouse=True)
def contract(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[None]]:
    """The conformance kit, beside the other tests: most of its time it waits for Ray."""
    directory = tmp_path_factory.mktemp("contract")
    maker = Maker(head, directory)
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(check_backend, maker, directory, patience=PATIENCE)
    maker.close()


@pytest.fixture
def make(head: Head, tmp_path: Path) -> Iterator[Maker]:
    maker = Maker(head, tmp_path)
    yield maker
    maker.close()


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Run]:
    """Runs of Python code, with a lease of ten minutes."""
    write_lease(tmp_path / "lease", boot_clock() + 600.0)

    def call(number: int, code: str, *argv: str, **more: Any) -> Run:
        launch = Launch((number, 1), (sys.executable, "-c", code, *argv), {"cpu": 1.0, "gpu": 0.0}, {})
        run = Run(replace(launch, **more), tmp_path / f"{number}.1", {}, tmp_path / "lease")
        run.directory.mkdir()
        return run

    return call


def end_of(backend: Backend, run: Run) -> Outcome:
    found: Outcome = wait_for(lambda: backend.poll(run))
    return found


def said(run: Run) -> str:
    return run.output.read_text() if run.output.exists() else ""


def test_the_ray_backend_fulfils_the_contract(contract: Future[None]) -> None:
    contract.result(2 * PATIENCE)


LOOK = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.argv[1:]]))"
NASTY = ["; touch {0}", "$(touch {0})", "`touch {0}`", "a b", "", "*", "ü\n'\"", "' && touch {0} '", "\\"]
LONG = "for i in range(20_000): print('line', i)"


def test_what_a_task_sees_and_writes(make: Maker, run_of: Callable[..., Run], tmp_path: Path) -> None:
    backend = make()
    (tmp_path / "other").mkdir()
    write_lease(tmp_path / "other" / "lease", boot_clock() + 600.0)
    other = Ray(make.head.url, make.head.token, python="/no/such/python")
    never = replace(run_of(9, "pass"), lease=tmp_path / "other" / "lease")
    other.start(never)
    nasty = [text.format(tmp_path / "injected") for text in NASTY]
    granted = {"cpu": 2.0, "gpu": 1.0}
    seen = run_of(1, LOOK, *nasty, allocation=granted, env={"MINE": "'; exit 1; '"}, cwd=str(tmp_path))
    long, huge = run_of(2, LONG), run_of(3, "import sys; print(len(sys.argv[1]))", "x" * 200_000)
    for run in (seen, long, huge):
        backend.start(run)
    assert end_of(backend, seen).code == 0, said(seen)
    env, cwd, argv = json.loads(said(seen))
    assert (argv, cwd, env["MINE"]) == (nasty, str(tmp_path), "'; exit 1; '")
    assert not (tmp_path / "injected").exists()
    assert (env["TAPFINGER_CPUS"], env["TAPFINGER_GPUS"], env["OMP_NUM_THREADS"]) == ("2", "1", "2")
    assert env["CUDA_VISIBLE_DEVICES"] in ("0", "1"), "Ray says which"
    assert not [name for name in env if "TOKEN" in name or name.startswith("RAY_")]
    written = sum(len(f"line {i}\n") for i in range(20_000))
    assert (end_of(backend, long).output, Spool(long.output).end) == (written, written)
    assert Spool(long.output).read(0, 7)[1] == b"line 0\n"
    assert Spool(long.output).read(written - 11, 100)[1] == b"line 19999\n"
    assert Spool(long.output).kept <= 50_000
    end = end_of(backend, huge)
    assert (end.result, said(huge)) == ("failed", ""), "a kernel takes 128 KiB as one argument"
    assert "Argument list too long" in end.reason
    check_desk(backend, tmp_path)
    end = end_of(other, never)
    assert (end.result, end.code) == ("failed", 127)
    assert end.reason == "the node that Ray chose cannot run '/no/such/python'"
    other.close()


WAITS = "import os, time; open(os.environ['DIARY'], 'w').write(str(os.getpid())); time.sleep(600)"


def test_a_task_ends_with_the_lease_though_its_agent_is_dead(
    make: Maker, run_of: Callable[..., Run], tmp_path: Path
) -> None:
    backend = make()
    run = run_of(1, WAITS, env={"DIARY": str(tmp_path / "pid")})
    kept = run_of(2, WAITS, env={"DIARY": str(tmp_path / "kept")}, on_disconnect="keep")
    dead = threading.Event()

    def renew() -> None:
        while not dead.wait(0.2):
            write_lease(run.lease, boot_clock() + 2.0)

    agent = threading.Thread(target=renew)
    agent.start()
    backend.start(run)
    backend.start(kept)
    pids = [
        int(wait_for(lambda n=name: (tmp_path / n).exists() and (tmp_path / n).read_text())) for name in ("pid", "kept")
    ]
    dead.set()
    agent.join()
    until = read_lease(run.lease)
    backend.close()
    assert alive(pids[0])
    wait_for(lambda: not alive(pids[0]))
    assert boot_clock() < until + 0.5, "the agent's lease ends last"
    assert alive(pids[1])
    os.kill(pids[1], signal.SIGKILL)
    with closing(RayJobs(make.head.url, make.head.token)) as jobs:
        wait_for(lambda: all(status_of(jobs, one) == "FAILED" for one in (run, kept)))
    again = make()  # finds in Ray's log what there was nobody to be told
    assert (end_of(again, run).result, end_of(again, run).reason) == ("stopped", "the lease of its agent ended")
    assert (end_of(again, kept).result, end_of(again, kept).code) == ("failed", -9)


def status_of(jobs: RayJobs, run: Run) -> str:
    name = json.loads((run.lease.parent / "desk.json").read_text())["name"]
    return jobs.status(f"tapfinger-{name}-{run.id[0]}.{run.id[1]}")


def alive(pid: int) -> bool:
    return pid in [found for found, _ in supervise.parents()]


def test_a_job_that_waits_for_resources_can_be_stopped_and_never_begins(
    make: Maker, run_of: Callable[..., Run], tmp_path: Path
) -> None:
    backend = make()
    first = run_of(1, WAITS, env={"DIARY": str(tmp_path / "first")}, allocation={"cpu": 1.0, "gpu": 2.0})
    second = run_of(2, WAITS, env={"DIARY": str(tmp_path / "second")}, allocation={"cpu": 1.0, "gpu": 2.0})
    backend.start(first)
    wait_for((tmp_path / "first").exists)
    backend.start(second)
    with closing(RayJobs(make.head.url, make.head.token)) as jobs:
        wait_for(lambda: status_of(jobs, second) == "PENDING")
        backend.stop(second, at_once=False)
        assert backend.poll(second) == Outcome("stopped", reason="it had not started")
        backend.stop(first, at_once=True)
        assert end_of(backend, first).result == "stopped"
        wait_for(lambda: status_of(jobs, second) == "FAILED")
    assert not (tmp_path / "second").exists()


def check_desk(backend: Ray, directory: Path) -> None:
    """Strangers get nothing, and what has ended never begins again."""
    assert backend._server is not None
    server = backend._server
    assert (directory / "desk.json").stat().st_mode & 0o777 == 0o600

    def post(url: str, **more: Any) -> int:
        return httpx.post(url, trust_env=False, **more).status_code

    first = server.url("1.1")
    assert post(f"{first.rsplit('/', 2)[0]}/wrong/1.1/begin") == 404
    # At first it may be a predecessor's run that was not found yet.
    wait_for(lambda: post(f"{server.url('9.9')}/begin") == 410)
    assert post(f"{first}/beat", content=b"x" * (5 << 20)) == 413
    assert post(f"{first}/begin") == 410
    assert post(f"{first}/beat", content=b"{}") == 410


def test_addresses_and_tokens_of_ray_are_checked(head: Head) -> None:
    with pytest.raises(ConfigError, match="must look like http://HOST:8265"):
        Ray("127.0.0.1:8265")
    with closing(RayJobs(head.url, "wrong")) as jobs, pytest.raises(RayUnreachable, match="wants a token"):
        jobs.totals()
    with closing(RayJobs("http://127.0.0.1:1")) as jobs, pytest.raises(RayUnreachable, match="no answer from Ray"):
        jobs.totals()
    with closing(RayJobs(head.url, head.token)) as jobs:
        totals = jobs.totals()
    assert (totals["CPU"], totals["GPU"]) == (4.0, 2.0)


def test_a_whole_site_on_ray(head: Head, tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    text = site.config.read_text().replace("capacity = {cpu = 4, gpu = 0}", "capacity = {cpu = 4, gpu = 2}")
    site.config.write_text(text.replace("maximum = {cpu = 4}", "maximum = {cpu = 4, gpu = 2}"))
    try:
        client = site.serve()
        options = ("--backend", "ray", "--ray-address", head.url)
        site.agent("left", *options, RAY_AUTH_TOKEN=head.token)
        code = (
            "import os, time, tapfinger; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
            "tapfinger.report(0.5); time.sleep(3); tapfinger.report(1, loss=0.5); print('done')"
        )
        gpu = {"minimum": {"gpu": 1}, "maximum": {"cpu": 1, "gpu": 1}}
        tasks = client.submit(*[python(code, **gpu)] * 2, python("import sys; sys.exit(5)"))
        (long,) = client.submit(python("import time; time.sleep(600)"))
        wait_for(lambda: b"0" in b"".join(client.logs(tasks[0])) or b"1" in b"".join(client.logs(tasks[0])))
        site.kill("left")
        site.agent("left", *options, RAY_AUTH_TOKEN=head.token)
        ends = [client.wait(task, PATIENCE) for task in tasks]
        assert [(e.phase, e.code, e.attempt) for e in ends] == [(Phase.FINISHED, 0, 1)] * 2 + [(Phase.FAILED, 5, 1)]
        assert [(e.progress, e.metrics, e.incomplete) for e in ends[:2]] == [(1.0, {"loss": 0.5}, False)] * 2
        outputs = [b"".join(client.logs(task, follow=True)) for task in tasks[:2]]
        assert sorted(outputs) == [b"0\ndone\n", b"1\ndone\n"]
        client.cancel(long)
        assert client.wait(long, PATIENCE).phase is Phase.CANCELLED
    finally:
        site.close()
