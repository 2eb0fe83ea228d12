"""A whole site on one machine: which of its processes run, and how all of it is ended and forgotten."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tapfinger.errors import ConfigError, CoordinatorError, TapfingerError
from tapfinger.live.agent.trees import remove_tree
from tapfinger.live.backends.spool import read_json
from tapfinger.live.config import BackendConfig
from tapfinger.live.ownership import is_mine, is_trusted, owner_of
from tapfinger.live.site_parts import PATIENCE, Part, end_parts
from tapfinger.live.state_dir import hold

#: Files that a site keeps in its state directory, without its locks; secrets first, as they are removed in this order.
OURS = (
    "token",
    "store.db*",
    ".store.db.*",
    "coordinator.json",
    "epoch",
    "logs",
    "serve.log*",
    "agent-*.log*",
    "agent-addresses.json",
    "up.log*",
    "up.json",
    "audit.jsonl*",
    "agents",
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
        #: Sentences about what ``down`` has left alone.
        self.doubts: list[str] = []
        self.coordinator = Part("coordinator", state / "coordinator.json", state / "serve.log")
        #: The ``tapfinger up`` that watches over the others.
        self.watcher = Part("tapfinger up", state / "up.json", state / "up.log", UP_LOCK)

    def agent(self, cluster: str) -> Part:
        """The agent of a cluster."""
        note, log = self.state / "agents" / cluster / "process.json", self.state / f"agent-{cluster}.log"
        return Part(f"agent {cluster}", note, log, state=self.state)

    def _agents(self) -> list[Part]:
        """The agents that have ever run here."""
        return [self.agent(path.parent.name) for path in sorted(self.state.glob("agents/*/agent.json"))]

    def running(self) -> list[str]:
        """Names of the processes that run, without the ``up`` that watches over them."""
        return [part.name for part in [*self._agents(), self.coordinator] if part.note() is not None]

    def down(self) -> list[str]:
        """End the ``up`` that watches, agents with their tasks, then the coordinator. Returns the names of what ran.

        What is not certain to be a process of this site is left alone; ``doubts`` says so.
        """
        self.doubts.clear()
        names, agents = self.running(), self._agents()
        if self._sure([self.watcher]):
            names = names or [self.watcher.name]
            end_parts([self.watcher], signal.SIGTERM, 3 * PATIENCE)  # it ends in order what it has started
        sure = self._sure([*agents, self.coordinator])
        end_parts([part for part in sure if part is not self.coordinator], signal.SIGINT)
        end_parts([part for part in sure if part is self.coordinator], signal.SIGTERM)
        left = []
        for agent in agents:
            if is_mine(agent.folder, self.state):
                left += [] if clear(agent.folder) else [agent.name]
            elif any((agent.folder / "runs").glob("*")):
                self.doubts.append(
                    f"tasks that {agent.name} may have left were not looked for: they are noted in a directory of "
                    f"another user, {owner_of(self.state)}, who can run the same command"
                )
        if left:
            self.doubts.append(
                f"tasks of {', '.join(left)} could not be ended within {PATIENCE:g} s: processes of another user, or "
                f"that the kernel does not let go; see the logs in {self.state}, end them, and repeat: tapfinger down"
            )
        doubtful = {part.name for part in (*agents, self.coordinator) if part.doubt}
        return [name for name in names if name not in doubtful]

    def _sure(self, parts: Sequence[Part]) -> list[Part]:
        """Those of the parts that run, and are certain to be of this site."""
        found = [part for part in parts if part.find()]
        self.doubts += [part.doubt for part in found if part.doubt]
        return [part for part in found if not part.doubt]

    def forget(self) -> list[str]:
        """Remove the site's files from its directory; call ``down`` first. Returns the names of all other files.

        Raises CoordinatorError at the end for those that cannot be removed.
        """
        if not self.state.is_dir():
            return []
        if not is_trusted(self.state):
            raise ConfigError(f"{self.state} belongs to {owner_of(self.state)}, who must remove what is in it")
        with (
            hold(self.state, "coordinator; end it first: tapfinger down"),
            hold(self.state, "tapfinger up; end it first: tapfinger down", UP_LOCK),
        ):
            ours = [path for pattern in OURS for path in self.state.glob(pattern)]
            stuck = [str(path) for path in ours if not _removed(path)]
            left = sorted(path.name for path in self.state.iterdir() if path.name not in LOCKS)
            for name in LOCKS:
                (self.state / name).unlink()
        if stuck:
            raise CoordinatorError(
                f"{', '.join(stuck)} could not be removed, all else of the site was; files of another user may be "
                "there, or the file system keeps them: remove them as root"
            )
        # The directory stays: what hides it from tasks that run would go with it, and they would see the next one.
        return left


def _removed(path: Path) -> bool:
    """Remove a file or directory, whatever tasks have made of it. Returns whether that has worked."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        with suppress(OSError):
            path.unlink()
    return not os.path.lexists(path)


def clear(agent: Path, patience: float = PATIENCE) -> bool:
    """Stop the tasks that a killed agent has left behind. Returns False if some have not ended in time.

    ``agent``: its directory. ``patience``: in seconds.
    """
    from tapfinger.live.agent.devices import Devices
    from tapfinger.live.agent.disk import DiskRules
    from tapfinger.live.agent.main import BACKEND_NOTE
    from tapfinger.live.agent.runtime import Host
    from tapfinger.live.backends.base import BackendContext

    with suppress(TapfingerError, OSError, ValueError, KeyError):
        cluster = read_json(agent / "agent.json")["cluster"]
        note = agent / BACKEND_NOTE
        backend = BackendConfig(**(read_json(note) if note.exists() else {}))
        rules = DiskRules(min_free_mb=0.0)  # how much should be free is not known here, and no task is taken
        host = Host(BackendContext(agent, cluster), backend.create(), Devices({}), 1.0, rules=rules)
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
