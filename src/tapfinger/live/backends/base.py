"""What a backend must do: four methods. ``tapfinger.testing.check_backend`` tests an implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from tapfinger.live.messages import AttemptId, Launch, Outcome


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt, with its own directory on the agent's disk.

    Whatever a backend must know after a restart of the agent it keeps there: it is asked about runs that
    a predecessor has started.
    """

    launch: Launch
    #: Exists before ``start`` is called, and is removed when the attempt may be forgotten.
    directory: Path
    #: Ids of the leased devices, by resource; empty where amounts are not devices.
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: File that holds the end of the agent's lease (``leases.read_lease``). What runs on without an agent,
    #: and is not to be kept, must end by itself when that time has come.
    lease: Path = Path("lease")

    @property
    def id(self) -> AttemptId:
        """Task and attempt."""
        return self.launch.id

    @property
    def output(self) -> Path:
        """File with everything that the task has written."""
        return self.directory / "output"

    @property
    def reports(self) -> Path:
        """File to which the task reports its progress (``tapfinger.report``), or where the backend puts it."""
        return self.directory / "reports"

    @property
    def allotment(self) -> Path:
        """File that says what the task has now (``tapfinger.live.allotment``), where the backend writes one."""
        return self.directory / "allotment.json"


@runtime_checkable
class Opens(Protocol):
    """A backend that has something to prepare before the first task; it may raise ConfigError."""

    def open(self, directory: Path) -> object:
        """``directory``: of the agent, which has it for itself by now."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Runs attempts on one cluster. Methods return soon; none waits for a task."""

    def start(self, run: Run) -> None:
        """Start it; raises LaunchFailed where it can be said at once that it cannot."""
        ...

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
        """Give it other resources while it runs; raises UnsupportedOperation where that is impossible."""
        ...

    def stop(self, run: Run, at_once: bool) -> None:
        """Make it and all it has started end; politely first unless ``at_once``. Again and again is no fault."""
        ...

    def poll(self, run: Run) -> Outcome | None:
        """How it ended, the same on every call; None while anything of it may be alive."""
        ...
