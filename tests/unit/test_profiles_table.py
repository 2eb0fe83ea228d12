"""Profile CSV files: averaging, interpolation, and an error for everything that can be wrong with one."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.config import parse_scenario
from tapfinger.core.model import Resources
from tapfinger.errors import ConfigError, DataError
from tapfinger.profiles.table import MAX_GRID, Profile, ProfileRow, load_profile, read_rows, write_profile
from tapfinger.workloads.world import build_world

HEADER = "task_type,cpu,gpu,seconds\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "profile.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_repeats_are_averaged_and_other_types_ignored(tmp_path):
    path = write(tmp_path, HEADER + "a,1,1,10\nb,1,1,99\na,1,1,14\n")
    assert load_profile(path, "a").seconds({"cpu": 1, "gpu": 1}) == pytest.approx(12)


def test_hole_between_two_cells_is_interpolated_in_logarithms(tmp_path):
    path = write(tmp_path, HEADER + "a,1,1,80\na,1,4,20\n")
    assert load_profile(path, "a").seconds({"cpu": 1, "gpu": 2}) == pytest.approx(40)


def test_hole_inside_a_partial_grid_uses_both_axes(tmp_path):
    # (2, 2) is missing: along cpu it lies between 100 and 100, along gpu between 25 and 400 -> 100 either way.
    path = write(tmp_path, HEADER + "a,1,2,100\na,4,2,100\na,2,1,400\na,2,4,25\n")
    profile = load_profile(path, "a")
    assert profile.holes == 5
    assert profile.seconds({"cpu": 2, "gpu": 2}) == pytest.approx(100)


def test_a_hole_counts_the_closer_pair_more(tmp_path):
    # (2, 2): cpu pair 1 and 4 (span log 4) says 100, gpu pair 1/8 .. 32 (span log 256) says 200: weights 4 to 1 in log.
    path = write(tmp_path, HEADER + "a,1,2,100\na,4,2,100\na,2,0.125,200\na,2,32,200\n")
    expected = math.exp((4 * math.log(100) + math.log(200)) / 5)
    assert load_profile(path, "a").seconds({"cpu": 2, "gpu": 2}) == pytest.approx(expected)


def test_outside_the_measured_range_the_edge_extends(tmp_path):
    profile = load_profile(write(tmp_path, HEADER + "a,2,1,80\na,4,1,50\n"), "a")
    assert profile.seconds({"cpu": 1, "gpu": 8}) == pytest.approx(80)
    assert profile.seconds({"cpu": 64, "gpu": 0}) == pytest.approx(50)


def test_a_corner_that_nothing_brackets_is_like_its_nearest_cell(tmp_path):
    profile = load_profile(write(tmp_path, HEADER + "a,1,1,80\na,2,1,50\na,1,8,30\n"), "a")
    assert profile.seconds({"cpu": 2, "gpu": 8}) == pytest.approx(30)


def test_none_of_a_resource_is_measured_like_any_other_amount(tmp_path):
    profile = load_profile(write(tmp_path, HEADER + "a,1,0,100\na,1,1,20\na,1,4,5\n"), "a")
    assert [profile.seconds({"cpu": 1, "gpu": gpu}) for gpu in (0, 1, 2, 4)] == pytest.approx([100, 20, 10, 5])


def test_a_rebound_is_kept(tmp_path):
    profile = load_profile(write(tmp_path, HEADER + "a,1,1,78\na,1,2,52\na,1,8,271\n"), "a")
    assert profile.seconds({"cpu": 1, "gpu": 2}) == pytest.approx(52)
    assert profile.seconds({"cpu": 1, "gpu": 8}) == pytest.approx(271)


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(1, 6), st.integers(1, 5), st.sampled_from([0.5, 4.0, 16.0])),
        st.floats(0.01, 1e6),
        min_size=1,
        max_size=30,
    )
)
def test_exact_at_measured_cells_and_within_the_measured_range_elsewhere(cells):
    profile = Profile(("cpu", "gpu", "memory"), cells)
    low, high = min(cells.values()), max(cells.values())
    for cell, seconds in cells.items():
        assert profile.seconds(dict(zip(profile.resources, cell, strict=True))) == pytest.approx(seconds)
    for cpu in (0, 1, 2.5, 4, 9):
        assert low * 0.999999 <= profile.seconds({"cpu": cpu, "gpu": 3, "memory": 7}) <= high * 1.000001


def test_any_resources_comments_blank_lines_and_byte_order_mark(tmp_path):
    text = "\ufeff# measured on two machines\ntask_type,npu,seconds\n\na, 1 ,10\n a,2,5\n"
    profile = load_profile(write(tmp_path, text), "a")
    assert profile.resources == ("npu",)
    assert profile.seconds({"npu": 2, "cpu": 7}) == pytest.approx(5)


def test_a_column_left_empty_for_a_type_does_not_matter_to_it(tmp_path):
    path = write(tmp_path, HEADER + "a,1,,10\na,2,,6\nb,1,1,7\n")
    assert load_profile(path, "a").resources == ("cpu",)
    assert load_profile(path, "b").resources == ("cpu", "gpu")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no column 'task_type'", "columns are task_type"]),
        (HEADER, ["no measurements"]),
        ("task_type,cpu,gpu\na,1,1\n", [":1:", "no column 'seconds'"]),
        ("type,cpu,seconds\na,1,1\n", ["no column 'task_type'"]),
        ("task_type,seconds\na,1\n", ["resource column"]),
        ("task_type,cpu,cpu,seconds\na,1,1,1\n", ["doubled"]),
        (HEADER + "a,1,1,10\na,1,2,0\n", [":3:", "seconds = '0'", "above 0"]),
        (HEADER + "a,1,1,-5\n", [":2:", "'-5'"]),
        (HEADER + "a,1,1,nan\n", [":2:", "'nan'"]),
        (HEADER + "a,1,1,inf\n", [":2:", "'inf'"]),
        (HEADER + "a,1,1,fast\n", [":2:", "'fast'"]),
        (HEADER + "a,1,1,\n", [":2:", "seconds = ''"]),
        (HEADER + "a,0,0,10\n", [":2:", "every amount is 0"]),
        (HEADER + "a,1,-1,10\n", [":2:", "gpu = '-1'"]),
        (HEADER + "a,1,x,10\n", [":2:", "gpu = 'x'"]),
        (HEADER + "a,1,10\n", [":2:", "3 values for the 4 columns"]),
        (HEADER + ",1,1,10\n", [":2:", "task_type is empty"]),
        (HEADER + "a,1,1,10\na,2,,8\n", [":3:", "line 2", "cpu, gpu"]),
        (HEADER + "b,1,1,10\nc,1,1,10\n", ["'a'", "Known: b, c"]),
    ],
)
def test_bad_files_are_named_with_line_and_value(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        load_profile(path, "a")
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_missing_file_and_binary_file(tmp_path):
    with pytest.raises(DataError, match=r"there is no profile file .*gone\.csv"):
        load_profile(tmp_path / "gone.csv", "a")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DataError, match="cannot be read"):
        load_profile(tmp_path / "binary.csv", "a")


def test_scattered_measurements_are_refused_before_they_fill_the_memory():
    cells = {(i, 2 * i, 3 * i): 1.0 for i in range(1, 48)}
    assert MAX_GRID < 47**3
    with pytest.raises(DataError, match="grid of 103,823 cells"):
        Profile(("x", "y", "z"), cells)


def test_written_profiles_read_back(tmp_path):
    rows = [ProfileRow("a", {"cpu": 1.0, "gpu": 0.5}, 1 / 3), ProfileRow("b", {"cpu": 2.0}, 7.0)]
    write_profile(tmp_path / "out.csv", rows)
    assert [row for _, row in read_rows(tmp_path / "out.csv")] == rows


def scenario(resources: dict[str, float]) -> dict:
    return {
        "name": "x",
        "mode": "multi",
        "tasks": 1,
        "resources": resources,
        "clusters": [{"name": "c", "capacity": dict.fromkeys(resources, 8)}],
        "arrivals": {"rate": 1},
        "task_types": [
            {
                "name": "a",
                "minimum": dict.fromkeys(resources, 1),
                "maximum": {next(iter(resources)): 2},
                "speed": {"kind": "table", "file": "profile.csv"},
            }
        ],
    }


def build(folder: Path, maximum: dict[str, float], **speed: object):
    data = scenario({"cpu": 1, "gpu": 1})
    data["task_types"][0] |= {"maximum": maximum}
    data["task_types"][0]["speed"] |= speed
    return build_world(parse_scenario(data, "mine.toml", directory=str(folder))).task_types[0].profile


def test_a_scenario_uses_the_table(tmp_path):
    write(tmp_path, "task_type,cpu,seconds\na,1,40\na,2,20\n")
    profile = build(tmp_path, {"cpu": 2})  # one GPU, never more: a column for it would say nothing
    assert profile.slots(Resources((1, 1))) == 4
    assert profile.slots(Resources((2, 1))) == 2


@pytest.mark.parametrize("text", ["task_type,cpu,seconds\na,1,40\n", HEADER + "a,1,,40\nb,1,1,40\n"])
def test_a_resource_without_amounts_is_an_error_unless_it_is_said_not_to_matter(tmp_path, text):
    write(tmp_path, text)
    with pytest.raises(DataError, match=r"mine\.toml: .*profile\.csv \(a\): there is no column 'gpu' .*\[\"gpu\"\]"):
        build(tmp_path, {"gpu": 2})
    assert set(build(tmp_path, {"gpu": 2}, insensitive=["gpu"]).rates) == {0.25}


def test_insensitive_must_name_a_resource_without_a_column(tmp_path):
    write(tmp_path, HEADER + "a,1,1,40\n")
    with pytest.raises(ConfigError, match="there is no resource 'tpu'"):
        build(tmp_path, {"gpu": 2}, insensitive=["tpu"])
    with pytest.raises(DataError, match="'gpu' is said to be insensitive, but the file has amounts of it"):
        build(tmp_path, {"gpu": 2}, insensitive=["gpu"])


def test_a_measurement_too_long_for_any_run_is_named_with_its_line(tmp_path):
    write(tmp_path, HEADER + "a,1,1,40\na,2,1,1e9\n")
    with pytest.raises(DataError, match=r"profile\.csv:3: seconds = 1e\+09 with 2 cpu, 1 gpu is 1e\+08 slots, at most"):
        build(tmp_path, {"cpu": 2})


def test_paths_may_be_text(tmp_path):
    path = str(write(tmp_path, HEADER + "a,1,1,40\n"))
    assert load_profile(path, "a").seconds({"cpu": 1, "gpu": 1}) == pytest.approx(40)


def test_a_column_that_is_no_resource_of_the_scenario_is_an_error(tmp_path):
    write(tmp_path, "task_type,cpu,tpu,seconds\na,1,1,40\n")
    with pytest.raises((DataError, ConfigError), match="column 'tpu' is not a resource of the scenario"):
        build_world(parse_scenario(scenario({"cpu": 1, "gpu": 1}), directory=str(tmp_path)))
