"""The environment of a task: a few harmless variables of the machine, the task's own variables, and its allocation.

Submitters choose the program, so variables such as LD_PRELOAD give them no power that the program does not have
anyway; the supervisor never sees these variables. A site with a fixed set of programs can restrict the names with
``live.env_names``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.starting import MARK

#: Variables that tasks inherit from the machine; they must not see the agent's secrets.
ALLOWED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

#: Numeric libraries start as many threads as the machine has cores, unless one of these variables is set.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")

UNBUFFERED = "PYTHONUNBUFFERED"


def refused_names(names: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """The names that match none of the allowed patterns."""
    patterns = tuple(allowed)
    return sorted(name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns))


def check_resources(resources: ResourceTypes) -> None:
    """Raise ConfigError for resources that a simulation can count and a real machine cannot give."""
    for name, unit, role in zip(resources.names, resources.units, resources.roles, strict=True):
        if role.lease == "device" and unit != round(unit):
            raise ConfigError(
                f"resources.{name}: unit = {unit:g}, but devices are leased whole; use a whole unit, role = 'share' or "
                "role = 'divisible'"
            )
        taken = role.variable.startswith("TAPFINGER_") or role.variable in (*ALLOWED, *THREADS, UNBUFFERED)
        if role.enforced == "visible" and (taken or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", role.variable)):
            raise ConfigError(
                f"resources.{name}: variable = {role.variable!r} {'has another use' if taken else 'is no name'}; "
                "choose a name such as TPU_VISIBLE_CHIPS"
            )


def visible_devices(run: Run, resources: ResourceTypes) -> dict[str, str]:
    """Variables that tell the task its leased devices. GPUs that were not leased are hidden from it."""
    roles = zip(resources.names, resources.roles, strict=True)
    named = {role.variable: run.devices.get(name, ()) for name, role in roles if role.enforced == "visible"}
    return {name: ",".join(map(str, dict.fromkeys(ids))) for name, ids in {"CUDA_VISIBLE_DEVICES": (), **named}.items()}


def task_environment(run: Run, resources: ResourceTypes, mark: str) -> dict[str, str]:
    """The task's environment, without the machine's variables. The task's own override all but its allocation."""
    launch = run.launch
    cpus, gpus = (launch.allocation.get(resources.enforced_by(means), 0) for means in ("cores", "visible"))
    env = dict.fromkeys(THREADS, str(max(1, int(cpus))))
    env[UNBUFFERED] = "1"  # people follow the output of running tasks
    env |= launch.env | {name: value for name, value in launch.secrets.items() if value is not None}
    for name, amount in launch.allocation.items():
        env[f"TAPFINGER_{name.upper()}S"] = f"{amount:g}"
    env |= {"TAPFINGER_CPUS": f"{cpus:g}", "TAPFINGER_GPUS": f"{gpus:g}"}
    task, attempt = launch.id
    return env | {"TAPFINGER_TASK": str(task), "TAPFINGER_ATTEMPT": str(attempt), MARK: mark}
