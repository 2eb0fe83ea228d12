import os
import signal
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from helpers import make_scenario
from waiting import PATIENCE, wait_for

from tapfinger import digests
from tapfinger.config import load_scenario
from tapfinger.errors import ConfigError
from tapfinger.evaluation import cells
from tapfinger.evaluation.cells import EVENTS, CellStore, make_cells
from tapfinger.evaluation.failure import explain
from tapfinger.evaluation.output import Request
from tapfinger.evaluation.runner import (
    CellFailed,
    ComparisonQuestion,
    Interrupted,
    Runner,
    cache_folder,
    open_store,
    same_draws,
)
from tapfinger.evaluation.specs import parse_spec, parse_specs
from tapfinger.evaluation.stats import summarise
from tapfinger.registry import BUILT_IN
from tapfinger.schedulers.naive import Min

SPECS = parse_specs("min,random")


def scenario(*overrides):
    return load_scenario("multi-3", ["tasks=25", *overrides])


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path / "cells")


class Broken(Min):
    """Raises at the first decision."""

    def decide(self, snapshot):
        raise ZeroDivisionError(f"in slot {snapshot.slot}")


class Threads(Min):
    """Min that fails unless its process was told to use one thread."""

    def decide(self, snapshot):
        if os.environ.get("OMP_NUM_THREADS") != "1":
            raise RuntimeError("several threads")
        return super().decide(snapshot)


def test_cells_are_run_once_and_then_reused(store):
    first = Runner(store).run(scenario(), SPECS, (0, 1))
    again = Runner(store).run(scenario(), SPECS, (0, 1, 2))
    assert (first.reused, again.reused) == (0, 4)
    assert [run.seed for run in again.records["random"]] == [0, 1, 2]
    assert again.records["min"][1].completion.tolist() == first.records["min"][1].completion.tolist()


def test_several_comparisons_share_their_cells(store):
    made, counted = [], []
    runner = Runner(store, on_cell=lambda cell: made.append(cell.key), on_progress=lambda *given: counted.append(given))
    questions = [ComparisonQuestion(scenario(), SPECS, (0, 1)), ComparisonQuestion(scenario(), SPECS[:1], (1, 2))]
    one, two = runner.run_all(questions)
    assert (len(made), len(set(made)), counted[-1]) == (5, 5, (5, 5))  # min on seed 1 is in both
    assert [run.seed for run in two.records["min"]] == [1, 2]
    assert one.records["min"][1].completion.tolist() == two.records["min"][0].completion.tolist()
    assert [outcome.reused for outcome in runner.run_all(questions)] == [4, 2]


def test_schedulers_meet_the_same_draws(store):
    records = Runner(store).run(scenario(), SPECS, (3,)).records
    one, two = records["min"][0], records["random"][0]
    assert (one.arrival.tolist(), one.type.tolist()) == (two.arrival.tolist(), two.type.tolist())
    assert one.end.tolist() != two.end.tolist()


def test_processes_change_neither_results_nor_logs(store, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    specs = (*SPECS, parse_spec(f"{__name__}:Threads"))
    here = Runner(store).run(scenario(), SPECS, (0, 1))
    there = Runner(CellStore(tmp_path / "other"), jobs=2).run(scenario(), specs, (0, 1))
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert list(there.records) == [spec.text for spec in specs]
    for cell, folder in here.folders.items():
        assert (folder / EVENTS).read_bytes() == (there.folders[cell] / EVENTS).read_bytes()
    for text, runs in here.records.items():
        for mine, other in zip(runs, there.records[text], strict=True):
            assert mine.completion.tolist() == other.completion.tolist()


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupted_comparison_goes_on_where_it_stopped(store, jobs):
    def stop_after_two(done, total):
        assert total == 8
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="2 of 8"):
        Runner(store, jobs, on_progress=stop_after_two).run(scenario(), SPECS, range(4))
    outcome = Runner(store).run(scenario(), SPECS, range(4))
    assert 2 <= outcome.reused < 8
    assert len(outcome.records["min"]) == 4
    # A process that is ended leaves the one cell that it was working on; CellStore.forget_old removes it.
    assert len(list(store.root.glob("unfinished/*"))) <= {1: 0, 2: 2}[jobs]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_scheduler_that_raises_is_named_with_the_place_in_its_file(store, jobs, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    specs = parse_specs(f"{__name__}:Broken,min")
    with pytest.raises(CellFailed, match=r"Broken', seed \d: ZeroDivisionError: in slot \d") as caught:
        Runner(store, jobs).run(scenario(), specs, (0, 1))
    _, place, code = str(caught.value).splitlines()
    assert Path(__file__).name in place
    assert place.endswith("in decide")
    assert code.strip().startswith("raise ZeroDivisionError")


def test_faults_of_the_input_are_found_before_anything_runs(store):
    with pytest.raises(ConfigError, match="rat"):
        Runner(store).run(scenario("arrivals.rat=3"), SPECS, (0,))
    assert not store.root.exists()


def keys(*overrides, spec="min", directory=None):
    loaded = scenario(*overrides)
    loaded = loaded if directory is None else loaded.model_copy(update={"directory": str(directory)})
    return [cell.key for cell in make_cells(loaded, (parse_spec(spec),), (0, 1))]


def test_a_key_depends_on_all_that_changes_a_result(monkeypatch):
    base = keys()
    assert base == keys()
    assert len(set(base)) == 2
    assert not set(base) & {*keys("arrivals.rate=2"), *keys(spec="min@pending=9"), *keys(spec="random")}
    monkeypatch.setattr(cells, "_NO_PART_IN_RESULTS", (*cells._NO_PART_IN_RESULTS, "sim/executor.py"))
    assert not set(base) & set(keys())


def test_what_counts_as_no_part_of_results_is_imported_by_nothing_that_runs():
    graph = grimp.build_graph("tapfinger")
    named = {path.partition(":")[0] for kind in ("scheduler", "arrivals") for path in BUILT_IN[kind].values()}
    used = {"tapfinger.evaluation.cells", *named}
    used = used.union(*map(graph.find_upstream_modules, used))
    rooms = [module.removeprefix("tapfinger.").replace(".", "/") for module in used]
    for left_out in cells._NO_PART_IN_RESULTS:
        there = left_out.removesuffix(".py")
        assert (Path(cells.__file__).parents[1] / left_out).exists()
        assert not [room for room in rooms if f"{room}/".startswith(there.rstrip("/") + "/")], left_out


def test_shipped_models_count_only_where_they_can_be_read(monkeypatch):
    specs = ("greedy", "lookahead", "tapfinger", "tapfinger+lookahead", "helpers:StartAll")
    before = {spec: keys(spec=spec) for spec in specs}
    whole = cells.tree_digest
    monkeypatch.setattr(cells, "tree_digest", lambda f, *w: whole(f, *w) + "other" * (f.name == "models"))
    assert {spec for spec in specs if before[spec] != keys(spec=spec)} == {*specs[2:]}


def test_a_key_depends_on_files_the_scenario_names(tmp_path):
    trace = tmp_path / "tasks.csv"
    seen = set()
    for text in ("one", "two"):
        trace.write_text(text)
        seen |= set(keys("arrivals.file=tasks.csv", directory=tmp_path))
    assert len(seen) == 4


def test_a_key_depends_on_the_users_own_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    seen = set()
    for number in (1, 2):
        (tmp_path / "own_scheduler_xyz.py").write_text(
            f"from tapfinger.schedulers.naive import Min\nclass Own(Min):\n    number = {number}\n"
        )
        seen |= set(keys(spec="own_scheduler_xyz:Own"))
    del sys.modules["own_scheduler_xyz"]
    assert len(seen) == 4


def test_a_key_depends_on_modules_beside_the_users_own_and_not_on_others(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_xyz.py").write_text(
        "from tapfinger.schedulers.naive import Min\nfrom helper_xyz import size\nclass Own(Min):\n    size = size\n"
    )
    (tmp_path / "helper_xyz.py").write_text("import deeper_xyz.part\nsize = 1\n")
    (tmp_path / "deeper_xyz").mkdir()
    part = tmp_path / "deeper_xyz" / "part.py"
    part.write_text("n = 1\n")
    (tmp_path / "apart_xyz.py").write_text("def broken(:\n")
    first = keys(spec="beside_xyz:Own")
    (tmp_path / "apart_xyz.py").write_text("n = 2\n")
    assert keys(spec="beside_xyz:Own") == first
    part.write_text("n = 2\n")
    second = keys(spec="beside_xyz:Own")
    (tmp_path / "helper_xyz.py").write_text("import deeper_xyz.part\nsize = 2\n")
    third = keys(spec="beside_xyz:Own")
    for name in ("beside_xyz", "helper_xyz", "deeper_xyz", "deeper_xyz.part"):
        del sys.modules[name]
    assert len({*first, *second, *third}) == 6


@pytest.mark.parametrize("init", [True, False])
def test_a_key_depends_on_a_whole_package_with_or_without_init(init, tmp_path, monkeypatch):
    folder = tmp_path / f"own_space_{init}"
    folder.mkdir()
    if init:
        (folder / "__init__.py").touch()
    (folder / "mine.py").write_text("from tapfinger.schedulers.naive import Min as Own\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = [keys(spec=f"{folder.name}.mine:Own")]
    for file, text in (("mine.py", "from tapfinger.schedulers.naive import Min as Own # 2\n"), ("table.csv", "1")):
        (folder / file).write_text(text)
        digests.tree_digest.cache_clear()
        seen.append(keys(spec=f"{folder.name}.mine:Own"))
    heap, cache = folder / "heap", folder / "__pycache__"
    heap.mkdir()
    cache.mkdir(exist_ok=True)
    for path in (cache / "x.pyc", *(heap / str(i) for i in range(digests.MAX_FILES + 1))):
        path.touch()
    digests.tree_digest.cache_clear()
    assert keys(spec=f"{folder.name}.mine:Own") == seen[-1]
    for name in (f"{folder.name}.mine", folder.name):
        del sys.modules[name]
    assert len({key for pair in seen for key in pair}) == 6


def test_a_package_found_by_two_ways_is_the_same_source(tmp_path, monkeypatch):
    folder = tmp_path / "twice_space"
    folder.mkdir()
    (folder / "mine.py").write_text("from tapfinger.schedulers.naive import Min as Own\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    once = keys(spec="twice_space.mine:Own")
    for name in ("twice_space.mine", "twice_space"):
        del sys.modules[name]
    monkeypatch.syspath_prepend(link)  # as where the working directory is in the path under two names
    assert keys(spec="twice_space.mine:Own") == once
    assert len(sys.modules["twice_space"].__path__) == 2
    for name in ("twice_space.mine", "twice_space"):
        del sys.modules[name]


def test_a_key_depends_on_what_a_partial_binds(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    seen = set()
    for number in (1, 2):
        (tmp_path / "own_partial_xyz.py").write_text(
            "from functools import partial\nfrom tapfinger.schedulers.naive import Min\n"
            f"Own = partial(Min, pending={number})\n"
        )
        seen |= set(keys(spec="own_partial_xyz:Own"))
    del sys.modules["own_partial_xyz"]
    assert len(seen) == 4


def test_a_key_depends_on_the_compiler(monkeypatch):
    before = keys()
    monkeypatch.setattr(cells, "version", lambda package: "0.0.1" if package == "numba" else "1")
    assert not set(before) & set(keys())


def test_sites_with_equal_scenarios_and_other_files_have_folders_of_their_own(tmp_path):
    folders = []
    for site in ("north", "south", "south"):
        (tmp_path / site).mkdir(exist_ok=True)
        (tmp_path / site / "tasks.csv").write_text(site)
        here = scenario("arrivals.file=tasks.csv").model_copy(update={"directory": str(tmp_path / site)})
        folders.append(Request("x", here, (), SPECS, (0,), "min").default_folder())
    assert folders[0] != folders[1] == folders[2]


def test_logs_are_made_when_they_are_wanted_later(store):
    Runner(store, with_events=False).run(scenario(), SPECS, (0,))
    outcome = Runner(store).run(scenario(), SPECS, (0,))
    assert outcome.reused == 0
    assert all((folder / EVENTS).is_file() for folder in outcome.folders.values())


@pytest.mark.parametrize("keep", [0, 40, 0.5, 0.99])
def test_a_damaged_cell_is_run_again(store, keep):
    outcome = Runner(store).run(scenario(), SPECS, (0,))
    record = outcome.folders["min", 0] / "record.npz"
    content = record.read_bytes()
    record.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    again = Runner(store).run(scenario(), SPECS, (0,))
    assert again.reused == 1
    assert again.records["min"][0].end.tolist() == outcome.records["min"][0].end.tolist()
    assert Runner(store).run(scenario(), SPECS, (0,)).reused == 2


TRACE = "arrival,type,eligible\n" + "".join(f"{i * i},steady,*\n" for i in range(40))


def test_seeds_that_play_the_same_workload_give_no_intervals(store, tmp_path):
    (tmp_path / "tasks.csv").write_text(TRACE)
    trace = make_scenario(tasks=None, arrivals={"kind": "trace", "file": str(tmp_path / "tasks.csv")})
    part = make_scenario(tasks=None, arrivals={"kind": "trace", "file": str(tmp_path / "tasks.csv"), "window": 20})
    noisy = make_scenario(
        tasks=None, arrivals=trace.arrivals.model_dump(), noise={"kind": "relative", "amplitude": 0.1}
    )
    told = make_scenario(tasks=None, arrivals=trace.arrivals.model_dump(), knowledge={"kind": "noisy"})
    given = (trace, part, noisy, told, scenario())
    assert [same_draws(s, (0, 1, 2)) for s in given] == [True, False, False, False, False]
    assert not same_draws(trace, (0,))
    outcome = Runner(store).run(trace, SPECS, (0, 1, 2))
    assert outcome.same_draws
    summary = summarise(outcome.records, "min", independent=not outcome.same_draws)["random"]
    plain = summary.plain("min")
    assert (plain["ci95"], plain["sd"], plain["difference"]["ci95"]) == (None, None, None)
    assert "±" not in summary.estimate("mean").text() + summary.difference.mean.text()


def test_our_own_faults_keep_their_traceback():
    with pytest.raises(AttributeError) as caught:
        Min().reset(None)
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # without this file
    assert "Traceback" in explain(caught.value)


def _alive(pid):
    try:
        # A process that has ended stays as a zombie until somebody asks for its code.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_processes_end_with_the_one_that_started_them(number, code, tmp_path):
    (tmp_path / "slow_xyz.py").write_text(
        "import os, time\nfrom pathlib import Path\nfrom tapfinger.schedulers.naive import Min\n"
        "class Slow(Min):\n    def decide(self, snapshot):\n"
        f"        Path({str(tmp_path)!r}, f'{{os.getpid()}}.pid').touch()\n        time.sleep(900)\n"
    )
    source = str(Path(cells.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "TAPFINGER_CACHE_DIR": str(tmp_path / "cells")}
    words = ["compare", "multi-3", "--schedulers", "slow_xyz:Slow", "--seeds", "0:2", "--jobs", "2", "--json", "r.json"]
    command = [sys.executable, "-m", "tapfinger", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(tmp_path.glob("*.pid"))) >= 2)
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(workers) == 2
    process.send_signal(number)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == code
    assert number == signal.SIGKILL or "interrupted after 0 of 2 runs" in said
    wait_for(lambda: not any(map(_alive, workers)))


def test_cells_nobody_uses_are_forgotten(store):
    outcome = Runner(store).run(scenario(), SPECS, (0,))
    old, new = outcome.folders.values()
    os.utime(old, (0, 0))
    store.forget_old()
    assert (old.exists(), new.exists()) == (False, True)


def test_where_cells_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "mine"))
    with open_store(cached=True) as kept:
        assert kept.root == cache_folder() == tmp_path / "mine"
    with open_store(cached=False) as fleeting:
        assert fleeting.root.exists()
    assert not fleeting.root.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAPFINGER_CACHE_DIR", str(tmp_path / "file" / "impossible"))
    with open_store(cached=True) as fleeting:
        assert "impossible" not in str(fleeting.root)
    monkeypatch.delenv("TAPFINGER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tapfinger" / "cells"


def test_two_notations_of_one_scheduler_keep_their_names(store):
    specs = parse_specs("min@pending=5,min@pending=+5")
    assert specs[0].options == specs[1].options
    records = Runner(store).run(scenario(), specs, (0,)).records
    assert [(text, runs[0].scheduler) for text, runs in records.items()] == [(spec.text, spec.text) for spec in specs]
