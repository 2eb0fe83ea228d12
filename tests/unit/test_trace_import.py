"""Importers: tiny traces with the quirks of the public ones, and the scenarios made of them."""

import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import parse_scenario
from tapfinger.errors import ConfigError, DataError, UnknownNameError
from tapfinger.registry import create
from tapfinger.sim.run import run_scheduler
from tapfinger.workloads.files import write_workload
from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace
from tapfinger.workloads.importers.binning import bin_tasks
from tapfinger.workloads.importers.convert import convert
from tapfinger.workloads.importers.formats import read_trace
from tapfinger.workloads.importers.gpu_speeds import speeds
from tapfinger.workloads.importers.options import ConvertOptions, ReadOptions
from tapfinger.workloads.world import build_world

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:00:00,600.0,1,600.0,vc1
2017-10-09 06:00:00,3000.0,8,24000.0,vc2
2017-10-09 06:30:00,0.0,1,0.0,vc1
2017-10-09 06:30:00,,1,,vc1
None,60,1,60,vc1
2017-10-09 06:30:00,60,0,0,vc1
2017-10-09 06:30:00,60,1
2017-10-09 06:45:00,700.0,1,700.0,vc 1;b
"""
POLLUX = """name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,4,2048
ncf-2,35,ncf,1,32768
ncf-3,140,ncf,,32768
bert-4,150,bert,8,384
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,100,1100,200
p1,3152,5600,1,470,,BE,Succeeded,50,350,50
p2,8000,30517,0,0,,BE,Failed,120,180,130
p3,8000,30517,1,1000,,BE,Pending,130,500,
p4,8000,30517,8,1000,V100,BE,Failed,140,140,140
p5,96000,1024,8,1000,,BE,Failed,140,5000,1000
"""
SPECS = """p6,4000,8192,1,1000,V100M16|V100M32,LS,Running,200,1200,200
p7,4000,8192,1,1000,T4,LS,Running,300,1300,300
p8,4000,8192,1,500,T4,LS,Running,400,1400,400
"""
NODES = """sn,cpu_milli,memory_mib,gpu,model
n0,96500,393216,8,V100M32
n1,96000,393300,8,V100M32
n2,104000,524288,2,T4
n3,32000,262144,0,
n4,32000,131072,4,V100M16
"""
SWF = """; Version: 2
; MaxNodes: 256

1    5094 -1   12072  16 -1 -1 -1 -1 -1 1 -1 -1 -1 0 -1 -1 -1
2    5000 -1       2  -1 -1 -1  4 -1 -1 1 -1 -1 -1 0 -1 -1 -1
3    6742 -1      -1   1 -1 -1 -1 -1 -1 0 -1 -1 -1 0 -1 -1 -1
4    6742 -1      50  -1 -1 -1 -1 -1 -1 0 -1 -1 -1 0 -1 -1 -1
5    6742 -1
"""


def read(folder: Path, text: str, name: str = "trace.csv", format_name: str | None = None, **options):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_trace(path, format_name, ReadOptions(**options))


def test_philly(tmp_path):
    found, trace = read(tmp_path, PHILLY)
    assert found == "philly"
    assert [(t.seconds, t.request, t.cluster) for t in trace.tasks] == [
        (3000, {"cpu": 16, "gpu": 8}, "vc2"),
        (700, {"cpu": 2, "gpu": 1}, "vc 1;b"),
        (600, {"cpu": 2, "gpu": 1}, "vc1"),
    ]
    assert trace.tasks[2].arrival - trace.tasks[0].arrival == 3600
    assert trace.dropped == {
        "duration is not above 0": 1,
        "duration is empty": 1,
        "timestamp is not a date": 1,
        "num_gpus is not above 0": 1,
        "row has another number of values than the header": 1,
    }


def test_pollux(tmp_path):
    found, trace = read(tmp_path, POLLUX, cpus_per_gpu=4, gpu_hours={"ncf": 2.0})
    assert found == "pollux"
    assert [(t.arrival, t.group, t.request["gpu"], t.request["cpu"]) for t in trace.tasks] == [
        (35, "ncf", 1, 4),
        (107, "cifar10", 4, 16),
        (150, "bert", 8, 32),
    ]
    assert trace.tasks[0].seconds == 7200  # 2 GPU-hours on one GPU
    assert trace.tasks[1].seconds == 450  # half a GPU-hour on four
    assert trace.dropped == {"num_replicas is empty": 1}


def test_pollux_application_of_unknown_length(tmp_path):
    with pytest.raises(DataError, match=r"trace\.csv: application 'gpt'.*--gpu-hours gpt=HOURS"):
        read(tmp_path, POLLUX + "gpt-9,160,gpt,2,1\n")


def test_pollux_own_durations_are_used(tmp_path):
    _, trace = read(tmp_path, "name,time,application,num_replicas,batch_size,duration\nx-0,1,gpt,2,1,33\n")
    assert trace.tasks[0].seconds == 33


def test_openb(tmp_path):
    found, trace = read(tmp_path, OPENB)
    assert found == "openb"
    assert [(t.arrival, t.seconds, t.request, t.kinds) for t in trace.tasks] == [
        (50, 300, {"cpu": 4, "gpu": 0.5, "memory": 8}, ()),
        (100, 900, {"cpu": 12, "gpu": 1, "memory": 16}, ()),
        (120, 50, {"cpu": 8, "gpu": 0, "memory": 32}, ()),
        (140, 4000, {"cpu": 96, "gpu": 8, "memory": 4}, ()),
    ]
    assert trace.dropped == {"scheduled_time is empty": 1, "deletion_time is not after scheduled_time": 1}


def test_openb_flat(tmp_path):
    _, trace = read(tmp_path, OPENB + SPECS, flat=True)
    assert trace.resources == {"cpu": 1.0, "gpu": 0.1}
    assert trace.tasks[0].request == {"cpu": 4, "gpu": 0.5}
    assert not any(task.kinds for task in trace.tasks)
    scenario = convert(trace, ConvertOptions("x")).scenario
    assert scenario["resources"] == {"cpu": 1.0, "gpu": 0.1}
    assert [sorted(cluster) for cluster in scenario["clusters"]] == [["capacity", "name"]] * 3
    assert not any("on" in task_type for task_type in scenario["task_types"])
    assert set(read(tmp_path, OPENB, flat=True, memory=True)[1].resources) == {"cpu", "gpu", "memory"}


def test_shares_of_a_gpu_are_rounded_up_to_the_unit(tmp_path):
    pods = OPENB.splitlines()[0] + "\n" + "".join(f"p,1000,1,1,{m},,LS,Running,0,60,0\n" for m in (50, 250, 251, 990))
    for unit, shares in ((None, [0.25, 0.25, 0.5, 1.0]), (0.125, [0.125, 0.25, 0.375, 1.0])):
        _, trace = read(tmp_path, pods, gpu_unit=unit)
        assert [task.request["gpu"] for task in trace.tasks] == shares
    with pytest.raises(ConfigError, match=r"--gpu-unit 0\.3 must be 1 over a whole number"):
        read(tmp_path, pods, gpu_unit=0.3)


def test_swf(tmp_path):
    found, trace = read(tmp_path, SWF, "trace.swf")
    assert found == "swf"
    assert [(t.arrival, t.seconds, t.request, t.cluster) for t in trace.tasks] == [
        (5000, 2, {"cpu": 4}, ""),
        (5094, 12072, {"cpu": 16}, ""),
    ]
    assert trace.dropped == {
        "run time is not above 0": 1,
        "neither allocated nor requested processors are known": 1,
        "row has fewer than 18 values": 1,
    }


def test_unknown_columns_format_or_nothing_usable(tmp_path):
    with pytest.raises(DataError, match=r"its columns a, b are of no known trace format.*philly: timestamp"):
        read(tmp_path, "a,b\n1,2\n")
    with pytest.raises(DataError, match="the file is empty"):
        read(tmp_path, "")
    with pytest.raises(UnknownNameError, match="Did you mean 'philly'"):
        read(tmp_path, PHILLY, format_name="phily")
    with pytest.raises(DataError, match="format openb needs the column 'cpu_milli'"):
        read(tmp_path, PHILLY, format_name="openb")
    with pytest.raises(DataError, match=r"no usable task.*1 x num_replicas is empty"):
        read(tmp_path, "name,time,application,num_replicas,batch_size\nncf-3,140,ncf,,32768\n")
    with pytest.raises(DataError, match="there is no trace file"):
        read_trace(tmp_path / "gone.csv", None, ReadOptions())


def play(tmp_path, imported, scheduler):
    """Run the written scenario to its end; returns (tasks, total completion time)."""
    write_workload(tmp_path / "workload.csv", imported.workload)
    scenario = parse_scenario(tomllib.loads(tomli_w.dumps(imported.scenario)), directory=str(tmp_path))
    world = build_world(scenario)
    totals = run_scheduler(world, create("scheduler", scheduler, {}), 0)
    return world, totals


@pytest.mark.parametrize("scheduler", ["min", "random"])
@pytest.mark.parametrize("elastic", [None, 0.8])
@pytest.mark.parametrize(
    "text", [PHILLY, POLLUX, OPENB, OPENB + SPECS, SWF], ids=["philly", "pollux", "openb", "specs", "swf"]
)
def test_every_import_runs(tmp_path, text, elastic, scheduler):
    _, trace = read(tmp_path, text)
    imported = convert(trace, ConvertOptions("x", elastic=elastic))
    _, totals = play(tmp_path, imported, scheduler)
    assert totals.tasks == len(trace.tasks)


def with_nodes(tmp_path, pods=OPENB + SPECS, nodes=NODES, **options):
    (tmp_path / "nodes.csv").write_text(nodes, encoding="utf-8")
    _, trace = read(tmp_path, pods, nodes=tmp_path / "nodes.csv")
    return convert(trace, ConvertOptions("x", **options))


def test_nodes_kinds_and_memory_are_kept(tmp_path):
    imported = with_nodes(tmp_path)
    shapes = {cluster["name"]: (cluster.get("kind"), cluster["nodes"]) for cluster in imported.scenario["clusters"]}
    assert shapes == {
        "cpu": (None, [{"cpu": 32, "memory": 256, "count": 1}]),
        "T4": ("T4", [{"cpu": 104, "gpu": 2, "memory": 512, "count": 1}]),
        "V100M16": ("V100M16", [{"cpu": 32, "gpu": 4, "memory": 128, "count": 1}]),
        "V100M32": ("V100M32", [{"cpu": 96, "gpu": 8, "memory": 384, "count": 2}]),
    }
    assert imported.workload.eligible == ("*", "*", "*", "*", "V100M16;V100M32", "T4", "T4")
    world, totals = play(tmp_path, imported, "greedy")
    assert world.resources.names == ("cpu", "gpu", "memory")
    assert [role.lease for role in world.resources.roles] == ["device", "share", "divisible"]
    assert len(world.clusters) == 5
    assert totals.tasks == 7


def test_a_task_takes_longer_on_slower_gpus(tmp_path):
    imported = with_nodes(tmp_path, gpu_speed={"T4": 0.25})
    assert imported.speeds == {"T4": 0.25, "V100M16": 1.0, "V100M32": 1.0}
    on = {t["name"]: t["on"] for t in imported.scenario["task_types"]}
    assert on["T4-8memory-1gpu-4cpu-16.7m"] == {"T4": 1.0, "V100M16": 4.0, "V100M32": 4.0}
    assert on["V100M16_V100M32-8memory-1gpu-4cpu-16.7m"]["V100M32"] == 1.0
    assert set(on["32memory-8cpu-50s"].values()) == {1.0}  # it uses no GPU
    # Anywhere: 2 GPUs at 0.25 and 20 at 1 are 0.9318 on average.
    assert on["8memory-0.5gpu-4cpu-5m"] == {"T4": 0.2683, "V100M16": 1.073, "V100M32": 1.073}


def test_without_a_node_list_every_kind_that_tasks_name_is_a_cluster(tmp_path):
    _, trace = read(tmp_path, OPENB + SPECS)
    imported = convert(trace, ConvertOptions("x"))
    assert [(c["name"], c["kind"]) for c in imported.scenario["clusters"]] == [
        ("T4", "T4"),
        ("V100M16", "V100M16"),
        ("V100M32", "V100M32"),
    ]
    assert imported.workload.eligible[4:] == ("V100M16;V100M32", "T4", "T4")
    made_up = convert(trace, ConvertOptions("x", clusters=2))
    assert [c["name"] for c in made_up.scenario["clusters"]] == ["cluster-0", "cluster-1"]


def test_a_share_of_the_nodes_has_every_shape(tmp_path):
    many = NODES + "".join(f"m{i},104000,524288,2,T4\n" for i in range(39))
    counts = {}
    for cluster in with_nodes(tmp_path, nodes=many, node_share=0.25).scenario["clusters"]:
        counts[cluster["name"]] = sum(node["count"] for node in cluster["nodes"])
    assert counts == {"cpu": 1, "T4": 10, "V100M16": 1, "V100M32": 1}


def test_tasks_that_no_node_holds(tmp_path):
    big = OPENB + "p9,4000,8192,8,1000,T4,LS,Running,500,900,500\n"
    with pytest.raises(
        ConfigError, match=r"asks for 4 cpu, 8 gpu, 8 memory, but no node with T4 in .*nodes.csv has as much"
    ):
        with_nodes(tmp_path, big)
    dropped = with_nodes(tmp_path, big, drop_oversized=True).dropped
    assert dropped["request exceeds every node that it may run on"] == 1
    elsewhere = with_nodes(tmp_path, OPENB + "p9,4000,8192,1,1000,H100,LS,Running,500,900,500\n")
    assert elsewhere.dropped["no node has a GPU of a kind that it asks for"] == 1
    assert len(with_nodes(tmp_path, big, eligible="all").workload) == 5
    with pytest.raises(ConfigError, match=r"no task fits the given nodes of .*nodes\.csv"):
        with_nodes(tmp_path, nodes="cpu_milli,memory_mib,gpu,model\n1000,8192,0,\n", drop_oversized=True)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("a,b\n1,2\n", r"nodes\.csv:1: a node list needs the columns cpu_milli.*no 'cpu_milli'"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", r"nodes\.csv has no nodes below its header"),
        (NODES + "n5,1000,2048\n", r"nodes\.csv:7: 3 values for 5 columns"),
        (NODES + "n5,many,2048,0,\n", r"nodes\.csv:7: cpu_milli is not a number; correct the row"),
        (NODES + "n5,1000,2048,2,\n", r"nodes\.csv:7: gpu is above 0, but model is empty"),
        (NODES + "n5,100,100,0,\n", r"nodes\.csv:7: the node has less than a unit of everything"),
    ],
)
def test_faults_of_a_node_list_are_named(tmp_path, nodes, words):
    with pytest.raises(DataError, match=words):
        with_nodes(tmp_path, nodes=nodes)


@pytest.mark.parametrize(
    ("kind", "speed"),
    [
        ("V100M32", 1.0),
        ("NVIDIA Tesla V100-SXM2-16GB", 1.0),
        ("nvidia-a100-sxm4-80gb", 2.5),
        ("L40S", 2.0),
        ("t4", 0.3),
    ],
)
def test_gpu_models_are_recognised(kind, speed):
    assert speeds([kind], {}) == {kind: speed}


def test_unknown_gpu_models_need_a_speed():
    with pytest.raises(
        ConfigError,
        match=r"n.csv names GPU model 'A1000', whose speed is not known; .*--gpu-speed A1000=1\. Known: K80",
    ):
        speeds(["A1000"], {}, "n.csv")
    assert speeds(["A1000"], {"A1000": 0.4}) == {"A1000": 0.4}
    with pytest.raises(ConfigError, match=r"--gpu-speed names 'T5', but the trace names P4, T4"):
        speeds(["T4", "P4"], {"T5": 1.0})


def test_the_traces_clusters_and_durations_are_kept(tmp_path):
    _, trace = read(tmp_path, PHILLY)
    imported = convert(trace, ConvertOptions("x", slot_seconds=100))
    world, totals = play(tmp_path, imported, "min")
    assert [c.name for c in world.clusters] == ["vc1", "vc2", "vc_1_b"]
    assert imported.workload.eligible == ("vc2", "vc_1_b", "vc1")
    assert imported.workload.arrival.tolist() == [0, 2700, 3600]
    assert totals.total_completion_time == 30 + 7 + 7  # 700 s and 600 s are near enough for one type of 650 s


def test_clusters_whose_clean_names_are_alike_stay_apart():
    tasks = [RecordedTask(0.0, 10.0, {"gpu": 1.0}, cluster=name) for name in ("a b", "a;b", "a_b", "a b")]
    imported = convert(RecordedTrace({"gpu": 1.0}, tasks), ConvertOptions("x"))
    first, second, third, again = imported.workload.eligible
    assert again == first
    assert len({first, second, third}) == 3


def test_own_all_draw_and_made_up_clusters(tmp_path):
    _, trace = read(tmp_path, PHILLY)
    assert set(convert(trace, ConvertOptions("x", eligible="all")).workload.eligible) == {"*"}
    assert set(convert(trace, ConvertOptions("x", eligible="draw")).workload.eligible) == {""}
    made_up = convert(trace, ConvertOptions("x", clusters=5))
    assert [c["name"] for c in made_up.scenario["clusters"]] == [f"cluster-{n}" for n in range(5)]
    with pytest.raises(ConfigError, match="--clusters replaces them"):
        convert(trace, ConvertOptions("x", clusters=5, eligible="own"))


def test_given_capacities_must_hold_every_task(tmp_path):
    _, trace = read(tmp_path, PHILLY)
    with pytest.raises(ConfigError, match=r"asks for 8 gpu, but clusters have 4.*--drop-oversized"):
        convert(trace, ConvertOptions("x", capacity={"cpu": 16, "gpu": 4}))
    imported = convert(trace, ConvertOptions("x", capacity={"cpu": 16, "gpu": 4}, drop_oversized=True))
    assert len(imported.workload) == 2
    assert imported.dropped["request exceeds the gpu of a cluster"] == 1
    with pytest.raises(ConfigError, match=r"this trace has cpu, gpu.*cpu=64,gpu=64"):
        convert(trace, ConvertOptions("x", capacity={"cpu": 16}))
    with pytest.raises(ConfigError, match="no task fits"):
        convert(trace, ConvertOptions("x", capacity={"cpu": 1, "gpu": 1}, drop_oversized=True))


def test_capacities_follow_the_wanted_load():
    # 100 tasks of 1 GPU for 1000 s, one every 100 s: 10 at a time once it is going.
    tasks = [RecordedTask(100.0 * i, 1000.0, {"gpu": 1.0}) for i in range(100)]
    gpus = {}
    for load in (0.5, 1.0):
        imported = convert(RecordedTrace({"gpu": 1.0}, list(tasks)), ConvertOptions("x", clusters=2, load=load))
        gpus[load] = sum(c["capacity"]["gpu"] for c in imported.scenario["clusters"])
    assert gpus == {0.5: 20, 1.0: 10}


def test_elastic_tasks_grow_in_the_main_resource_up_to_the_factor():
    tasks = [RecordedTask(0.0, 1000.0, {"cpu": 2.0, "gpu": 0.5}), RecordedTask(1.0, 10.0, {"cpu": 2.0, "gpu": 0.0})]
    trace = RecordedTrace({"cpu": 1.0, "gpu": 0.1}, tasks)
    capacity = {"cpu": 5.0, "gpu": 8.0}
    imported = convert(trace, ConvertOptions("x", elastic=0.9, maximum_factor=3, clusters=1, capacity=capacity))
    types = {t["name"]: t for t in imported.scenario["task_types"]}
    assert types["0.5gpu-2cpu-16.7m"]["maximum"] == {"gpu": 1.5}
    assert types["2cpu-10s"]["maximum"] == {"cpu": 5}  # three times 2, but the cluster has 5
    build_world(parse_scenario(imported.scenario))


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (PHILLY, {"memory": True}, "--memory has no effect on a trace of format philly, only on openb"),
        (PHILLY, {"gpu_hours": {"bert": 3.0}}, "--gpu-hours has no effect .*only on pollux"),
        (PHILLY, {"nodes": Path("n.csv")}, "--nodes has no effect .*only on openb"),
        (OPENB, {"nodes": Path("n.csv"), "flat": True}, "--flat leaves out the nodes"),
        (OPENB, {"nodes": Path("n.csv")}, "there is no node list n.csv"),
        (OPENB, {"cpus_per_gpu": 4.0}, "--cpus-per-gpu has no effect .*openb, only on philly and pollux"),
        (POLLUX, {"gpu_hours": {"brt": 3.0}}, "--gpu-hours names 'brt', but no task .*there are bert, cifar10, ncf"),
    ],
)
def test_options_without_effect_on_the_format_are_refused(tmp_path, text, options, words):
    with pytest.raises((ConfigError, DataError), match=words):
        read(tmp_path, text, **options)


@pytest.mark.parametrize("name", ["load", "clusters", "capacity"])
def test_options_that_nodes_decide_are_refused(tmp_path, name):
    given = {"load": 0.5, "clusters": 3, "capacity": {"cpu": 64, "gpu": 64, "memory": 64}}[name]
    with pytest.raises(ConfigError, match=f"--{name} has no effect: --nodes gives"):
        with_nodes(tmp_path, **{name: given})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"load": 0.5, "capacity": {"cpu": 64, "gpu": 64}}, "--load has no effect: --capacity"),
        ({"maximum_factor": 2}, "--maximum-factor has no effect: .*--elastic"),
        ({"drop_oversized": True}, "--drop-oversized has no effect: .*--capacity"),
        ({"node_share": 0.5}, "--node-share has no effect: there is no list"),
        ({"gpu_speed": {"T4": 1.0}}, "--gpu-speed names 'T4', but this import has no kinds of GPUs"),
        ({"eligible": "kinds"}, "eligible = kinds needs kinds of GPUs"),
    ],
)
def test_options_without_effect_on_the_conversion_are_refused(tmp_path, options, words):
    _, trace = read(tmp_path, PHILLY)
    with pytest.raises(ConfigError, match=words):
        convert(trace, ConvertOptions("x", **options))


def test_time_scale_and_limit(tmp_path):
    _, trace = read(tmp_path, PHILLY)
    imported = convert(trace, ConvertOptions("x", time_scale=0.5, limit=2))
    assert imported.workload.arrival.tolist() == [0, 1350]


@pytest.mark.parametrize(
    "bad",
    [{"load": 0}, {"clusters": 0}, {"types": 0}, {"time_scale": -1}, {"elastic": 1.5}, {"eligible": "some"}],
)
def test_bad_options_are_named(tmp_path, bad):
    _, trace = read(tmp_path, PHILLY)
    with pytest.raises(ConfigError, match=next(iter(bad)).replace("_", "-")):
        convert(trace, ConvertOptions("x", **bad))


@given(
    rows=st.lists(
        st.tuples(st.floats(0.1, 1e6), st.integers(1, 64), st.integers(0, 8), st.sampled_from(["", "a", "b"])),
        min_size=1,
        max_size=80,
    ),
    limit=st.integers(1, 24),
)
def test_bins_hold_every_task_once_and_keep_the_work(rows, limit):
    tasks = [RecordedTask(0.0, seconds, {"cpu": cpu, "gpu": gpu}, group) for seconds, cpu, gpu, group in rows]
    bins = bin_tasks(tasks, {"cpu": 1.0, "gpu": 1.0}, limit)
    assert len(bins) <= limit
    assert Counter(i for one in bins for i in one.members) == Counter(range(len(tasks)))
    total = sum(one.seconds * len(one.members) for one in bins)
    assert total == pytest.approx(sum(task.seconds for task in tasks))


def test_short_and_long_tasks_of_one_request_become_two_types():
    tasks = [RecordedTask(0.0, seconds, {"gpu": 1.0}) for seconds in (10, 11, 12, 5000, 5500)]
    bins = bin_tasks(tasks, {"gpu": 1.0}, 24)
    assert sorted(one.seconds for one in bins) == [pytest.approx(11), pytest.approx(5250)]


def test_rare_requests_join_the_nearest_frequent_one():
    gpus = [1] * 50 + [8] * 50 + [7]
    tasks = [RecordedTask(0.0, 10.0, {"gpu": float(g)}) for g in gpus]
    bins = bin_tasks(tasks, {"gpu": 1.0}, 3)
    assert {one.request["gpu"]: len(one.members) for one in bins} == {1: 50, 8: 51}
    assert convert(RecordedTrace({"gpu": 1.0}, tasks), ConvertOptions("x", types=3)).rounded == 1


def test_the_median_task_takes_several_slots():
    for seconds in (3.0, 70.0, 2800.0):
        tasks = [RecordedTask(float(i), seconds, {"gpu": 1.0}) for i in range(9)]
        slot = convert(RecordedTrace({"gpu": 1.0}, tasks), ConvertOptions("x")).scenario["slot_seconds"]
        assert 3 <= seconds / slot <= 8


def test_written_toml_reads_back():
    data = {
        "name": 'a "quoted" \\ name',
        "on": True,
        "half": 0.1,
        "tiny": 1e-9,
        "list": [1, 2],
        "table": {"odd key": "é\n", "inner": {"x": 2}},
        "tables": [{"a": 1}, {"b": {"c": 2.5}}],
    }
    assert tomllib.loads(tomli_w.dumps(data)) == data


def test_same_import_twice_is_the_same(tmp_path):
    one, two = (convert(read(tmp_path, PHILLY)[1], ConvertOptions("x")) for _ in range(2))
    assert one.scenario == two.scenario
    np.testing.assert_array_equal(one.workload.arrival, two.workload.arrival)
