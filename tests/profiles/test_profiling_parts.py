"""The profiler's parts: grids, verdicts on runs, the record it goes on from, load by others, reports."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.errors import ConfigError
from tapfinger.profiling.choose import next_batch
from tapfinger.profiling.grid import Grid, check_grid, default_grid, parse_grid, parse_seconds
from tapfinger.profiling.journal import Journal, RunLine, Subject, read_runs
from tapfinger.profiling.judge import MORE, judge
from tapfinger.profiling.load import Load, others_share, read_load
from tapfinger.profiling.reports import MOST_POINTS, read_reports
from tapfinger.profiling.results import units, usable_box

SUBJECT = Subject("task", ["python", "task.py"], ["cpu", "gpu"])


def line(seconds=1.0, result="finished", others=0.0, cell=None, **more):
    return RunLine(cell or {"cpu": 1.0, "gpu": 0.0}, result, seconds, others=others, **more)


# ------------------------------------------------------------------------ grids


def test_grids_are_read_in_every_way_they_can_be_written():
    assert parse_grid(["cpu=1:4", "gpu=0:2"]).amounts == {"cpu": (1, 2, 3, 4), "gpu": (0, 1, 2)}
    assert parse_grid(["cpu=1:4 gpu=0:2"]).amounts == {"cpu": (1, 2, 3, 4), "gpu": (0, 1, 2)}
    assert parse_grid(["cpu=8,1,2:6:2"]).amounts == {"cpu": (1, 2, 4, 6, 8)}
    assert parse_grid(["cpu=0.5:1.5:0.5"]).amounts == {"cpu": (0.5, 1, 1.5)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu", "must look like"),
        ("CPU=1", "must look like"),
        ("cpu=", "must be a number"),
        ("cpu=-1", "must be a number"),
        ("cpu=nan", "must be a number"),
        ("cpu=4:1", "upwards"),
        ("cpu=1:4:0", "upwards"),
        ("cpu=1:2:3:4", "must be a number"),
        ("cpu=1 cpu=2", "twice"),
        ("seconds=1:2", "column of profiles"),
        ("cpu=1:100 gpu=0:99", "10,000 allocations"),
        ("cpu=1:1e12", "amounts, at most"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_grid([text])


def test_more_than_there_is_is_refused_and_says_how_much_there_is():
    def check(text, gpus=0):
        check_grid(parse_grid([text] if text else []), 4, gpus, "this machine", "or say --gpus")

    check("cpu=1:4 gpu=0:2", gpus=2)
    for text, words in {
        "cpu=1:8": "up to 8 cpu, but this machine has 4",
        "cpu=1 gpu=0:2": "up to 2 gpu, but this machine has 0; give at most gpu=0; or say --gpus",
        "cpu=0:2": "0 cpu",
        "gpu=0": "has no cpu",
        "": "is empty",
    }.items():
        with pytest.raises(ConfigError, match=words):
            check(text)


def test_without_a_grid_small_machines_are_measured_whole_and_large_ones_at_powers_of_two():
    assert default_grid(4, 0).amounts == {"cpu": (1, 2, 3, 4)}
    assert default_grid(24, 2).amounts == {"cpu": (1, 2, 4, 8, 16, 24), "gpu": (0, 1, 2)}


def test_times_are_read_with_and_without_a_unit():
    assert [parse_seconds("--budget", text) for text in ("90", "90s", "1.5m", "2h")] == [90, 90, 90, 7200]
    for text in ("", "0", "-1s", "soon", "1w", "1e5"):
        with pytest.raises(ConfigError, match="must be a time above 0"):
            parse_seconds("--budget", text)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.sets(st.integers(0, 59), max_size=50))
def test_every_cell_is_chosen_once_and_corners_come_first(cpus, gpus, most, closed):
    grid = Grid({"cpu": tuple(map(float, range(1, cpus + 1))), "gpu": tuple(map(float, range(gpus)))})
    cells = grid.cells()
    done = {cells[i] for i in closed if i < len(cells)}
    order = []
    while batch := next_batch(grid, None, done, most):
        assert not done & set(batch)
        done |= set(batch)
        order += batch
    assert done == set(cells)
    assert len(order) == len(set(order))
    corners = [cell for cell in order if cell in grid.corners()]
    assert order[: len(corners)] == corners


# ------------------------------------------------------------------------ verdicts


def test_agreeing_repeats_count_and_are_enough():
    verdict = judge([line(10.0), line(10.2)], 2, 0.01)
    assert verdict.counted == (10.0, 10.2)
    assert not verdict.again
    assert judge([line(10.0)], 2, 0.01).again == "repeat"


def test_repeats_that_disagree_are_repeated_and_the_odd_one_out_is_dropped():
    assert judge([line(10.0), line(14.0)], 2, 0.01).again == "its repeats disagree"
    assert judge([line(10.0), line(14.0)], 2, 0.01).counted == ()
    assert judge([line(10.0), line(14.0), line(10.1)], 2, 0.01).counted == (10.0, 10.1)
    assert judge([line(10.0), line(12.0)], 2, 0.2).counted == (10.0, 12.0)  # a task as noisy as that
    assert not judge([line(10.0), line(12.0)], 2, 0.2).again


def test_a_task_that_is_very_noisy_is_run_more_often_and_all_of_it_counts():
    runs = [line(10.0), line(14.0), line(11.0), line(13.0)]
    assert [judge(runs[:n], 2, 0.2).again for n in (1, 2, 3)] == ["repeat", *["its repeats disagree"] * 2]
    verdict = judge(runs, 2, 0.2)
    assert (verdict.counted, verdict.again) == ((10.0, 14.0, 11.0, 13.0), "")


def test_a_cell_that_never_agrees_is_kept_with_its_spread_and_a_note():
    runs = [line(s) for s in (10.0, 14.0, 20.0, 7.0)]
    assert len(runs) == 2 + MORE
    verdict = judge(runs, 2, 0.01)
    assert verdict.counted == (10.0, 14.0, 20.0, 7.0)
    assert not verdict.again
    assert "factor of 2.9" in verdict.note


def test_disturbed_runs_do_not_count_and_are_repeated():
    verdict = judge([line(10.0), line(10.1, others=0.5)], 2, 0.01)
    assert verdict.counted == (10.0,)
    assert verdict.again == "others used its cores"
    assert judge([line(10.0), line(10.1, others=0.5), line(10.2)], 2, 0.01).counted == (10.0, 10.2)
    assert judge([line(10.0), line(10.1, others=0.5)], 2, 0.01, busy=0.6).counted == (10.0, 10.1)


def test_on_a_machine_that_is_never_quiet_the_quietest_runs_have_to_do_and_that_is_said():
    runs = [line(10.0 + i, others=0.9 - i / 10) for i in range(4)]
    verdict = judge(runs, 2, 0.01)
    assert verdict.counted == (12.0, 13.0)
    assert "others used 60% or more" in verdict.note


def test_what_did_not_finish_never_counts_and_is_not_tried_again():
    for result in ("failed", "limit", "unfinished"):
        verdict = judge([line(3.0, result, reason="it exited with 3")], 2, 0.01)
        assert (verdict.counted, verdict.again, verdict.failed) == ((), "", "it exited with 3")
    mixed = judge([line(10.0), line(3.0, "failed", reason="it exited with 3")], 2, 0.01)
    assert mixed.counted == (10.0,)
    assert not mixed.again
    assert "1 of 2 runs did not finish: it exited with 3" in mixed.note


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 100.0),
            st.sampled_from(["finished", "failed", "limit", "unfinished"]),
            st.sampled_from([None, 0.0, 0.5]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 3),
)
def test_only_finished_runs_ever_count_and_repeating_comes_to_an_end(runs, repeats):
    lines = [line(seconds, result, others) for seconds, result, others in runs]
    verdict = judge(lines, repeats, 0.02)
    finished = [run.seconds for run in lines if run.result == "finished"]
    assert all(seconds in finished for seconds in verdict.counted)
    assert verdict.counted or verdict.again or verdict.failed
    if len(runs) >= repeats + MORE:
        assert not verdict.again
        assert bool(verdict.counted) == bool(finished)


# ------------------------------------------------------------------------ the record


def test_a_record_is_gone_on_from(tmp_path):
    path = tmp_path / "task.runs.jsonl"
    first = Journal(path, SUBJECT)
    first.add(line(1.5, curve=[(0.5, 0.25, {"loss": 2.0})]))
    first.add(line(2.5, "failed", reason="it exited with 1", tail="no"))
    first.close()
    second = Journal(path, SUBJECT)
    assert [run.seconds for run in second.runs] == [1.5, 2.5]
    assert second.runs[0].curve == ((0.5, 0.25, {"loss": 2.0}),)
    second.close()
    assert read_runs(path)[0] == "task"
    fresh = Journal(path, SUBJECT, fresh=True)
    assert fresh.runs == []
    fresh.close()


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path, cut):
    path = tmp_path / "task.runs.jsonl"
    journal = Journal(path, SUBJECT)
    journal.add(line(1.5))
    journal.add(line(2.5))
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path, SUBJECT)
    assert [run.seconds for run in again.runs] == [1.5]
    again.add(line(3.5))
    again.close()
    assert [run.seconds for run in read_runs(path)[1]] == [1.5, 3.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no record", "no record of profiled runs"),
        ("[1]\n", "no record of profiled runs"),
        ('{"tapfinger_profile": 9}\n', "version 9"),
        ('{"tapfinger_profile": 1, "type": "other"}\n', "its type is 'other', now it is 'task'"),
    ],
)
def test_a_foreign_file_is_refused_and_not_touched(tmp_path, text, words):
    path = tmp_path / "task.runs.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        Journal(path, SUBJECT)
    assert "--fresh" in str(error.value)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "bad",
    [
        {"cell": {"cpu": 1}, "result": "finished", "seconds": 1},
        {"cell": {"cpu": 1, "gpu": 0}, "result": "great", "seconds": 1},
        {"cell": {"cpu": 1, "gpu": 0}, "result": "finished", "seconds": -1},
        {"cell": {"cpu": 1, "gpu": 0}, "result": "finished", "seconds": "1"},
        {"cell": {"cpu": 1, "gpu": True}, "result": "finished", "seconds": 1},
        {"result": "finished"},
    ],
)
def test_a_run_that_cannot_be_is_refused_with_its_line(tmp_path, bad):
    path = tmp_path / "task.runs.jsonl"
    Journal(path, SUBJECT).close()
    with path.open("a") as file:
        file.write(json.dumps(bad) + "\n")
    with pytest.raises(ConfigError, match=r"task\.runs\.jsonl:2: it holds no run"):
        Journal(path, SUBJECT)


def test_two_profilers_do_not_share_a_record(tmp_path):
    first = Journal(tmp_path / "task.runs.jsonl", SUBJECT)
    with pytest.raises(ConfigError, match="in use by another profiler"):
        Journal(tmp_path / "task.runs.jsonl", SUBJECT)
    first.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Journal(tmp_path / "file" / "task.runs.jsonl", SUBJECT)


# ------------------------------------------------------------------------ load and reports


def test_load_by_others_is_told_from_our_own():
    def load(at, cores, ours):
        return Load(at, cores, ours)

    assert others_share(load(0.0, 5.0, 1.0), load(10.0, 15.0, 11.0), 1) == 0.0
    assert others_share(load(0.0, 5.0, 1.0), load(10.0, 15.0, 6.0), 1) == pytest.approx(0.5, abs=0.01)
    assert others_share(load(0.0, 5.0, 1.0), load(10.0, 25.0, 11.0), 2) == pytest.approx(0.5, abs=0.01)
    assert others_share(load(0.0, None, 1.0), load(10.0, 15.0, 6.0), 1) is None
    assert others_share(load(0.0, 0.0, 1.0), load(10.0, 15.0, 6.0), 0) is None


def test_cores_are_read_from_the_kernel_and_an_unknown_one_makes_it_unknown(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  9 9 9 9\ncpu0 100 900 50 7 7 10 20 20 0 0\ncpu1 300 0 0 0 0 0 0 0 0 0\n")
    assert read_load([0], stat).cores == pytest.approx(11.0), "the nice too: not all kernels make them give way"
    assert read_load([0, 1], stat).cores == pytest.approx(14.0)
    assert read_load([2], stat).cores is None
    assert read_load([0], Path("/no/such/file")).cores is None


def test_reports_are_thinned_out_and_nonsense_is_said(tmp_path):
    path = tmp_path / "reports"
    rows = [{"t": 100.0 + i, "progress": i / 999, "metrics": {"loss": 1.0}} for i in range(1000)]
    rows[500]["progress"] = -3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = read_reports(path, 100.0)
    assert said.done
    assert said.progress == 1.0
    assert len(said.curve) <= MOST_POINTS
    assert said.curve[-1] == (999.0, 1.0, {"loss": 1.0})
    assert len(said.faults) == 1
    assert "-3" in said.faults[0]
    assert read_reports(tmp_path / "none", 0.0).done
    path.write_text(json.dumps(rows[100]) + "\n")
    assert not read_reports(path, 100.0).done


# ------------------------------------------------------------------------ results


def test_the_box_of_a_scenario_holds_nothing_that_failed():
    grid = parse_grid(["cpu=1:4 gpu=0:2"])
    failed = {cell: "no" for cell in grid.cells() if cell[1] == 0 or cell == (1.0, 1.0)}
    measured = {cell: (1.0,) for cell in grid.cells() if cell not in failed}
    assert usable_box(grid, measured, failed) == ((2.0, 1.0), (4.0, 2.0))
    assert usable_box(grid, {(2.0, 1.0): (1.0,)}, failed) == ((2.0, 1.0), (2.0, 1.0))


def test_units_are_the_smallest_that_make_amounts_whole():
    cells = {(0.5, 1.0): 1, (0.75, 2.0): 1}
    assert units(cells, ("cpu", "gpu")) == {"cpu": 0.25, "gpu": 1.0}
    assert math.isclose(0.75 / units(cells, ("cpu", "gpu"))["cpu"], 3.0)
