"""Floods against a real coordinator: no lease is missed, no running task is touched, memory and log stay small."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live.floods import FLOODS, flood, memory
from live.sites import RealSite, python
from waiting import wait_for

from tapfinger.core.contract import Phase
from tapfinger.live.http.client import make_spec

#: Seconds of each flood.
SHORT = 2.5
#: Seconds of the lease: long enough for a busy machine, far shorter than what the floods once caused.
LEASE = 10.0
#: Most megabytes that the coordinator may ever use, and most that its log may grow by in a flood.
MEMORY, LOG = 400.0, 2.0


class Flooded:
    """A site with a running task, tasks that wait, and tokens to flood it with."""

    def __init__(self, directory: Path, tls: tuple[Path, Path] | None = None) -> None:
        self.site = RealSite(directory, LEASE)
        self.site.config.write_text(self.site.config.read_text() + "max_waiting = 20000\n")
        options: list[str] = []
        if tls is not None:
            self.site.ca = str(tls[0])
            options = ["--tls-cert", str(tls[0]), "--tls-key", str(tls[1])]
        self.client = self.site.serve(*options)
        self.site.agent("left", *(["--tls-ca", str(tls[0])] if tls is not None else []))
        wait_for(lambda: self.client.clusters()[0]["connected"])
        (self.task,) = self.client.submit(
            python("import time; time.sleep(1e6)", maximum={"cpu": 4}, minimum={"cpu": 4})
        )
        wait_for(lambda: self.client.show(self.task).phase is Phase.RUNNING)
        waiting = make_spec(argv=["true"], type="demo", minimum={"cpu": 4}, env={"WORDS": "x" * 2000})
        self.client.submit(*[waiting] * 3000)
        self.tokens = {role: self.client.new_token(role, role) for role in ("viewer", "submitter")}

    @property
    def pid(self) -> int:
        return self.site.processes["coordinator"].pid

    def log(self) -> float:
        return (self.site.state / "coordinator.log").stat().st_size / 2**20

    def check(self, name: str) -> None:
        """Flood it, and look at what became of it."""
        seq, logged = self.client.events(last=1)[-1]["seq"], self.log()
        assert flood(self.site, [name], SHORT, self.tokens)[name] > 5
        info = self.client.show(self.task)
        assert (info.phase, info.attempt, info.losses) == (Phase.RUNNING, 1, 0)
        assert not [line for line in self.client.events(seq) if line["kind"] in ("silent", "lost", "requeued")]
        assert memory(self.pid, "VmHWM") < MEMORY
        assert self.log() - logged < LOG
        began = time.monotonic()
        (task,) = self.client.submit(make_spec(argv=["true"], type="demo", minimum={"cpu": 4}))
        self.client.cancel(task)
        assert time.monotonic() - began < LEASE, "people are served again at once"

    def close(self) -> None:
        self.site.close()


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    site = Flooded(tmp_path_factory.mktemp("flooded"))
    yield site
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_touches_no_task(flooded: Flooded, name: str) -> None:
    flooded.check(name)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("encrypted")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=tapfinger", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(words, check=True, capture_output=True)
    site = Flooded(folder, (folder / "cert.pem", folder / "key.pem"))
    yield site
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_touches_no_task_over_tls(encrypted: Flooded, name: str) -> None:
    encrypted.check(name)


@pytest.mark.slow
def test_whose_address_it_is_cannot_be_invented(flooded: Flooded) -> None:
    with httpx.Client(base_url=flooded.site.url, headers={"X-Forwarded-For": "10.9.8.7"}) as stranger:
        stranger.get("/api/v1/tasks", headers={"Authorization": "Bearer guessed"})
    assert "10.9.8.7" not in {line["from"] for line in flooded.client.audit(1000)}
