import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import make_scenario, make_world
from pydantic import ValidationError

from tapfinger.config import Scenario, load_scenario, parse_scenario, scenario_names
from tapfinger.config_faults import _SPEEDS
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.workloads.world import build_world, draw_workload

ROOT = Path(__file__).parents[2]
PAPER = ["hetero-6", "multi-3", "short-long-3", "synthetic-3", "synthetic-6", "testbed-3", "testbed-6"]

FILE = """
name = "mine"
mode = "multi"
tasks = 5
[[clusters]]
name = "edge"
count = 2
capacity = { cpu = 16, gpu = 8 }
[[task_types]]
name = "a"
minimum = { cpu = 2, gpu = 1 }
speed = { kind = "constant", slots = 4 }
[[task_types]]
name = "b"
minimum = { cpu = 2, gpu = 1 }
speed = { kind = "constant", seconds = 40 }
[arrivals]
rate = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


# -------------------------------------------------------------- what ships


def test_the_papers_scenarios_ship() -> None:
    assert set(PAPER) <= set(scenario_names())


@pytest.mark.parametrize(
    ("name", "mode", "capacities", "tasks", "rate"),
    [
        ("synthetic-3", "single", [(16, 16)] * 3, 192, 2),
        ("synthetic-6", "single", [(16, 16)] * 6, 384, 4),
        ("multi-3", "multi", [(16, 16)] * 3, 192, 3),
        ("hetero-6", "multi", [(n, n) for n in (4, 8, 12, 16, 24, 32)], 384, 6),
        ("short-long-3", "multi", [(16, 16)] * 3, 192, 3),
        ("testbed-3", "single", [(32, 16)] * 3, 1000, 1.5),
        ("testbed-6", "single", [(32, 16)] * 6, 2000, 3),
    ],
)
def test_the_papers_settings(name: str, mode: str, capacities: list[Any], tasks: int, rate: float) -> None:
    scenario = load_scenario(name)
    world = build_world(scenario)
    assert (scenario.mode, scenario.tasks, scenario.arrivals.options()["rate"]) == (mode, tasks, rate)
    assert [c.capacity for c in world.clusters] == capacities
    assert {t.weight for t in world.task_types} == {1.0}
    assert scenario.slot_seconds == 10


def test_short_and_long_tasks_take_one_and_ten_slots_whatever_they_get() -> None:
    for kind, slots in zip(build_world(load_scenario("short-long-3")).task_types, (1, 10), strict=True):
        assert kind.minimum == (3, 3)
        assert {kind.profile.slots(x) for x in kind.profile.allocations()} == {slots}


def test_noise_only_in_single_task_mode() -> None:
    for name in PAPER:
        world = build_world(load_scenario(name))
        assert (world.noise.kind != "none") == (world.mode.value == "single")
        assert world.switching_cost == (0.5 if world.mode.value == "single" else 0.0)


def test_the_page_of_keys_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "config_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# -------------------------------------------------------------------- files


def test_a_file_is_read_with_its_directory(file: Path) -> None:
    scenario = load_scenario(str(file))
    assert scenario.directory == str(file.parent)
    assert not {"directory", "source"} & set(scenario.resolved())
    assert parse_scenario(scenario.resolved()).resolved() == scenario.resolved()
    world = build_world(scenario)
    assert [c.name for c in world.clusters] == ["edge-0", "edge-1"]
    assert [t.profile.slots((2, 1)) for t in world.task_types] == [4, 4]
    assert world.task_types[0].maximum == (2, 1), "a maximum left out is the minimum"


def test_scenarios_are_frozen() -> None:
    with pytest.raises(ValidationError):
        make_scenario().tasks = 5  # type: ignore[misc]


def test_an_unknown_scenario_names_the_closest() -> None:
    with pytest.raises(UnknownNameError, match=r"no scenario 'multi3'. Did you mean 'multi-3'\? Known: .*synthetic-6"):
        load_scenario("multi3")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no scenario file .*nowhere\.toml"):
        load_scenario(str(tmp_path / "nowhere.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text('name = "a"\nmode = ?')
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML.*line 2"):
        load_scenario(str(broken))
    broken.write_bytes(b"name = '\xff\xfe'")
    with pytest.raises(ConfigError, match=r"broken\.toml cannot be read"):
        load_scenario(str(broken))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tasks = 5", "task = 5", ["unknown key 'task'", "Did you mean 'tasks'?"]),
        ("tasks = 5", "colour = 5", ["unknown key 'colour'", "docs/config.md"]),
        ("tasks = 5", "directory = '.'", ["unknown key 'directory'"]),
        ("tasks = 5", "tasks = 0", ["tasks", "greater than 0", "got 0"]),
        ("tasks = 5", "tasks = 'many'", ["tasks", "got 'many'"]),
        ('mode = "multi"', 'mode = "both"', ["mode", "'single' or 'multi'", "got 'both'"]),
        ('mode = "multi"', "", ["mode is missing"]),
        ("tasks = 5", "slot_seconds = -1", ["slot_seconds", "got -1"]),
        ("tasks = 5", "slot_seconds = inf", ["slot_seconds", "got inf"]),
        ("tasks = 5", "switching_cost = nan", ["switching_cost", "got nan"]),
        ("tasks = 5", "resources = {}", ["resources", "at least 1"]),
        ("count = 2", "count = 0", ["clusters.0.count", "got 0"]),
        ("count = 2", "cont = 2", ["unknown key 'clusters.0.cont'", "Did you mean 'count'?"]),
        ('kind = "constant", slots = 4', 'kind = "magic"', ["task_types.0.speed", "magic"]),
        ('kind = "constant", slots = 4', 'kind = "constant"', ["task_types.0.speed", "give either slots or seconds"]),
        ("slots = 4", "slots = 4, seconds = 40", ["task_types.0.speed", "give either slots or seconds"]),
        ("slots = 4", "slots = 0", ["task_types.0.speed", "slots", "got 0"]),
        ('name = "b"', 'name = "a"', ["task_types", "'a' appears twice"]),
        ("[arrivals]", "[noise]\nkind = 'relative'\namplitude = 1.0\n[arrivals]", ["noise", "amplitude 1.0"]),
        ("[arrivals]", "[[outages]]\ncluster = 0\nstart = 5\nend = 5\n[arrivals]", ["outages.0", "end 5"]),
        ("[arrivals]", "[[outages]]\ncluster = 0\nstart = 0\nend = 5\n[arrivals]", ["outages.0.start", "got 0"]),
    ],
)
def test_errors_name_file_key_and_value(file: Path, old: str, new: str, words: list[str]) -> None:
    assert old in FILE
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_scenario(str(file))
    for word in [str(file), *words]:
        assert word in str(caught.value)


def test_all_faults_are_reported_at_once(file: Path) -> None:
    file.write_text(FILE.replace("tasks = 5", "tasks = 0").replace("count = 2", "count = 0"))
    with pytest.raises(ConfigError) as caught:
        load_scenario(str(file))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(("start", "end"), [(3, 8), (5, 9), (1, 2)])
def test_outages_of_one_cluster_must_be_apart(start: int, end: int) -> None:
    # One that begins in the slot where another ends would bring the cluster back too early.
    outages = [{"cluster": 0, "start": 2, "end": 5}, {"cluster": 0, "start": start, "end": end}]
    with pytest.raises(ConfigError, match=r"cluster 0 is away in .*merge"):
        make_scenario(outages=outages)
    make_scenario(outages=[outages[0], {"cluster": 0, "start": 6, "end": 9}])


# ----------------------------------------------------- what only a world shows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outages": [{"cluster": 3, "start": 1, "end": 2}]}, "outages: there is no cluster 3; clusters are 0..0"),
        ({"clusters": [{"name": "c", "capacity": {"cpu": 1}}]}, r"clusters\.c\.capacity: .*missing: gpu"),
        ({"clusters": [{"name": "c", "capacity": {"cpu": 1.5, "gpu": 1}}]}, r"clusters\.c\.capacity: cpu = 1\.5"),
        (
            {
                "clusters": [
                    {"name": "c", "count": 2, "capacity": {"cpu": 1, "gpu": 1}},
                    {"name": "c-0", "capacity": {"cpu": 1, "gpu": 1}},
                ]
            },
            "2 are named 'c-0'",
        ),
    ],
)
def test_worlds_that_cannot_be_built(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_world(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minimum": {"cpu": 17, "gpu": 1}}, "minimum .*exceeds maximum"),
        ({"minimum": {"cpu": 0, "gpu": 0}}, "must ask for something"),
        ({"maximum": {"cpu": 9999, "gpu": 9999}}, "more than 300,000"),
        ({"maximum": {"tpu": 1}}, "maximum: .*unknown: tpu .remove it, or add it to resources"),
        ({"speed": {"kind": "tanh", "resource": "tpu"}}, "no resource 'tpu'; resources are cpu, gpu"),
        ({"speed": {"kind": "amdahl", "seconds": 9, "parallel": {"cpu": 0.6, "gpu": 0.6}}}, "shares sum to 1.2"),
        ({"speed": {"kind": "amdahl", "seconds": 9, "parallel": {"tpu": 0.6}}}, "no resource 'tpu'"),
        ({"speed": {"kind": "constant", "slots": 1e9}}, "with 2 cpu, 1 gpu it takes 1e[+]09 slots, at most 1,000,000"),
        ({"minimum": {"cpu": 2, "gpu": 0}, "speed": {"kind": "tanh"}}, "with 2 cpu, 0 gpu it takes for ever"),
        ({"speed": {"kind": "constant", "seconds": 1e-320}}, "must be finite"),
    ],
)
def test_task_types_that_cannot_be_built(changes: dict[str, Any], words: str) -> None:
    kind = {
        "name": "steady",
        "minimum": {"cpu": 2, "gpu": 1},
        "maximum": {"cpu": 16, "gpu": 16},
        "speed": {"kind": "constant", "slots": 4},
    }
    with pytest.raises(ConfigError, match=f"^scenario: .*steady.*{words}"):
        make_world(task_types=[{**kind, **changes}])


# ---------------------------------------------------------------- overrides


def overridden(*overrides: str) -> Scenario:
    return load_scenario("multi-3", overrides)


def test_overrides_by_key_name_and_index() -> None:
    assert overridden("arrivals.rate=5").arrivals.options() == {"rate": 5}
    assert overridden("tasks=7").tasks == 7
    assert overridden("mode=single").mode == "single"
    assert overridden('mode="single"').mode == "single"
    assert overridden("clusters.edge.capacity.gpu=8").clusters[0].capacity == {"cpu": 16, "gpu": 8}
    assert overridden("clusters.0.count=5").clusters[0].count == 5
    assert [t.weight for t in overridden("task_types.sensitive.weight=3").task_types] == [1, 3]
    assert [t.weight for t in overridden("task_types.0.weight=3").task_types] == [3, 1]
    assert overridden("noise.kind=additive", "noise.amplitude=0.2").noise.amplitude == 0.2
    assert overridden("outages=[{cluster=1, start=2, end=4}]").outages[0].end == 4
    assert overridden("reports_progress=false").reports_progress is False
    assert overridden("tasks=7", "tasks=8").tasks == 8, "the last one counts"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tasks", "override 'tasks' must look like key=value"),
        ("=3", "must look like key=value"),
        ("task=3", "unknown key 'task'. Did you mean 'tasks'"),
        ("arrivals.kind.x=3", "arrivals.kind has no keys inside"),
        ("mode.x.y=3", "nothing inside"),
        ("clusters.cloud.count=3", "no entry 'cloud'; there are edge"),
        ("clusters.7.count=3", "no entry '7'; there are edge"),
        ("clusters.edge.colour=3", "unknown key 'clusters.0.colour'"),
        ("tasks=-3", "tasks.*got -3"),
        ("source=x", "unknown key 'source'"),
        ("clusters=3", "clusters = 3 must be a list"),
        ("clusters=[]", "clusters is empty; give at least 1"),
        ("task_types.sensitive.minimum=3", r"task_types\.1\.minimum = 3 must be a table"),
        ("outages.0.start=3", r"outages is an empty list; .*--set 'outages=\[\{cluster=0, start=3, end=5\}\]'"),
        ("noise.amplitude=0.1", "noise: amplitude = 0.1 has no effect with kind 'none'; set kind to 'additive'"),
        ("noise.kind=relative", "noise: kind 'relative' needs an amplitude"),
        ("eligibility.minimum_mbps=3", "minimum_mbps = 3 has no effect with kind 'subset'; set kind to 'bandwidth'"),
        ("eligibility={kind='all', maximum_mbps=30}", "maximum_mbps = 30 has no effect with kind 'all'"),
        (
            "task_types.sensitive.speed.kind=magic",
            r"task_types\.1\.speed\.kind = 'magic' must be one of constant, tanh",
        ),
        ("task_types.sensitive.speed={slots=3}", r"task_types\.1\.speed\.kind is missing; add one of constant, tanh"),
        ("task_types.sensitive.speed.scal=3", r"unknown key 'task_types\.1\.speed\.scal'. Did you mean 'scale'\?$"),
    ],
)
def test_bad_overrides_are_explained(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        overridden(override)


def test_switching_the_kind_of_a_speed_says_what_to_do_once_and_invents_no_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        overridden("task_types.sensitive.speed.kind=constant")
    *faults, advice = str(caught.value).splitlines()
    assert [fault.split("'")[1] for fault in faults] == [
        f"task_types.1.speed.{key}" for key in ("resource", "scale", "shape_offset")
    ]
    assert all("Kind 'constant' has the keys seconds, slots." in fault for fault in faults)
    assert "replace the whole table: --set 'task_types.1.speed={kind=\"constant\", slots=4}'" in advice
    overridden('task_types.1.speed={kind="constant", slots=4}')


@pytest.mark.parametrize("kind", list(_SPEEDS))
def test_the_example_of_every_kind_of_speed_is_a_good_one(kind: str) -> None:
    overridden(f'task_types.sensitive.speed={{kind="{kind}", {_SPEEDS[kind]}}}')


def test_no_noise_and_bandwidth_can_be_written_down() -> None:
    assert overridden("noise.kind=additive", "noise.amplitude=0").noise.amplitude == 0
    overridden("eligibility.kind=bandwidth", "eligibility.minimum_mbps=3")
    for name in PAPER:  # every default written out is no fault
        parse_scenario(load_scenario(name).resolved())


def test_errors_of_a_world_name_the_file(file: Path) -> None:
    file.write_text(FILE.replace("gpu = 8", "tpu = 8"))
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: clusters\\.edge\\.capacity: .*missing: gpu .give"):
        build_world(load_scenario(file))
    file.write_text(FILE.replace("rate = 2", "rate = 2\nkind = 'poison'"))
    with pytest.raises(UnknownNameError, match=f"^{re.escape(str(file))}: .*Did you mean 'poisson'"):
        draw_workload(build_world(load_scenario(file)), 0)


def test_a_path_is_as_good_as_a_name(file: Path) -> None:
    assert load_scenario(file) == load_scenario(str(file))
    assert load_scenario(file).source == str(file)
    with pytest.raises(ConfigError, match="no scenario file multi-3"):
        load_scenario(Path("multi-3"))


def test_a_resource_can_be_added_by_override() -> None:
    scenario = load_scenario(
        "multi-3",
        [
            "resources.memory=4",
            "clusters.edge.capacity.memory=64",
            "task_types.sensitive.minimum.memory=8",
            "task_types.insensitive.minimum.memory=4",
        ],
    )
    assert scenario.resolved()["resources"] == {"cpu": 1.0, "gpu": 1.0, "memory": 4.0}
