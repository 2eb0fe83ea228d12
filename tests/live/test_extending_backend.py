"""A backend from outside: the example of docs/extending-backend.md, and how backends are named and made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live.sites import CONFIG
from waiting import wait_for

from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.live.agent.devices import Devices
from tapfinger.live.agent.main import AgentSettings, make_host
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.fake import Fake
from tapfinger.live.backends.process import Process
from tapfinger.live.backends.supervision import Supervised, supervisor_of
from tapfinger.live.config import BackendConfig, LiveConfig, load_site
from tapfinger.live.local_site import LocalSite
from tapfinger.live.protocol.messages import Launch, Orders, Outcome, RunReport
from tapfinger.live.supervisor import Supervisor
from tapfinger.registry import GROUPS, lookup
from tapfinger.testing import CheckFailed, check_backend

ROOT = Path(__file__).parents[2]
NOHUP = "examples.nohup_backend:Nohup"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user stands in the checkout; what is imported from there is forgotten again."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    lookup.cache_clear()
    yield
    lookup.cache_clear()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG)
    return path


def obey(host: Host, seq: int, **more: Any) -> dict[tuple[int, int], RunReport]:
    """Give orders to a host as a coordinator would, and return what it reports."""
    machine = host.machine
    echo = host.report().seq
    message = Orders("left", machine.agent, machine.incarnation, 1, seq, echo, 60.0, **more)
    return {run.id: run for report in host.step(message) for run in report.runs}


# --------------------------------------------------------------------------- nohup


def test_the_page_shows_the_example_and_it_is_short() -> None:
    example = (ROOT / "examples" / "nohup_backend.py").read_text()
    page = (ROOT / "docs" / "extending-backend.md").read_text()
    assert f"```python\n{example}```" in page
    assert len(example.splitlines()) <= 35
    fields = [name for name in BackendContext.__dataclass_fields__ if f"`{name}`" not in page]
    assert fields == [], "the page explains every field of the context"


def test_the_nohup_example_fulfils_the_contract(tmp_path: Path) -> None:
    check_backend(BackendConfig(kind=NOHUP).create, tmp_path)


@pytest.fixture
def settings(site: Path, tmp_path: Path) -> Iterator[AgentSettings]:
    given = AgentSettings("left", tmp_path / "agent", site, NOHUP, {"nice": 7}, pin=True)
    yield given
    host = make_host(given)
    wait_for(lambda: not host.stop_all())
    host.close()


def test_a_task_runs_through_nohup_and_survives_the_restart_of_its_agent(settings: AgentSettings) -> None:
    waits = "import os, time\nprint('nice', os.nice(0), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
    host = make_host(settings)
    obey(host, 1, starts=(Launch((1, 1), (sys.executable, "-c", waits), {"cpu": 1.0, "gpu": 0.0}, {}),))
    directory = settings.state / "runs" / "1.1"
    wait_for(lambda: (directory / "output").exists() and "nice" in (directory / "output").read_text())
    supervisor = supervisor_of(Run(Launch((1, 1), (), {}, {}), directory))
    assert supervisor is not None
    assert os.getsid(supervisor) != os.getsid(0)
    host.close()

    host = make_host(settings)
    assert obey(host, 1)[1, 1].outcome is None, "it runs on without its first agent"
    (directory / "task" / "work" / "go").touch()
    end = wait_for(lambda: next((run.outcome for run in host.report().runs if host.step() or run.outcome), None))
    assert (end.result, end.code) == ("finished", 0)
    assert (directory / "output").read_text() == f"nice {os.nice(0) + 7}\n"
    host.close()


def test_what_a_killed_agent_has_left_is_stopped_with_its_own_backend(settings: AgentSettings, tmp_path: Path) -> None:
    state = tmp_path / "site"
    agent = AgentSettings(
        "left", state / "agents" / "left", settings.config, settings.backend, settings.options, pin=True
    )
    host = make_host(agent)
    sleeps = (sys.executable, "-c", "import time; time.sleep(3600)")
    obey(host, 1, starts=(Launch((1, 1), sleeps, {"cpu": 1.0, "gpu": 0.0}, {}),))
    run = Run(Launch((1, 1), (), {}, {}), agent.state / "runs" / "1.1")
    host.close()  # as if it were killed
    LocalSite(state).down()
    end = Supervised().poll(run)
    assert end is not None
    assert end.result == "stopped"


# --------------------------------------------------------- names, options and errors


def test_backends_come_from_the_configuration_and_the_command_line() -> None:
    live = LiveConfig.model_validate(
        {"backend": {"kind": NOHUP, "nice": 3}, "backends": {"lab": {"kind": "ray", "address": "http://10.0.0.7:8265"}}}
    )
    assert live.backend_of("left").model_dump() == {"kind": NOHUP, "nice": 3}
    assert live.backend_of("left", options={"nice": 4}).model_dump() == {"kind": NOHUP, "nice": 4}
    assert live.backend_of("left", NOHUP).model_dump() == {"kind": NOHUP, "nice": 3}
    assert live.backend_of("left", "process").model_dump() == {"kind": "process"}, "options belong to their backend"
    assert live.backend_of("lab").model_dump()["address"] == "http://10.0.0.7:8265"
    assert LiveConfig.model_validate({"backend": "fake"}).backend_of("left").kind == "fake"
    assert isinstance(LiveConfig().backend_of("left").create(), Process)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (NOHUP, {"nize": 3}, r"has no option 'nize'\. Did you mean 'nice'\? It takes: nice"),
        (NOHUP, {"nice": "low"}, "option nice = 'low' must be a whole number"),
        (NOHUP, {"nice": 30}, "nice = 30 must be from 0 to 19"),
        ("proces", {}, r"(?s)proces.*process"),
        ("process", {"memory_per_cpu": 2.0}, "memory_per_cpu = 2 is a limit of a control group; name one"),
        ("ray", {"cgroup": "/sys"}, "backend 'ray' has no option 'cgroup'"),
        ("collections:OrderedDict", {}, "OrderedDict without start, resize, stop, poll; a backend needs"),
        ("examples.nohup_backend:Nohub", {}, "has no 'Nohub'"),
    ],
)
def test_what_is_wrong_with_a_backend_is_said(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TapfingerError, match=message):
        LiveConfig().backend_of("left", kind, options).create()


def test_an_entry_point_gives_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUPS['backend']}]\nnohup = {NOHUP}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), *sys.path])
    made = LiveConfig().backend_of("left", "nohup", {"nice": 1}).create()
    assert type(made).__name__ == "Nohup"


def test_a_backend_of_a_cluster_that_does_not_exist_is_refused(site: Path) -> None:
    site.write_text(CONFIG + "[live.backends.lefd]\nkind = 'fake'\n")
    with pytest.raises(ConfigError, match=r"live\.backends.*lefd.*left"):
        load_site(site)


def test_faults_of_a_backend_are_said_before_anything_is_started(site: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no option 'nize'"):
        Supervisor(tmp_path / "state", site, NOHUP, ["nize=3"])
    assert not (tmp_path / "state").exists()
    with pytest.raises(ConfigError, match="must look like key=value"):
        Supervisor(tmp_path / "state", site, NOHUP, ["nize"])


def test_a_backend_is_opened_with_the_agents_context_before_anything_else(tmp_path: Path) -> None:
    seen: list[BackendContext] = []

    class Wants(Fake):
        def open(self, context: BackendContext) -> None:
            seen.append(context)

    context = BackendContext(tmp_path / "agent", "left", {"cpu": 4.0, "gpu": 0.0})
    Host(context, Wants(), Devices({}), 1.0).close()
    assert seen == [context]
    assert context.lease == tmp_path / "agent" / "lease"


# ------------------------------------------------------------ what the kit complains of


class Mute(Supervised):
    """Forgets the output."""

    def launch(self, run: Run, command: list[str]) -> int:
        return Process().launch(run, command)

    def poll(self, run: Run) -> Outcome | None:
        end = super().poll(run)
        if end is not None:
            run.output.unlink(missing_ok=True)
        return end


class Careless(Process):
    """Knows of nothing that was never started."""

    def poll(self, run: Run) -> Outcome | None:
        (run.directory / "run.json").read_text()
        return super().poll(run)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (Mute, "Mute: a task must run in .* run.output must hold what it prints: the line 'seen"),
        (Careless, "Careless raised FileNotFoundError"),
    ],
)
def test_the_kit_says_what_to_do(backend: type[Process], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_backend(backend, tmp_path)
