"""Resources beyond cpu and gpu: memory and shares of a GPU, declared with their roles, in simulation and live."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live.test_cgroups import pretended_cgroup
from typer.testing import CliRunner
from waiting import wait_for

from tapfinger.cli import app
from tapfinger.config import load_scenario, parse_scenario
from tapfinger.core.model import USUAL_ROLES, ResourceRole, ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.live.agent.devices import Devices, NoRoom, without
from tapfinger.live.agent.main import AgentSettings, make_host
from tapfinger.live.agent.runtime import Host
from tapfinger.live.backends.cgroups import Cgroups
from tapfinger.live.backends.ray_jobs import in_rays_words
from tapfinger.live.config import load_site
from tapfinger.live.protocol.messages import Launch, Orders
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.resource_types import resource_types
from tapfinger.workloads.world import build_world

SITE = """
name = "shares"
mode = "multi"
tasks = 30
[resources]
cpu = 1
gpu_share = { unit = 0.25, role = "share", enforced = "visible" }
memory = 0.5
[[clusters]]
name = "left"
capacity = { cpu = 4, gpu_share = 2, memory = 8 }
[[clusters]]
name = "right"
capacity = { cpu = 8, gpu_share = 1, memory = 16 }
[[task_types]]
name = "small"
minimum = { cpu = 1, gpu_share = 0.25, memory = 0.5 }
maximum = { cpu = 2, gpu_share = 1 }
speed = { kind = "amdahl", seconds = 60, parallel = { gpu_share = 0.8, memory = 0.1 } }
[[task_types]]
name = "large"
minimum = { cpu = 1, gpu_share = 0.5, memory = 4 }
maximum = { cpu = 4, gpu_share = 1, memory = 8 }
speed = { kind = "tanh", resource = "gpu_share", scale = 1 }
[arrivals]
kind = "poisson"
rate = 1.0
"""
TYPES = ResourceTypes(
    ("cpu", "gpu_share", "memory"),
    (1.0, 0.25, 0.5),
    (USUAL_ROLES["cpu"], ResourceRole("share", "visible"), USUAL_ROLES["memory"]),
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return path


# ------------------------------------------------------------------ declarations


def test_roles_are_read_and_written(site: Path) -> None:
    scenario = load_scenario(site)
    assert resource_types(scenario) == TYPES
    assert parse_scenario(scenario.written()).resources == scenario.resources
    assert scenario.resolved()["resources"] == {
        "cpu": 1.0,
        "gpu_share": {"unit": 0.25, "role": "share", "enforced": "visible"},
        "memory": 0.5,
    }
    assert load_scenario(site, ["resources.gpu_share.unit=0.5"]).resources["gpu_share"].unit == 0.5


def test_usual_names_have_usual_roles() -> None:
    types = ResourceTypes(("cpu", "gpu", "memory", "licence"), (1.0,) * 4)
    assert [(role.lease, role.enforced) for role in types.roles] == [
        ("device", "cores"),
        ("device", "visible"),
        ("divisible", "memory"),
        ("divisible", "none"),
    ]
    assert (types.accelerator, types.processor) == (1, 0)
    assert (TYPES.accelerator, TYPES.processor) == (1, 0), "not the last one, which is memory"
    assert ResourceTypes(("tpu", "ram"), (1.0, 1.0)).accelerator == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": {"unit": 0.3, "role": "share"}}, r"resources\.x: role 'share' needs a unit .*got 0\.3"),
        ({"x": {"role": "share", "enforced": "cores"}}, "cores cannot be shared"),
        (
            {"x": {"enforced": "visible"}},
            r"resources\.x: enforced = 'visible' needs ids, and role 'divisible' has none",
        ),
        ({"gpu": 1, "x": {"role": "device", "enforced": "visible"}}, "both enforced by CUDA_VISIBLE_DEVICES"),
        ({"memory": 1, "x": {"enforced": "memory"}}, r"resources\.x and resources\.memory are both"),
        ({"x": {"rolle": "share"}}, r"unknown key 'resources\.x\.rolle'.* Did you mean 'role'"),
        ({"x": {"role": "slice"}}, r"resources\.x\.role: must be 'device', 'share' or 'divisible'"),
        ({"x": 0}, r"resources\.x\.unit: must be greater than 0"),
    ],
)
def test_roles_that_nothing_could_carry_out_are_refused(table: dict[str, Any], message: str) -> None:
    kind = {"name": "t", "minimum": dict.fromkeys(table, 0), "speed": {"kind": "constant", "slots": 1}}
    capacity = dict.fromkeys(table, 1)
    data = {"name": "s", "mode": "multi", "tasks": 1, "resources": table, "task_types": [kind]}
    with pytest.raises(ConfigError, match=message):
        build_world(parse_scenario({**data, "clusters": [{"name": "c", "capacity": capacity}]}))


# -------------------------------------------------------------------- simulation


@pytest.mark.parametrize("name", ["fifo", "greedy", "optimus", "tiresias", "lookahead"])
def test_they_are_scheduled_in_simulation(site: Path, name: str) -> None:
    totals = run_scheduler(build_world(load_scenario(site)), create("scheduler", name, {}), 1)
    assert totals.tasks == 30


def test_they_are_compared(site: Path, tmp_path: Path) -> None:
    words = ["compare", str(site), "--schedulers", "min,greedy", "--seeds", "0:2", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert '"gpu_share": ' in json.dumps(found["schedulers"]["greedy"])


# ------------------------------------------------------------------------ leases


def test_parts_of_devices_are_leased() -> None:
    devices = Devices({"gpu_share": [0, 1]}, {"gpu_share": 4})
    first = devices.lease({"gpu_share": 0.25})
    assert first == {"gpu_share": (0,)}
    assert devices.lease({"gpu_share": 1}) == {"gpu_share": (1, 1, 1, 1)}, "a whole device where one is free"
    half = devices.lease({"gpu_share": 0.5})
    assert half == {"gpu_share": (0, 0)}
    assert devices.free == {"gpu_share": 0.25}
    with pytest.raises(NoRoom, match=r"0\.5 gpu_share were asked for, 0\.25 are free"):
        devices.lease({"gpu_share": 0.5})
    devices.release(first)
    assert devices.change(half, {"gpu_share": 1}) == {"gpu_share": (0, 0, 0, 0)}
    assert without({"gpu_share": (0, 0, 1)}, {"gpu_share": (0,)}) == {"gpu_share": (0, 1)}


def test_the_fullest_device_that_fits_is_taken_and_only_then_several() -> None:
    devices = Devices({"g": [0, 1, 2]}, {"g": 4})
    devices.hold({"g": (0, 0, 1)})
    assert devices.lease({"g": 0.5}) == {"g": (0, 0)}
    assert devices.lease({"g": 0.25}) == {"g": (1,)}
    devices.hold({"g": (2,)})
    assert devices.lease({"g": 1.25}) == {"g": (2, 2, 2, 1, 1)}, "the coordinator knows totals only"
    assert devices.free == {"g": 0.0}


# -------------------------------------------------------------------------- live


@pytest.fixture
def host(site: Path, tmp_path: Path) -> Iterator[Host]:
    made = make_host(AgentSettings("left", tmp_path / "agent", site, pin=True))
    yield made
    wait_for(lambda: not made.stop_all())
    made.close()


SHOWS = """
import json, os, time
print(json.dumps({n: os.environ[n] for n in sorted(os.environ) if n.startswith(("CUDA", "TAPFINGER_"))}), flush=True)
time.sleep(3600)
"""


def test_tasks_share_a_device_and_see_it(host: Host, tmp_path: Path) -> None:
    amounts = [{"cpu": 1.0, "gpu_share": share, "memory": 2.0} for share in (0.25, 0.75, 1.0)]
    starts = tuple(
        Launch((n, 1), (sys.executable, "-c", SHOWS), amount, {}) for n, amount in enumerate(amounts, start=1)
    )
    machine = host.machine
    host.step(Orders("left", machine.agent, machine.incarnation, 1, 1, host.report().seq, 60.0, starts=starts))

    def seen(number: int) -> dict[str, str]:
        path = tmp_path / "agent" / "runs" / f"{number}.1" / "output"
        found: dict[str, str] = json.loads(wait_for(lambda: path.exists() and path.read_text().strip()))
        return found

    assert [seen(n)["CUDA_VISIBLE_DEVICES"] for n in (1, 2, 3)] == ["0", "0", "1"]
    first = seen(1)
    assert (first["TAPFINGER_GPU_SHARES"], first["TAPFINGER_MEMORYS"]) == ("0.25", "2")
    assert (first["TAPFINGER_GPUS"], first["TAPFINGER_CPUS"]) == ("0.25", "1")
    saved = json.loads((tmp_path / "agent" / "runs" / "2.1" / "launch.json").read_text())
    assert saved["devices"]["gpu_share"] == [0, 0, 0]
    assert "memory" not in saved["devices"]


def test_limits_go_by_role_and_not_by_name(tmp_path: Path) -> None:
    types = ResourceTypes(("core", "ram"), (1.0, 1.0), (USUAL_ROLES["cpu"], USUAL_ROLES["memory"]))
    groups = Cgroups(pretended_cgroup(tmp_path, "cpu memory"), types)
    limits = groups.limits({"core": 2.0, "ram": 4.0})
    assert (limits["cpu.max"], limits["memory.max"]) == ("200000 100000", str(4 * 1024**3))


def test_ray_knows_them_by_its_own_names() -> None:
    types = ResourceTypes((*TYPES.names, "licence"), (*TYPES.units, 1.0), (*TYPES.roles, ResourceRole()))
    assert in_rays_words(types, {"cpu": 2.0, "gpu_share": 0.25, "memory": 1.5, "licence": 1.0}) == {
        "CPU": 2.0,
        "GPU": 0.25,
        "memory": 1.5 * 1024**3,
        "licence": 1.0,
    }


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("cpu = 0.5", "resources.cpu: unit = 0.5, but devices are leased whole"),
        ("cpu = 1\ntpu = {enforced = 'visible', role = 'device', variable = 'PATH'}", "'PATH' has another use"),
        ("cpu = 1\ntpu = {enforced = 'visible', role = 'device', variable = 'TAPFINGER_X'}", "has another use"),
        ("cpu = 1\ntpu = {enforced = 'visible', role = 'device', variable = 'TPU-CHIPS'}", "'TPU-CHIPS' is no name"),
    ],
)
def test_what_no_machine_can_give_is_refused_when_a_site_is_read(tmp_path: Path, declared: str, said: str) -> None:
    names = [line.partition(" =")[0] for line in declared.splitlines()]
    amounts = ", ".join(f"{name} = 2" for name in names)
    path = tmp_path / "site.toml"
    path.write_text(
        f"[resources]\n{declared}\n[[clusters]]\nname = 'lab'\ncapacity = {{{amounts}}}\n"
        f"[[task_types]]\nname = 'work'\nminimum = {{{amounts}}}\nspeed = {{kind = 'constant', slots = 1}}\n"
    )
    with pytest.raises(ConfigError, match=said):
        load_site(path)
