"""Real sites for tests: coordinator and agents as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from waiting import wait_for

from tapfinger.live.backends.base import BackendContext, Opens
from tapfinger.live.http.client import Client, make_spec
from tapfinger.live.state_dir import noted

#: The lease is long: no agent is given up because a busy machine did not let it run for a while.
CONFIG = """
slot_seconds = 0.2
[[clusters]]
name = "left"
capacity = {cpu = 4, gpu = 0}
[[clusters]]
name = "right"
capacity = {cpu = 4, gpu = 0}
[[task_types]]
name = "demo"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "amdahl", seconds = 10, parallel = {cpu = 0.5}}
[live]
scheduler = "fifo"
lease_seconds = 120.0
grace_seconds = 1.0
beat_seconds = 0.3
stop_seconds = 0.5
"""


def with_lease(seconds: float) -> str:
    """The configuration with another lease."""
    return CONFIG.replace("lease_seconds = 120.0", f"lease_seconds = {seconds}")


AnyBackend = TypeVar("AnyBackend", bound=Opens)


def opened(backend: AnyBackend, directory: Path = Path(), **more: Any) -> AnyBackend:
    """A backend as an agent with these settings would use it."""
    backend.open(BackendContext(directory, **more))
    return backend


class RealSite:
    """Starts, kills and restarts the parts of a site."""

    def __init__(self, directory: Path, lease: float = 120.0) -> None:
        """``lease``: seconds that agents may act without the coordinator; short where a test is about their end."""
        self.state = directory / "state"
        self.state.mkdir()
        self.config = directory / "site.toml"
        self.config.write_text(with_lease(lease))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self.url = 0, ""
        #: Ways to the coordinator that are not the straight one, by cluster.
        self.routes: dict[str, str] = {}
        #: File with the certificate of a coordinator that shows one.
        self.ca: str | None = None
        self.client: Client | None = None

    def _start(self, name: str, *words: str, **env: str) -> None:
        command = [sys.executable, "-m", "tapfinger", *words, "--config", str(self.config), "--verbose"]
        with (self.state / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})

    def serve(self, *options: str) -> Client:
        """Start the coordinator, at the same address as before."""
        self._start("coordinator", "serve", "--state", str(self.state), "--port", str(self.port), *options)
        note = wait_for(lambda: noted(self.state / "coordinator.json"))
        self.url = note["url"]
        self.port = int(self.url.rpartition(":")[2])
        if self.client is not None:
            self.client.close()
        self.client = Client(self.url, (self.state / "token").read_text().strip(), ca=self.ca)
        wait_for(self._answers)
        return self.client

    def _answers(self) -> bool:
        assert self.client is not None
        try:
            self.client.counts()
        except Exception:
            return False
        return True

    def agent(self, cluster: str, *options: str, **env: str) -> None:
        assert self.client is not None
        token = self.client.new_token(f"agent-{cluster}", "agent", cluster)
        where = ("--coordinator", self.routes.get(cluster, self.url), "--state", str(self.state / "agents" / cluster))
        self._start(cluster, "agent", "--cluster", cluster, *where, "--no-pin", *options, TAPFINGER_TOKEN=token, **env)
        note = self.state / "agents" / cluster / "process.json"
        wait_for(lambda: (noted(note) or {}).get("pid") == self.processes[cluster].pid)

    def up(self) -> Client:
        client = self.serve()
        for cluster in ("left", "right"):
            self.agent(cluster)
        wait_for(lambda: all(c["connected"] for c in client.clusters()))
        return client

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)
        self.processes[name].wait()

    def close(self) -> None:
        """End everything, tasks included, and check that nothing is left."""
        from tapfinger.live.local_site import LocalSite

        LocalSite(self.state).down()
        if self.client is not None:
            self.client.close()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def python(code: str, **more: Any) -> Any:
    """A task that runs Python code."""
    return make_spec(**{"argv": [sys.executable, "-c", code], "type": "demo", "maximum": {"cpu": 1}, **more})
