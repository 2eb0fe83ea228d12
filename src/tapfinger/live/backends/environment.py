"""The environment of a task: a few harmless variables of the machine, its own wishes, and what it was granted.

Whoever submits a task chooses the program, so variables such as LD_PRELOAD give no power that the program does
not have anyway; the supervisor never sees them. A site that lets submitters choose among fixed programs only
can narrow the names with ``live.env_names``.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tapfinger.core.model import ResourceTypes
from tapfinger.live.backends.base import Run

#: What tasks get of the machine's own environment; secrets of the agent are none of their business.
ALLOWED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

#: Numeric libraries start as many threads as the machine has cores unless one of these says otherwise.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")

#: Names every process of a run, also those that have left its session.
MARK = "TAPFINGER_RUN"


def refused_names(names: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """Names of variables that none of the patterns allows."""
    patterns = tuple(allowed)
    return sorted(name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns))


def visible_devices(run: Run, resources: ResourceTypes) -> dict[str, str]:
    """Variables that name the leased devices to the task. A GPU that was not leased is hidden from it."""
    roles = zip(resources.names, resources.roles, strict=True)
    named = {role.variable: run.devices.get(name, ()) for name, role in roles if role.enforced == "visible"}
    return {name: ",".join(map(str, dict.fromkeys(ids))) for name, ids in {"CUDA_VISIBLE_DEVICES": (), **named}.items()}


def task_environment(run: Run, resources: ResourceTypes, mark: str) -> dict[str, str]:
    """Everything but what comes from the machine; the task's own wishes come before all but what it was granted."""
    launch = run.launch
    cpus, gpus = (launch.allocation.get(resources.enforced_by(means), 0) for means in ("cores", "visible"))
    env = dict.fromkeys(THREADS, str(max(1, int(cpus))))
    env["PYTHONUNBUFFERED"] = "1"  # output is followed while it runs
    env |= launch.env
    for name, amount in launch.allocation.items():
        env[f"TAPFINGER_{name.upper()}S"] = f"{amount:g}"
    env |= {"TAPFINGER_CPUS": f"{cpus:g}", "TAPFINGER_GPUS": f"{gpus:g}"}
    task, attempt = launch.id
    return env | {"TAPFINGER_TASK": str(task), "TAPFINGER_ATTEMPT": str(attempt), MARK: mark}
