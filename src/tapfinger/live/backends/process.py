"""Runs tasks as processes of this machine, pinned to their cores and optionally limited by control groups."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError, UnsupportedOperation
from tapfinger.live.backends import supervise
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.bystanders import Bystanders, core_times
from tapfinger.live.backends.cgroups import Cgroups, change_share, members, remove
from tapfinger.live.backends.supervision import Supervised, read_plan, supervisor_log, supervisor_of, tell_allotment

logger = logging.getLogger(__name__)


class Process(Supervised):
    """Runs each task as a separate process tree."""

    def __init__(
        self, cgroup: str | None = None, memory_per_cpu: float | None = None, observe_others: bool = False
    ) -> None:
        """``cgroup``: control group below which each task gets its own group, with limits.

        ``memory_per_cpu``: GiB that a task may use per cpu; requires ``cgroup``. ``observe_others``: whether cores that
        other processes of this machine use count as taken.
        """
        if memory_per_cpu is not None and cgroup is None:
            raise ConfigError(
                f"memory_per_cpu = {memory_per_cpu:g} is a limit of a control group; name one with --cgroup"
            )
        self._cgroup = cgroup
        self._memory_per_cpu = memory_per_cpu
        self.cgroups: Cgroups | None = None
        self._observe_others = observe_others
        self._bystanders: Bystanders | None = None

    def open(self, context: BackendContext) -> None:
        """Check that limits can be set."""
        super().open(context)
        if self._cgroup is not None:
            self.cgroups = Cgroups(Path(self._cgroup), context.resources, self._memory_per_cpu)
        if self._observe_others:
            self._bystanders = self._make_bystanders(context)

    def _make_bystanders(self, context: BackendContext) -> Bystanders:
        if not self._cores:
            raise ConfigError("observe_others counts cores, and no resource of this site is enforced by cores")
        count = math.ceil(context.capacity.get(self._cores, 0))
        here = sorted(context.cores or os.sched_getaffinity(0))
        # Tasks that are not pinned run on any core: others are in their way only beyond those that nobody is given.
        cores = here[:count] if context.pin else here
        return Bystanders(max(0, len(cores) - count), lambda: core_times(cores, self.inherited()))

    def others(self) -> Mapping[str, float] | None:
        """Whole cores that processes use which are not of this agent's tasks; None if they are not observed."""
        used = None if self._bystanders is None else self._bystanders.look()
        return None if used is None else {self._cores: float(used)}

    @property
    def _cores(self) -> str:
        """Name of the resource that counts cores."""
        return self.context.resources.enforced_by("cores")

    def extras(self, run: Run) -> dict[str, Any]:
        """The task's cores, its control group, and the resource that limits memory there, if one does."""
        memory = self.context.resources.enforced_by("memory")
        return {
            "memory": memory if run.launch.allocation.get(memory) else "",
            "cpus": list(run.devices.get(self._cores, ())) if self.context.pin else [],
            "cgroup": self.cgroups.make(run.id, run.launch.allocation) if self.cgroups is not None else "",
        }

    def launch(self, run: Run, command: list[str]) -> int:
        """Start the supervisor in a session of its own, without the agent's environment."""
        log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(supervisor_log(run)), log, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not subprocess.Popen: it expects to be waited for, but a supervisor must outlive the agent.
        return os.posix_spawn(command[0], command, {}, file_actions=files, setsid=True)

    def undo(self, plan: Mapping[str, Any]) -> None:
        """Remove the control group."""
        if plan["cgroup"]:
            remove(Path(plan["cgroup"]))

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:
        """Move all threads of the task to other cores, and inform the task. Nothing else can be changed."""
        if not any(allocation.values()):
            raise UnsupportedOperation("the process backend does not pause tasks")
        for name, amount in allocation.items():
            if name != self._cores and amount != run.launch.allocation.get(name, 0):
                raise UnsupportedOperation(f"the process backend cannot change the {name} of a running task")
        self._grant(run, allocation, devices)
        try:
            tell_allotment(run, allocation)
        except OSError as error:  # the task may have made it impossible: it has its new size all the same
            logger.warning("task %d attempt %d cannot be told its new allotment: %s", *run.id, error)

    def _grant(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, Sequence[int]]) -> None:
        """Change share and cores of a running task, or nothing."""
        if (group := _group(run)) is not None and allocation.get(self._cores):
            change_share(group, allocation[self._cores])
        supervisor, before = supervisor_of(run), run.devices.get(self._cores)
        if supervisor is None or not self.context.pin or not devices.get(self._cores):
            return
        try:
            _move(supervisor, devices[self._cores])
        except BaseException:  # it may be half done, and others would be given the cores that it was to have
            with suppress(OSError):
                _move(supervisor, before or ())
            with suppress(UnsupportedOperation):
                if group is not None:
                    change_share(group, run.launch.allocation[self._cores])
            raise

    def sweep(self, run: Run, known: Sequence[int] = ()) -> bool:
        """Also kill the processes in the task's control group, and remove the group once it is empty."""
        path = (self.plan_of(run) or {}).get("cgroup")
        group = Path(path) if path else None
        found = super().sweep(run, known if group is None else [*known, *members(group)])
        if group is not None and not found:
            remove(group)
        return found


def _move(supervisor: int, cores: Iterable[int]) -> None:
    """Move all threads of a task to these cores."""
    cores = set(cores)
    for _ in range(2):  # processes forked during the first pass still have the old cores
        for pid in supervise.descendants(supervisor):
            for thread in _threads(pid):
                with suppress(OSError):  # mostly because it has ended; the others have not
                    os.sched_setaffinity(thread, cores)


def _threads(pid: int) -> list[int]:
    """Threads of a process; none if it has ended."""
    try:
        return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _group(run: Run) -> Path | None:
    """Control group of the task; None if it has none."""
    path = (read_plan(run) or {}).get("cgroup")
    return Path(path) if path else None
