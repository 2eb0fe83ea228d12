"""Devices of an agent by id: how they are named, checked, and divided among the clusters of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live.sites import CONFIG

from tapfinger.core.model import ResourceRole, ResourceTypes
from tapfinger.errors import ConfigError
from tapfinger.live.agent.devices import Devices, parse_cores, parse_devices, split_devices
from tapfinger.live.agent.main import AgentSettings, make_host

CHIPS = ResourceTypes(
    ("cpu", "gpu", "chip", "memory"),
    (1.0, 0.25, 1.0, 1.0),
    (
        ResourceRole("device", "cores"),
        ResourceRole("share", "visible"),
        ResourceRole("device", "visible", "TPU_VISIBLE_CHIPS"),
        ResourceRole("divisible", "memory"),
    ),
)


def test_every_resource_that_tasks_are_shown_is_divided_and_no_device_twice() -> None:
    capacities = {
        "one": {"cpu": 4.0, "gpu": 1.5, "chip": 0.0, "memory": 8.0},
        "two": {"cpu": 4.0, "gpu": 0.0, "chip": 2.0, "memory": 8.0},
        "three": {"cpu": 4.0, "gpu": 0.25, "chip": 1.0, "memory": 8.0},
    }
    split = split_devices(CHIPS, capacities)
    assert split == {"one": {"gpu": "0,1"}, "two": {"chip": "0,1"}, "three": {"gpu": "2", "chip": "2"}}
    for name, given in split.items():
        parse_devices(given, CHIPS, capacities[name], name)  # what an agent is given, it takes


def test_devices_as_they_are_named() -> None:
    capacity = {"cpu": 4.0, "gpu": 2.5, "chip": 0.0}
    assert parse_devices({"gpu": "7,2-3"}, CHIPS, capacity, "lab") == {"gpu": (2, 3, 7)}
    assert parse_devices({}, CHIPS, capacity, "lab") == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": "0"}, r"--devices gpu=0 must name 3 different ids.*cluster lab has 2\.5 gpu"),
        ({"gpu": "0,0,1"}, "must name 3 different ids"),
        ({"gpu": "0-3"}, "must name 3 different ids"),
        ({"gpu": "0,1,x"}, "must name 3 different ids"),
        ({"gpu": "-1,0,1"}, "must name 3 different ids"),
        ({"gpu": "0-99999999999"}, "must name 3 different ids"),
        ({"cpu": "0-3"}, "cpu has no devices that tasks are shown; those that have are gpu, chip; use --cores"),
        ({"memory": "1"}, "memory has no devices that tasks are shown"),
        ({"npu": "1"}, "npu has no devices that tasks are shown"),
    ],
)
def test_devices_that_a_cluster_cannot_have(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_devices(given, CHIPS, {"cpu": 4.0, "gpu": 2.5}, "lab")


def test_a_list_without_end_is_no_list_of_cores() -> None:
    with pytest.raises(ConfigError, match="must name cores of this machine"):
        parse_cores("0-99999999999")


def test_an_agent_leases_the_devices_that_it_was_given(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(CONFIG.replace("gpu = 0}\n[[", "gpu = 2}\n[["))

    def devices(**more: Any) -> Devices:
        host = make_host(AgentSettings("left", tmp_path / "agent", site, pin=False, **more))
        host.close()
        return host._devices

    assert devices(devices={"gpu": "4,6"}).lease({"gpu": 2.0}) == {"gpu": (4, 6)}
    assert devices().lease({"gpu": 2.0}) == {"gpu": (0, 1)}
    with pytest.raises(ConfigError, match="must name 2 different ids"):
        devices(devices={"gpu": "4"})


def test_a_device_of_before_does_not_become_this_agents() -> None:
    devices = Devices({"gpu": [1]})
    devices.hold({"gpu": [0]})  # by a task that the agent started when it had that one
    devices.release({"gpu": [0]})
    assert devices.lease({"gpu": 1.0}) == {"gpu": (1,)}
    assert devices.free == {"gpu": 0.0}
