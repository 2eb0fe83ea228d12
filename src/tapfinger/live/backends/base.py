"""The contract of a backend: four methods. ``tapfinger.testing.check_backend`` tests an implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from tapfinger.core.model import ResourceTypes
from tapfinger.live.agent.leases import boot_clock, read_lease
from tapfinger.live.backends.sandbox import Sandbox
from tapfinger.live.protocol.messages import AttemptId, Launch, Outcome

#: File in a run's directory with what the agent remembers about the run.
LAUNCH = "launch.json"
#: Directory in a run's directory that the task sees, and the directory in that one where it works.
TASK, WORK = "task", "work"

#: Reason of an attempt that needed more of a resource than it was granted (``Outcome.short``).
RAN_OUT = "it used more {name} than it was granted"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of a task, with a directory of its own on the agent's disk.

    A backend is also asked about runs that an earlier agent started. It must keep all it needs to know about a run in
    this directory, never only in memory.
    """

    #: What to run: ``argv``, ``env``, ``cwd``, ``time_limit``, ``allocation`` and ``on_disconnect``.
    launch: Launch
    #: Exists before ``start`` is called; the agent removes it when the attempt may be forgotten.
    directory: Path
    #: Ids of the leased devices, by resource. Resources without devices are left out.
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: File with the end of the agent's lease. A task with ``on_disconnect == "stop"`` must end by then, even if the
    #: agent is dead. A live agent keeps renewing the file.
    lease: Path = Path("lease")

    @property
    def id(self) -> AttemptId:
        """Numbers of the task and of the attempt."""
        return self.launch.id

    @property
    def keep(self) -> bool:
        """Whether the task runs on when the agent's lease ends."""
        return self.launch.on_disconnect == "keep"

    def lease_left(self) -> float:
        """Seconds until the agent's lease ends, at least 0. Reads the file on every call."""
        return max(0.0, read_lease(self.lease) - boot_clock())

    @property
    def visible(self) -> Path:
        """Directory of what the task may see and change of its run; all else in ``directory`` is private.

        Earlier agents kept everything in ``directory``, and tasks that they have started may still run.
        """
        folder = self.directory / TASK
        return folder if folder.is_dir() or not (self.directory / LAUNCH).exists() else self.directory

    def make_directories(self) -> None:
        """Make the directories of the run, before anything is written into them."""
        self.directory.mkdir(exist_ok=True)
        self.visible.mkdir(exist_ok=True)

    @property
    def work(self) -> Path:
        """Directory that the task runs in if it names none. What it leaves there is kept after its end."""
        return self.visible / WORK

    @property
    def output(self) -> Path:
        """File with everything that the task has written to standard output and standard error."""
        return self.directory / "output"

    @property
    def reports(self) -> Path:
        """File to which the task reports its progress (``tapfinger.report``), or to which the backend copies it."""
        return self.visible / "reports"

    @property
    def allotment(self) -> Path:
        """File with the task's current allocation (``tapfinger.live.agent.allotment``); may not exist."""
        return self.visible / "allotment.json"


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What the agent tells its backend once, before the first task: its directory, cluster and limits for all tasks."""

    #: Directory of the agent, which no other agent uses. The backend may keep its own files here.
    directory: Path
    #: Name of the cluster.
    cluster: str = ""
    #: Capacity of the cluster in natural quantities, by resource.
    capacity: Mapping[str, float] = field(default_factory=dict)
    #: Names, smallest units and roles of all resources.
    resources: ResourceTypes = ResourceTypes()  # noqa: RUF009 - immutable
    #: Whether leased cores are cores of this machine, to which tasks must be pinned.
    pin: bool = True
    #: Cores given with ``--cores``; empty if it was not given.
    cores: tuple[int, ...] = ()
    #: Seconds between asking a task to end and killing it (``live.stop_seconds``).
    stop_seconds: float = 5.0
    #: Directories that tasks may run in (``live.roots``); empty: anywhere.
    roots: tuple[str, ...] = ()
    #: Bytes of output to keep of each attempt (``live.max_log``).
    max_log: int = 16 << 20
    #: Sandbox that every task must run in (``live.isolation``); None: tasks are not isolated.
    sandbox: Sandbox | None = None

    @property
    def lease(self) -> Path:
        """File with the end of the agent's lease; the same as ``Run.lease`` of every run."""
        return self.directory / "lease"


@dataclass(frozen=True, slots=True)
class TooLittle(Outcome):
    """The end of an attempt that this machine had too little to start. Never one that a task could bring about."""

    #: What it lacked, as a number of errno.
    lacks: int = 0


@runtime_checkable
class Backend(Protocol):
    """Runs attempts on one cluster. Every method returns quickly; none waits for a task.

    Threads: ``start`` is called in several threads at once, for different runs. All other methods are called in one
    further thread, one after the other; of a run that is being started they are called only when its start is over.
    So a start that takes long delays nothing else, and no two methods are ever called for the same run at once.
    ``open`` is called before, ``close`` after everything else.

    Options are keyword arguments of the constructor, which should only store them. Three more methods are optional:
    ``open(context)`` is called once, before any other (see ``Opens``), ``close()`` when the backend is done, and
    ``others()`` every few seconds, in a thread of its own: the natural amounts by resource that people use of this
    cluster who are not scheduled here, or None while that is not known. If it raises or hangs, its last answer counts.
    """

    def start(self, run: Run) -> None:
        """Start the task. Raise LaunchFailed if it clearly cannot start."""
        ...

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
        """Give a running task other resources. Raise UnsupportedOperation if that is impossible."""
        ...

    def stop(self, run: Run, at_once: bool) -> None:
        """End the task and all its processes: politely first, unless ``at_once``. May be called repeatedly."""
        ...

    def poll(self, run: Run) -> Outcome | None:
        """How the task ended, the same on every call. None while any of its processes may be alive."""
        ...


@runtime_checkable
class Opens(Protocol):
    """A backend that needs the agent's context or some preparation; ``open`` may raise ConfigError."""

    def open(self, context: BackendContext) -> object:
        """Called once, before any other method. The agent has locked its directory by then."""
        ...


def open_backend(backend: Backend, context: BackendContext) -> None:
    """Give a backend its context, if it has a method ``open``."""
    if isinstance(backend, Opens):
        backend.open(context)
