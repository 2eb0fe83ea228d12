"""A whole site on one machine: starts its processes, finds them again, and ends them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError, CoordinatorError, TapfingerError
from tapfinger.live.agent.devices import cores_of, split_cores
from tapfinger.live.config import BackendConfig, build_site, cluster_capacities, load_site
from tapfinger.live.http.client import Client
from tapfinger.live.logging_setup import BOUNDED
from tapfinger.live.state_dir import alive, exited, hold, make_directory, noted
from tapfinger.overrides import parse_options

#: Most seconds that processes may take to start or to end.
PATIENCE = 60.0
#: Files that a site keeps in its state directory, without its lock.
OURS = ("agents", "logs", "serve.log", "agent-*.log", "audit.jsonl*", "coordinator.json", "epoch", "store.db*", "token")


class LocalSite:
    """The processes of one state directory."""

    def __init__(
        self, state: Path, config: Path | None = None, backend: str | None = None, options: Sequence[str] = ()
    ) -> None:
        """Only ``up`` needs more than ``state``. ``options``: options of the backend, as ``key=value``."""
        self.state = state
        self._config = config
        self._backend = backend
        self._options = tuple(options)
        self._started: list[int] = []  # pids

    @property
    def _coordinator(self) -> dict[str, Any] | None:
        return noted(self.state / "coordinator.json")

    def up(self, port: int) -> str:
        """Start coordinator and agents. Returns the coordinator's address once all agents are connected."""
        if self._coordinator is not None:
            raise ConfigError(f"a coordinator runs in {self.state} already; end it with: tapfinger down")
        scenario, live = load_site(self._config)
        # Faults are found before anything is started.
        resources = build_site(scenario).resources
        for name in cluster_capacities(scenario):
            live.backend_of(name, self._backend, parse_options(self._options)).create()
        make_directory(self.state)
        config = self._config
        given = [] if config is None else ["--config", str(config.absolute() if config.is_file() else config)]
        how = [word for option in self._options for word in ("--backend-option", option)]
        how += ["--backend", self._backend] if self._backend is not None else []
        try:
            self._start("serve", ["serve", "--state", str(self.state), "--port", str(port), *given], {})
            note = self._await(lambda: self._coordinator, "coordinator")
            # If coordinators share a store, the first one that leads makes the token.
            token = self._await(lambda: _read(self.state / "token"), "coordinator")
            with Client(note["url"], token) as client:
                capacities = cluster_capacities(scenario)
                cores = split_cores({name: cores_of(resources, one) for name, one in capacities.items()})
                for name in capacities:
                    # Agents do not know of each other: an agent without cores of its own must not pin tasks.
                    pin = ["--cores", cores[name]] if cores else ["--no-pin"]
                    folder = ["--state", str(self.state / "agents" / name), *pin, *given, *how]
                    secret = {"TAPFINGER_TOKEN": client.new_token(f"agent-{name}", "agent", name)}
                    self._start(
                        f"agent-{name}", ["agent", "--cluster", name, "--coordinator", note["url"], *folder], secret
                    )
                self._await(lambda: all(c["connected"] for c in client.clusters()), "agents")
        except BaseException:
            self.down()
            raise
        return str(note["url"])

    def _start(self, name: str, words: list[str], env: dict[str, str]) -> None:
        log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.state / f"{name}.log"), log, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        command = [sys.executable, "-m", "tapfinger", *words, "--verbose"]
        # An interrupt between the start and the note of its pid would leave a process that nobody ends.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            # In a session of its own: Ctrl-C reaches only this process, which ends the others in order.
            env = {**os.environ, **env, BOUNDED: "1"}
            pid = os.posix_spawn(command[0], command, env, file_actions=files, setsid=True, setsigmask=before)
            self._started.append(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _await(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            dead = [pid for pid in self._started if exited(pid)]
            if dead or time.monotonic() > deadline:
                logs = sorted(self.state.glob("*.log"), key=lambda p: p.stat().st_mtime)
                said = logs[-1].read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if logs else []
                raise CoordinatorError(f"the {what} did not start; the last word in {self.state}: {''.join(said)}")
            time.sleep(0.05)
        return found

    def wait(self) -> None:
        """Wait until the coordinator has ended, or an interrupt."""
        while not exited(self._started[0]):
            time.sleep(0.2)

    def down(self) -> list[str]:
        """End agents with their tasks, then the coordinator. Returns the names of the processes that were running."""
        agents = [path.parent for path in sorted(self.state.glob("agents/*/agent.json"))]
        running = {f"agent {path.name}": noted(path / "process.json") for path in agents}
        self._end(running, signal.SIGINT)
        coordinator = {"coordinator": self._coordinator}
        self._end(coordinator, signal.SIGTERM)
        self._end_unnoted()
        for path in agents:
            self._clear(path)
        return [name for name, note in {**running, **coordinator}.items() if note is not None]

    def forget(self) -> list[str]:
        """Remove the site's files from its directory; call ``down`` first. Returns the names of all other files."""
        lock = hold(self.state, "coordinator; end it first: tapfinger down") if self.state.is_dir() else None
        if lock is None:
            return []
        with lock:
            for path in (path for pattern in OURS for path in self.state.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            left = sorted(path.name for path in self.state.iterdir() if path.name != "lock")
            (self.state / "lock").unlink()
        if not left:
            self.state.rmdir()
        return left

    def _end(self, notes: dict[str, dict[str, Any] | None], number: int) -> None:
        running = [note for note in notes.values() if note is not None]
        for note in running:
            with suppress(ProcessLookupError):
                os.kill(note["pid"], number)
        deadline = time.monotonic() + PATIENCE
        while any(map(alive, running)):
            if time.monotonic() > deadline:
                for note in filter(alive, running):
                    os.kill(note["pid"], signal.SIGKILL)
            for pid in self._started:
                exited(pid)  # or it would stay as a zombie
            time.sleep(0.02)

    def _end_unnoted(self) -> None:
        """Kill the processes that this one has started and that have left no note yet."""
        left = [pid for pid in self._started if not exited(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)

    def _clear(self, agent: Path) -> None:
        """Stop the tasks that a killed agent has left behind."""
        from tapfinger.live.agent.devices import Devices
        from tapfinger.live.agent.main import BACKEND_NOTE
        from tapfinger.live.agent.runtime import Host
        from tapfinger.live.backends.base import BackendContext

        with suppress(TapfingerError, OSError, ValueError):
            cluster = json.loads((agent / "agent.json").read_text(encoding="utf-8"))["cluster"]
            backend = BackendConfig(**json.loads(_read(agent / BACKEND_NOTE) or "{}"))
            host = Host(BackendContext(agent, cluster), backend.create(), Devices({}), 1.0)
            while host.stop_all():
                time.sleep(0.02)
            host.close()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
