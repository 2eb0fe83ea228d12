"""A profiler's session with pretended runs: what it measures, in which order, and what never gets into a profile."""

import math
from types import SimpleNamespace

import pytest

from tapfinger.errors import BackendError, ConfigError, DataError
from tapfinger.profiles.table import read_rows
from tapfinger.profiles.testbed import testbed_seconds
from tapfinger.profiling import campaign as campaign_module
from tapfinger.profiling.campaign import Campaign, CampaignPlan
from tapfinger.profiling.grid import parse_grid
from tapfinger.profiling.journal import Journal, RunLine, Subject
from tapfinger.profiling.options import ScenarioChoices
from tapfinger.profiling.results import Files, save_profile, scenario_lines
from tapfinger.profiling.scenario import build, read_measured

SUBJECT = Subject("task", ["task"], ["cpu", "gpu"])
GRID = parse_grid(["cpu=1:4 gpu=1:3"])


class Pretended:
    """Answers at once; ``make`` says what comes of the n-th run of a cell."""

    def __init__(self, make):
        self.make = make
        self.ran = []
        self.limits = []

    def run(self, cell, limit, deadline, waiting):
        waiting()
        key = tuple(cell.values())
        self.ran.append(key)
        self.limits.append(limit)
        made = self.make(key, self.ran.count(key))
        if made is None or isinstance(made, RunLine):
            return made
        return RunLine(cell, "finished", made, 0, others=0.0)


class Silent:
    def __init__(self):
        self.told = []

    def started(self, cell, why, expected, left):
        self.told.append((cell, why, expected, left))

    def waiting(self):
        pass

    def ended(self, cell, run):
        pass


@pytest.fixture
def session(tmp_path):
    opened = []

    def start(make, plan=None, path=None):
        journal = Journal(tmp_path / (path or "task.runs.jsonl"), SUBJECT)
        opened.append(journal)
        pretended, watch = Pretended(make), Silent()
        return Campaign(plan or CampaignPlan(GRID), journal, pretended, watch), pretended, watch

    yield start
    for journal in opened:
        journal.close()


def smooth(cell, _):
    return 2.0 + 30.0 / cell[1] + cell[1] / cell[0]


def test_the_whole_grid_is_measured_corners_first_repeats_apart(session):
    campaign, pretended, watch = session(smooth)
    findings = campaign.play()
    assert set(findings.counted) == set(GRID.cells())
    assert all(len(runs) == 2 for runs in findings.counted.values())
    assert not findings.cut_short
    assert len(pretended.ran) == 24
    assert set(pretended.ran[:4]) == set(GRID.corners())
    assert all(a != b for a, b in zip(pretended.ran, pretended.ran[1:], strict=False))
    lefts = [left for *_, left in watch.told if left is not None]
    assert lefts[-1] < lefts[0]
    assert lefts[-1] == pytest.approx(smooth(pretended.ran[-1], 0), rel=0.3)


def test_what_was_run_is_never_run_again(session):
    def until_the_eighth(cell, nth):
        if len(first.ran) == 8:
            raise KeyboardInterrupt
        return smooth(cell, nth)

    campaign, first, _ = session(until_the_eighth)
    with pytest.raises(KeyboardInterrupt):
        campaign.play()
    assert len(campaign.findings().verdicts) == 4
    campaign._journal.close()
    again, second, _ = session(smooth)
    findings = again.play()
    assert len(second.ran) == 24 - 7
    assert set(findings.counted) == set(GRID.cells())


def test_the_budget_is_kept_and_the_cells_measured_tell_the_rest(session, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(campaign_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    grid = parse_grid(["cpu=1:16 gpu=1:8"])
    truth = testbed_seconds("language-modeling")

    def slow(cell, _):
        clock[0] += 0.04
        return truth({"cpu": cell[0], "gpu": cell[1]}) / 20_000

    campaign, pretended, _ = session(slow, CampaignPlan(grid, repeats=1, budget=0.5))
    findings = campaign.play()
    assert clock[0] < 100.55
    assert findings.cut_short
    assert 4 <= len(findings.counted) < 128
    assert len(findings.unknown) == 128 - len(pretended.ran)


def test_no_run_is_begun_that_is_expected_to_outlast_the_budget(session):
    campaign, pretended, _ = session(lambda *_: 100.0, CampaignPlan(GRID, budget=50.0))
    findings = campaign.play()
    # The corners are begun, as nothing is known of them; their repeats are known to take too long.
    assert len(pretended.ran) == 4
    assert findings.cut_short


def test_disturbed_and_disagreeing_runs_are_repeated(session):
    def make(cell, nth):
        if cell == (1.0, 1.0) and nth == 1:
            return RunLine({"cpu": 1.0, "gpu": 1.0}, "finished", 99.0, 0, others=0.7)
        if cell == (4.0, 3.0) and nth == 2:
            return 50.0
        return smooth(cell, nth)

    campaign, pretended, watch = session(make)
    findings = campaign.play()
    assert findings.counted[1.0, 1.0] == (smooth((1, 1), 0),) * 2
    assert findings.counted[4.0, 3.0] == (smooth((4, 3), 0),) * 2
    assert len(pretended.ran) == 26
    assert {why for _, why, *_ in watch.told} >= {"its repeats disagree", "others used its cores"}


@pytest.mark.parametrize("result", ["failed", "limit", "unfinished"])
def test_cells_that_fail_are_left_out_and_the_others_go_on(session, tmp_path, result):
    def make(cell, nth):
        if cell[1] == 1:
            return RunLine(dict(zip(("cpu", "gpu"), cell, strict=True)), result, 0.1, 1, "too little", tail="oh")
        return smooth(cell, nth)

    campaign, pretended, _ = session(make)
    findings = campaign.play()
    assert set(findings.failed) == {cell for cell in GRID.cells() if cell[1] == 1}
    assert all(cell[1] > 1 for cell in findings.counted)
    assert len(pretended.ran) == 4 + 16  # what failed once is not tried again
    files = Files(tmp_path / "task.csv")
    save_profile(files, "task", findings)
    assert ",1,1," not in files.profile.read_text()
    assert "minimum = { cpu = 1, gpu = 2 }" in scenario_lines("task", findings, files.profile)


def test_what_is_measured_on_a_kind_of_hardware_is_for_clusters_of_that_kind(session, tmp_path):
    campaign, _, _ = session(smooth)
    findings = campaign.play()
    files = Files(tmp_path / "task.csv")
    save_profile(files, "task", findings, "a100")
    assert files.profile.read_text().splitlines()[1] == "task_type,kind,cpu,gpu,seconds"
    assert {row.hardware for _, row in read_rows(files.profile)} == {"a100"}
    assert "[[task_types]]" in scenario_lines("task", findings, files.profile, "a100")
    with pytest.raises(ConfigError, match="no speed on this kind of hardware"):
        scenario_lines("task", findings, files.profile, "t4")
    built = build(read_measured([files.profile]), ScenarioChoices("x"), "task.csv")
    assert built.scenario["clusters"][0]["kind"] == "a100"
    assert {row.hardware for row in built.rows} == {"a100"}
    with files.profile.open("a") as file:
        file.write("task,t4,1,1,5\n")
    with pytest.raises(ConfigError, match=r"different hardware \(a100, t4\)"):
        build(read_measured([files.profile]), ScenarioChoices("x"), "task.csv")


def test_a_task_that_fails_everywhere_is_given_up_with_its_last_words(session):
    def make(cell, _):
        amounts = dict(zip(("cpu", "gpu"), cell, strict=True))
        return RunLine(amounts, "failed", 0.1, 3, "it exited with 3", tail="first\nModuleNotFoundError: no torch\n")

    campaign, pretended, _ = session(make)
    with pytest.raises(BackendError, match="any of the 8 allocations tried") as error:
        campaign.play()
    assert "ModuleNotFoundError: no torch" in str(error.value)
    assert "it exited with 3" in str(error.value)
    assert len(pretended.ran) == 8


def test_a_task_that_fails_in_all_corners_is_tried_in_the_middle(session):
    def make(cell, nth):
        if cell in GRID.corners():
            return RunLine(dict(zip(("cpu", "gpu"), cell, strict=True)), "failed", 0.1, 3, "it exited with 3")
        return smooth(cell, nth)

    findings = session(make)[0].play()
    assert len(findings.failed) == 4
    assert len(findings.counted) == 8


def test_a_program_that_does_not_exist_is_said_at_once(session):
    def make(cell, _):
        return RunLine({"cpu": 4.0, "gpu": 3.0}, "failed", 0.1, 127, "'tsak' could not be started: No such file")

    campaign, pretended, _ = session(make)
    with pytest.raises(DataError, match="'tsak' could not be started"):
        campaign.play()
    assert len(pretended.ran) == 1


def test_runs_that_something_else_ends_are_tried_again_but_not_for_ever(session):
    campaign, pretended, _ = session(lambda cell, nth: None if nth == 1 and cell == (4.0, 3.0) else smooth(cell, nth))
    assert set(campaign.play().counted) == set(GRID.cells())
    assert len(pretended.ran) == 25
    hopeless, _, _ = session(lambda *_: None, path="other.runs.jsonl")
    with pytest.raises(BackendError, match="3 runs in a row were stopped"):
        hopeless.play()


def test_limits_grow_with_what_is_expected(session):
    campaign, pretended, _ = session(lambda *_: 1000.0)
    campaign.play()
    assert pretended.limits[0] == 3600.0
    assert 9_000 < pretended.limits[-1] < 30_000
    fixed, limited, _ = session(smooth, CampaignPlan(GRID, limit=7.0), "fixed.runs.jsonl")
    fixed.play()
    assert set(limited.limits) == {7.0}


def test_a_larger_grid_goes_on_from_a_smaller_one(session):
    campaign, _, _ = session(smooth, CampaignPlan(parse_grid(["cpu=1:2 gpu=1:2"])))
    campaign.play()
    campaign._journal.close()
    larger, pretended, _ = session(smooth)
    findings = larger.play()
    assert set(findings.counted) == set(GRID.cells())
    assert len(pretended.ran) == 16
    assert math.isinf(CampaignPlan(GRID).budget)
