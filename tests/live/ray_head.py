"""A real Ray cluster on this machine that takes jobs, with GPUs that are declared and not there."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from ports import free_port

#: An address of this machine's own, and no other test's: 127.0.0.1 would be replaced by the one other machines see.
ADDRESS = "127.0.0.3"


@dataclass(frozen=True)
class Head:
    url: str
    token: str


@contextmanager
def ray_head(cpus: int, gpus: int) -> Iterator[Head]:
    """Started as an administrator would, with a token; ended by its own pid."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: the names of Ray's sockets may have 107 characters
    port, client_port, dashboard, token = free_port(), free_port(), free_port(), secrets.token_hex(32)
    mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    options = [f"--port={port}", f"--ray-client-server-port={client_port}", f"--node-ip-address={ADDRESS}"]
    options += [f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--temp-dir={folder}", "--disable-usage-stats"]
    options += ["--include-dashboard=true", f"--dashboard-host={ADDRESS}", f"--dashboard-port={dashboard}"]
    # Their defaults are fixed numbers, which another cluster on this machine may have.
    options += [f"--{name}={free_port()}" for name in ("dashboard-agent-listen-port", "metrics-export-port")]
    options += ["--min-worker-port=0", "--max-worker-port=0", f"--object-store-memory={100 << 20}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options]
    log = Path(folder, "head.log")
    with log.open("w") as file:
        head = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env={**os.environ, **mine})
    found = Head(f"http://{ADDRESS}:{dashboard}", token)
    try:
        end = time.monotonic() + 100
        while not _answers(found):
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        assert _works(found), f"Ray itself runs no job here: {log.read_text()}"
        yield found
    finally:
        head.terminate()  # it ends its own processes
        try:
            head.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _works(head: Head) -> bool:
    """Whether Ray runs a job that has nothing to do with us: it answers some time before it can."""
    headers = {"Authorization": f"Bearer {head.token}"}
    end = time.monotonic() + 60
    with httpx.Client(base_url=head.url, headers=headers, timeout=20, trust_env=False) as http:
        while time.monotonic() < end:
            try:
                answer = http.post("/api/jobs/", json={"entrypoint": "true"})
                job = answer.json()["submission_id"] if answer.is_success else None
                while job is not None and time.monotonic() < end:
                    status = http.get(f"/api/jobs/{job}").json()["status"]
                    if status in ("SUCCEEDED", "FAILED", "STOPPED"):
                        return bool(status == "SUCCEEDED")
                    time.sleep(0.3)
            except (httpx.HTTPError, ValueError, KeyError):
                pass
            time.sleep(0.5)
    return False


def _answers(head: Head) -> bool:
    headers = {"Authorization": f"Bearer {head.token}"}
    try:
        answer = httpx.get(f"{head.url}/api/v0/nodes", headers=headers, timeout=20, trust_env=False)
        return answer.is_success and "ALIVE" in answer.text
    except httpx.HTTPError:
        return False
