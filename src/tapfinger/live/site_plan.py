"""What a site on one machine consists of, and the command line of each of its processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tapfinger.live.agent.devices import cores_of, split_cores, split_devices
from tapfinger.live.config import build_site, cluster_capacities, load_site
from tapfinger.overrides import parse_options


class SitePlan:
    """A configuration, divided among processes on this machine."""

    def __init__(self, state: Path, config: Path | None, backend: str | None, options: Sequence[str]) -> None:
        """Read the configuration, and check it and the backends. ``options``: of the backend, as ``key=value``."""
        self._state = state
        scenario, live = load_site(config)
        #: The clusters as the configuration has them.
        self.clusters: list[dict[str, Any]] = scenario.model_dump(mode="json")["clusters"]
        self._resources = build_site(scenario).resources
        self._capacities = cluster_capacities(scenario)
        #: Names of the clusters, one for each agent.
        self.names = tuple(self._capacities)
        for name in self.names:
            live.backend_of(name, backend, parse_options(options)).create()
        # A name that is no file is one of a shipped scenario.
        self._given = [] if config is None else ["--config", str(config.absolute() if config.is_file() else config)]
        self._how = [word for option in options for word in ("--backend-option", option)]
        self._how += ["--backend", backend] if backend is not None else []

    def up_words(self, port: int) -> list[str]:
        """``tapfinger up`` for all of it."""
        return ["up", "--state", str(self._state), "--port", str(port), *self._given, *self._how]

    def serve_words(self, port: int) -> list[str]:
        """The coordinator."""
        return ["serve", "--state", str(self._state), "--port", str(port), "--verbose", *self._given]

    def agent_words(self, cluster: str, folder: Path, note: dict[str, Any]) -> list[str]:
        """The agent of a cluster, which reads its token from standard input. ``note``: of the coordinator."""
        cores = split_cores({name: cores_of(self._resources, amount) for name, amount in self._capacities.items()})
        words = ["agent", "--cluster", cluster, "--coordinator", address_of(note), "--state", str(folder)]
        # Agents do not know of each other: an agent without cores of its own must not pin tasks.
        words += ["--cores", cores[cluster]] if cores else ["--no-pin"]
        for name, ids in split_devices(self._resources, self._capacities)[cluster].items():
            words += ["--devices", f"{name}={ids}"]
        words += ["--tls-ca", note["ca"]] if "ca" in note else []
        words += ["--hide", str(self._state)]  # the operator's token, the store and other agents
        return [*words, "--token-file", "-", "--verbose", *self._given, *self._how]


def address_of(note: dict[str, Any]) -> str:
    """Where agents reach the coordinator with this note: under a name that is in its certificate, if it has one."""
    return str(note["advertised"] if "server_name" in note else note["url"])
