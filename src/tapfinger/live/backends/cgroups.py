"""Limits that the kernel enforces on a task: control groups (version 2) in a directory delegated to the agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError, LaunchFailed, UnsupportedOperation
from tapfinger.live.backends.starting import is_shortage
from tapfinger.live.protocol.messages import AttemptId

#: Period over which processor time is limited, in microseconds.
PERIOD = 100_000
GIB = 1024**3
#: Most processes and threads of a task: a base, and more for each of its cores.
PROCESSES, PROCESSES_PER_CPU = 2048, 256


class Cgroups:
    """One group per attempt below a directory that was delegated to the agent."""

    def __init__(self, root: Path, resources: ResourceTypes, memory_per_cpu: float | None = None) -> None:
        """Check that limits can be set. ``memory_per_cpu``: GiB per core, used if memory is not a resource."""
        self._root = root
        self._resources = resources
        self._memory_per_cpu = memory_per_cpu
        #: Whether the number of processes can be limited.
        self._counts = False
        wanted = {"cpu", "memory"}
        try:
            offered = set((root / "cgroup.controllers").read_text(encoding="ascii").split())
            if wanted - offered:
                missing = " and ".join(sorted(wanted - offered))
                raise ConfigError(
                    f"control group {root} has no controller for {missing}; a parent must offer it (with systemd: "
                    "Delegate=cpu memory in the agent's unit), or leave out --cgroup"
                )
            self._counts = "pids" in offered
            wanted |= {"pids"} & offered
            on = set((root / "cgroup.subtree_control").read_text(encoding="ascii").split())
            for name in sorted(wanted - on):
                (root / "cgroup.subtree_control").write_text(f"+{name}", encoding="ascii")
        except OSError as error:
            raise ConfigError(
                f"{root} cannot be used for limits: {error}; it must be a directory of a cgroup2 file system that the "
                "agent may write to and that has no processes of its own, or leave out --cgroup"
            ) from None

    def make(self, ident: AttemptId, allocation: Mapping[str, float]) -> str:
        """Make a group with the limits of an allocation; the supervisor removes it."""
        path = self._root / f"tapfinger-{os.getpid()}-{ident[0]}.{ident[1]}"
        try:
            path.mkdir()
            for name, value in self.limits(allocation).items():
                (path / name).write_text(value, encoding="ascii")
        except OSError as error:
            remove(path)
            if is_shortage(error):
                raise
            raise LaunchFailed(f"limits of task {ident[0]} cannot be set in {path}: {error}") from None
        return str(path)

    def limits(self, allocation: Mapping[str, float]) -> dict[str, str]:
        """The contents of a group's files, by name."""
        cpus = allocation.get(self._resources.enforced_by("cores"), 0.0)
        found = {"cpu.max": _share(cpus)} if cpus else {}
        if self._counts:
            found["pids.max"] = _processes(cpus)
        of_cpus = self._memory_per_cpu * cpus if self._memory_per_cpu else 0.0
        memory = allocation.get(self._resources.enforced_by("memory"), of_cpus)
        if memory:
            found |= {"memory.max": str(int(memory * GIB)), "memory.oom.group": "1"}
        return found


def _share(cpus: float) -> str:
    return f"{int(cpus * PERIOD)} {PERIOD}"


def _processes(cpus: float) -> str:
    return str(int(PROCESSES + PROCESSES_PER_CPU * cpus))


def change_share(group: Path, cpus: float) -> None:
    """Change the processor share of a running group. Its memory limit stays: used memory cannot be taken back."""
    try:
        if (group / "pids.max").exists():
            (group / "pids.max").write_text(_processes(cpus), encoding="ascii")
        (group / "cpu.max").write_text(_share(cpus), encoding="ascii")
    except OSError as error:
        raise UnsupportedOperation(f"the limit in {group} cannot be changed: {error}") from None


def members(group: Path) -> list[int]:
    """Processes in a group, even if they have changed their environment, parent or session."""
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text(encoding="ascii").split()]
    except OSError:
        return []  # the group is gone


def remove(group: Path) -> None:
    """Remove the group of an attempt that has ended, in place of its supervisor."""
    with suppress(OSError):
        group.rmdir()
