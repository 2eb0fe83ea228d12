"""Chooses the pool for the user's options."""

from __future__ import annotations

from tapfinger.errors import ConfigError
from tapfinger.parallel.base import Pool
from tapfinger.parallel.local import InProcess, Processes


def open_pool(jobs: int = 1, ray: str | None = None) -> Pool:
    """This process for one job at a time, else that many processes; with ``ray``, the cluster at that address."""
    if ray is None:
        return InProcess() if jobs == 1 else Processes(jobs)
    if jobs != 1:
        raise ConfigError(f"--jobs {jobs} counts processes of this machine; with --ray the cluster's CPUs decide")
    from tapfinger.parallel.on_ray import RayPool

    return RayPool(ray)
