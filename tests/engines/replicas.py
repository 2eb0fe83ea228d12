"""A real site with several coordinators on one PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from live.sites import with_lease
from waiting import wait_for

from tapfinger.live.http.client import Client
from tapfinger.live.state_dir import noted


class ReplicatedSite:
    """Coordinators ``a`` and ``b``, of which ``a`` leads first, and an agent per cluster that knows both."""

    def __init__(self, directory: Path, store: str, lease: float = 60.0) -> None:
        self._directory = directory
        self._config = directory / "site.toml"
        self._config.write_text(f"{with_lease(lease)}store = '{store}'\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.urls: dict[str, str] = {}
        self._clients: list[Client] = []
        self._tokens: dict[str, str] = {}

    def state(self, name: str) -> Path:
        return self._directory / name

    def start(self, name: str, *words: str, **env: str) -> None:
        self.state(name).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tapfinger", *words, "--state", str(self.state(name))]
        with (self.state(name) / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "--config", str(self._config), "--verbose"],
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
            )

    def serve(self, name: str) -> None:
        port = self.urls[name].rpartition(":")[2] if name in self.urls else "0"
        self.start(name, "serve", "--port", port)

    def up(self) -> Client:
        """All of it; a client that knows both coordinators."""
        self.serve("a")
        self.urls["a"] = wait_for(lambda: noted(self.state("a") / "coordinator.json"))["url"]
        wait_for((self.state("a") / "token").exists)
        self.serve("b")
        self.urls["b"] = wait_for(lambda: noted(self.state("b") / "coordinator.json"))["url"]
        wait_for(lambda: self.role("b") == "standby" and self.role("a") == "leader")
        client = self.client("a", "b")
        for cluster in ("left", "right"):
            self._tokens[cluster] = client.new_token(f"agent-{cluster}", "agent", cluster)
            self.agent(cluster)
        wait_for(lambda: self.connected(client))
        return client

    def agent(self, cluster: str) -> None:
        """Start an agent, for the first time or again."""
        where = ("--cluster", cluster, "--coordinator", f"{self.urls['a']},{self.urls['b']}", "--no-pin")
        self.start(cluster, "agent", *where, TAPFINGER_TOKEN=self._tokens[cluster])

    def connected(self, client: Client) -> bool:
        return all(c["connected"] for c in client.clusters())

    @property
    def token(self) -> str:
        return (self.state("a") / "token").read_text().strip()

    def client(self, *names: str) -> Client:
        self._clients.append(Client(",".join(self.urls[name] for name in names), self.token))
        return self._clients[-1]

    def ask(self, name: str, method: str, path: str, **more: Any) -> httpx.Response:
        """One request to this coordinator, wherever it says to go instead."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, f"{self.urls[name]}/api/v1/{path}", headers=headers, trust_env=False, **more)

    def role(self, name: str) -> str:
        try:
            return str(self.ask(name, "GET", "health", timeout=2.0).json()["role"])
        except httpx.HTTPError:
            return ""

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for name in ("left", "right", "a", "b"):
            if (process := self.processes.get(name)) is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGINT)  # agents take their tasks with them
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
