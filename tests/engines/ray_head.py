"""A real Ray cluster on this machine that takes jobs, with GPUs that are declared and not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from engines.ray_starting import started, with_token
from ports import free_port
from waiting import PATIENCE

#: An address of this machine's own: 127.0.0.1 would be replaced by the one other machines see.
ADDRESS = "127.0.0.3"


@dataclass(frozen=True)
class Head:
    """Where jobs are handed in, where tasks connect, and the variables of those who may."""

    url: str
    address: str
    environment: dict[str, str]

    @property
    def token(self) -> str:
        return self.environment["RAY_AUTH_TOKEN"]


@contextmanager
def ray_head(cpus: int, gpus: int) -> Iterator[Head]:
    """One that takes jobs of who has its token."""
    env = with_token()

    def options() -> tuple[Head, list[str]]:
        port, client_port, dashboard = free_port(), free_port(), free_port()
        words = [f"--port={port}", f"--ray-client-server-port={client_port}", f"--node-ip-address={ADDRESS}"]
        words += [f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--min-worker-port=0", "--max-worker-port=0"]
        words += ["--include-dashboard=true", f"--dashboard-host={ADDRESS}", f"--dashboard-port={dashboard}"]
        # Their defaults are fixed numbers, which another cluster on this machine may have.
        words += [f"--{name}={free_port()}" for name in ("dashboard-agent-listen-port", "metrics-export-port")]
        return Head(f"http://{ADDRESS}:{dashboard}", f"{ADDRESS}:{port}", env), words

    with started(options, env, lambda head, _: _answers(head)) as found:
        assert _works(found), "Ray itself runs no job here"
        yield found


def _works(head: Head) -> bool:
    """Whether Ray runs a job that has nothing to do with us: it answers some time before it can."""
    headers = {"Authorization": f"Bearer {head.token}"}
    end = time.monotonic() + PATIENCE
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
