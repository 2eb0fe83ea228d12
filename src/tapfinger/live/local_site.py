"""A whole site on one machine: which of its processes run, and how all of it is ended and forgotten."""

from __future__ import annotations

import json
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from tapfinger.errors import CoordinatorError, TapfingerError
from tapfinger.live.config import BackendConfig
from tapfinger.live.site_parts import PATIENCE, Part, end_parts
from tapfinger.live.state_dir import hold

#: Files that a site keeps in its state directory, without its locks.
OURS = (
    "agents",
    "logs",
    "serve.log*",
    "agent-*.log*",
    "up.log*",
    "up.json",
    "audit.jsonl*",
    "coordinator.json",
    "epoch",
    "store.db*",
    "token",
)
#: File that is locked by the ``tapfinger up`` that watches over a site.
UP_LOCK = "up.lock"
#: Locks in a state directory.
LOCKS = ("lock", UP_LOCK)


class LocalSite:
    """The processes of one state directory, whoever has started them."""

    def __init__(self, state: Path) -> None:
        """``state``: absolute, and need not exist."""
        self.state = state
        self.coordinator = Part("coordinator", state / "coordinator.json", state / "serve.log")
        #: The ``tapfinger up`` that watches over the others.
        self.watcher = Part("tapfinger up", state / "up.json", state / "up.log", UP_LOCK)

    def agent(self, cluster: str) -> Part:
        """The agent of a cluster."""
        return Part(
            f"agent {cluster}", self.state / "agents" / cluster / "process.json", self.state / f"agent-{cluster}.log"
        )

    def _agents(self) -> list[Part]:
        """The agents that have ever run here."""
        return [self.agent(path.parent.name) for path in sorted(self.state.glob("agents/*/agent.json"))]

    def running(self) -> list[str]:
        """Names of the processes that run, without the ``up`` that watches over them."""
        return [part.name for part in [*self._agents(), self.coordinator] if part.note() is not None]

    def down(self) -> list[str]:
        """End the ``up`` that watches, agents with their tasks, then the coordinator. Returns the names of what ran."""
        names, agents = self.running(), self._agents()
        if self.watcher.find():
            names = names or [self.watcher.name]
            end_parts([self.watcher], signal.SIGTERM, 3 * PATIENCE)  # it ends in order what it has started
        end_parts([agent for agent in agents if agent.find()], signal.SIGINT)
        end_parts([part for part in [self.coordinator] if part.find()], signal.SIGTERM)
        if left := [agent.name for agent in agents if not clear(agent.folder)]:
            raise CoordinatorError(
                f"tasks of {', '.join(left)} could not be ended within {PATIENCE:g} s: processes of another user, or "
                f"that the kernel does not let go; see the logs in {self.state}, end them, and repeat: tapfinger down"
            )
        return names

    def forget(self) -> list[str]:
        """Remove the site's files from its directory; call ``down`` first. Returns the names of all other files."""
        if not self.state.is_dir():
            return []
        with (
            hold(self.state, "coordinator; end it first: tapfinger down"),
            hold(self.state, "tapfinger up; end it first: tapfinger down", UP_LOCK),
        ):
            for path in (path for pattern in OURS for path in self.state.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            left = sorted(path.name for path in self.state.iterdir() if path.name not in LOCKS)
            for name in LOCKS:
                (self.state / name).unlink()
        # The directory stays: what hides it from tasks that run would go with it, and they would see the next one.
        return left


def clear(agent: Path, patience: float = PATIENCE) -> bool:
    """Stop the tasks that a killed agent has left behind. Returns False if some have not ended in time.

    ``agent``: its directory. ``patience``: in seconds.
    """
    from tapfinger.live.agent.devices import Devices
    from tapfinger.live.agent.main import BACKEND_NOTE
    from tapfinger.live.agent.runtime import Host
    from tapfinger.live.backends.base import BackendContext

    with suppress(TapfingerError, OSError, ValueError, KeyError):
        cluster = json.loads((agent / "agent.json").read_text(encoding="utf-8"))["cluster"]
        note = agent / BACKEND_NOTE
        backend = BackendConfig(**json.loads(note.read_text(encoding="utf-8") if note.exists() else "{}"))
        host = Host(BackendContext(agent, cluster), backend.create(), Devices({}), 1.0)
        deadline = time.monotonic() + patience
        try:
            while left := host.stop_all():
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
        finally:
            host.close()
        return not left
    return True
