"""A real site while its parts fail at random; then the truth is held against the records.

Twenty seconds by default; for longer: ``TAPFINGER_NEMESIS_SECONDS=300 pytest -n0 tests/soak/test_nemesis.py``,
with ``TAPFINGER_NEMESIS_SEED`` for other misfortunes.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from engines.postgres import PostgresServer
from engines.replicas import ReplicatedSite
from live.disks import small_disk
from live.sites import RealSite
from soak.agent_faults import MOODY, full_disk, starts_raise
from soak.checker import check_everything
from soak.clocks import WallClock
from soak.nemesis import CLUSTERS, LEASE, SECONDS, SEED, Load
from soak.relay import Relay
from waiting import wait_for


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    made = RealSite(tmp_path, lease=LEASE - 1.0)
    yield made
    made.close()  # once more does no harm


class Nemesis:
    """Everything that can go wrong, and is made good again afterwards."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.acts = Counter[str]()

    def victim(self) -> str:
        return str(self.rng.choice(CLUSTERS))

    def pause(self, longest_when_short: float = 1.0) -> None:
        """A moment, or longer than the lease."""
        long = self.rng.random() < 0.5
        time.sleep(self.rng.uniform(LEASE, LEASE + 2.0) if long else self.rng.uniform(0.0, longest_when_short))

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stopped, not dead, perhaps for longer than the lease: it must not hurt anyone when it wakes."""
        process.send_signal(signal.SIGSTOP)
        self.pause()
        process.send_signal(signal.SIGCONT)

    def jump(self, clock: WallClock, restart: Callable[[], None]) -> None:
        """The wall clock of all is a day ahead or behind for a while; someone may start with it, and keeps it then."""
        clock.jump(int(self.rng.choice([-1, 1])))
        self.pause()
        if self.rng.random() < 0.5:
            restart()
        clock.jump(0)

    def rage(self, seconds: float, kinds: Mapping[str, Callable[[], None]]) -> None:
        """All kinds, in any order, again and again."""
        end = time.monotonic() + seconds
        while True:
            for kind in self.rng.permutation([*kinds]):
                if time.monotonic() > end:
                    return
                time.sleep(self.rng.uniform(0.2, 1.0))
                self.acts[str(kind)] += 1
                kinds[str(kind)]()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(tmp_path / "clock", monkeypatch)


#: Seconds for a test: some tasks may have to rest for a quarter of an hour in the end.
PATIENCE = SECONDS * 2 + 1500


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_a_site_survives_its_nemesis(site: RealSite, work: Path, clock: WallClock) -> None:
    """All faults; that of disks only where a small file system can be mounted for each agent."""
    # Isolated tasks cannot kill their supervisors, and one of the bad ones is to do that. Replicas isolate theirs.
    site.config.write_text(f"{site.config.read_text()}min_free_mb = 4.0\nisolation = 'none'\n")
    with ExitStack() as stack:
        disks = True
        for cluster in CLUSTERS:
            try:
                stack.enter_context(small_disk(site.state / "agents" / cluster, 32))
            except pytest.skip.Exception:
                disks = False
        try:
            _rage_at(site, work, clock, disks)
        finally:
            site.close()


def _rage_at(site: RealSite, work: Path, clock: WallClock, disks: bool) -> None:
    places = {cluster: site.state / "agents" / cluster for cluster in CLUSTERS}
    small = site.config.with_name("small.toml")
    small.write_text(site.config.read_text().replace("cpu = 4, gpu = 0", "cpu = 2, gpu = 0"))

    def agent(cluster: str) -> None:
        site.agent(cluster, "--backend", MOODY)

    site.serve()
    relays = {cluster: Relay(site.port) for cluster in CLUSTERS}
    site.routes = {cluster: f"http://127.0.0.1:{relay.port}" for cluster, relay in relays.items()}
    for cluster in CLUSTERS:
        agent(cluster)
    load = Load(site.url, (site.state / "token").read_text().strip(), work)
    nemesis = Nemesis()

    def kill(name: str, start: Callable[[], object]) -> None:
        site.kill(name)
        nemesis.pause(0.5)
        start()

    def kill_agent() -> None:
        cluster = nemesis.victim()
        kill(cluster, lambda: agent(cluster))

    def kill_coordinator() -> None:
        kill("coordinator", site.serve)

    def capacity(cluster: str) -> float:
        assert site.client is not None
        return float({c["name"]: c for c in site.client.clusters()}[cluster]["capacity"]["cpu"])

    def lie() -> None:
        """An agent comes back with a capacity that is not the configured one; the smaller counts while it does."""
        cluster, told = nemesis.victim(), site.config
        site.config = small
        kill(cluster, lambda: agent(cluster))
        site.config = told
        wait_for(lambda: capacity(cluster) == 2)
        nemesis.pause()
        kill(cluster, lambda: agent(cluster))

    def trouble(act: str) -> None:
        relay = relays[nemesis.victim()]
        (relay.cut if act == "cut" else relay.hold)()
        nemesis.pause()
        relay.heal()

    faults: dict[str, Callable[[], None]] = {
        "kill agent": kill_agent,
        "kill coordinator": kill_coordinator,
        "stop agent": lambda: nemesis.stop(site.processes[nemesis.victim()]),
        "stop coordinator": lambda: nemesis.stop(site.processes["coordinator"]),
        "cut": lambda: trouble("cut"),
        "hold": lambda: trouble("hold"),
        "starts raise": lambda: starts_raise(places[nemesis.victim()], nemesis.pause),
        "lie about capacity": lie,
        "clock jumps": lambda: nemesis.jump(clock, kill_agent if nemesis.rng.random() < 0.3 else kill_coordinator),
    }
    if disks:
        faults["full disk"] = lambda: full_disk(places[nemesis.victim()], nemesis.pause)
    load.start()
    nemesis.rage(SECONDS, faults)
    load.end()
    assert site.client is not None
    check_everything(site.client, load, work, nemesis.acts)
    for relay in relays.values():
        relay.close()


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE)
def test_replicas_survive_their_nemesis(tmp_path: Path, work: Path, clock: WallClock, postgres: PostgresServer) -> None:
    site = ReplicatedSite(tmp_path, postgres.database(), lease=LEASE - 1.0)
    nemesis = Nemesis()

    def of_role(role: str) -> str:
        found = [name for name in ("a", "b") if site.role(name) == role]
        return found[0] if found else str(nemesis.rng.choice(["a", "b"]))

    def kill(role: str) -> None:
        name = of_role(role)
        site.kill(name)
        nemesis.pause(0.5)
        site.serve(name)

    def kill_agent() -> None:
        cluster = nemesis.victim()
        site.kill(cluster)
        nemesis.pause(0.5)
        site.agent(cluster)

    def lose_database() -> None:
        postgres.close()
        nemesis.pause()
        postgres.start()

    try:
        client = site.up()
        load = Load(",".join(site.urls.values()), site.token, work)
        load.start()
        nemesis.rage(
            SECONDS,
            {
                "kill leader": lambda: kill("leader"),
                "stop leader": lambda: nemesis.stop(site.processes[of_role("leader")]),
                "kill standby": lambda: kill("standby"),
                "stop standby": lambda: nemesis.stop(site.processes[of_role("standby")]),
                "kill agent": kill_agent,
                "stop agent": lambda: nemesis.stop(site.processes[nemesis.victim()]),
                "database goes away": lose_database,
                "clock jumps": lambda: nemesis.jump(clock, lambda: kill("leader")),
            },
        )
        load.end()
        wait_for(lambda: "leader" in {site.role("a"), site.role("b")})
        check_everything(client, load, work, nemesis.acts)
    finally:
        site.close()
