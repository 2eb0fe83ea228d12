"""Coordinators within the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from live.sites import CONFIG

from tapfinger.live.config import build_site, load_site
from tapfinger.live.service.service import Service
from tapfinger.registry import create


@contextmanager
def services(directory: Path) -> Iterator[Callable[..., Service]]:
    """Makes services of one site, on SQLite or at the address of a store, and closes them at the end."""
    made: list[Service] = []

    def service(store: str = "", name: str = "state") -> Service:
        path = directory / "site.toml"
        path.write_text(CONFIG + f"max_waiting = 5\nstore = '{store}'\n")
        scenario, config = load_site(path)
        schedulers = create("scheduler", "fifo", {}), create("scheduler", "min", {})
        made.append(Service(directory / name, build_site(scenario), config, *schedulers))
        return made[-1]

    yield service
    for one in made:
        one.close()
