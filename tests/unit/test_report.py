import json
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest
from helpers import R, constant_type, make_task

from tapfinger.config import load_scenario
from tapfinger.core.events import (
    ClusterJoined,
    ClusterLost,
    OthersChanged,
    TaskArrived,
    TaskFinished,
    TaskResized,
    TaskStarted,
)
from tapfinger.core.model import Cluster
from tapfinger.errors import ConfigError
from tapfinger.evaluation import gantt, plots
from tapfinger.evaluation.cells import CellStore
from tapfinger.evaluation.output import Request, git_revision, slug, write_all
from tapfinger.evaluation.plots import FIGURES, Comparison
from tapfinger.evaluation.runner import Runner
from tapfinger.evaluation.specs import parse_specs
from tapfinger.evaluation.stats import Estimate, summarise

TEXTS = "min,random," + ",".join(f"min@pending={i}" for i in range(1, 9))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Ten schedulers, three resources, one with a name that must be escaped."""
    overrides = (
        "tasks=30",
        "resources={cpu=1, gpu=1, '<b>'=4}",
        "clusters.0.capacity.<b>=64",
        "task_types.0.minimum.<b>=4",
        "task_types.1.minimum.<b>=4",
    )
    scenario = load_scenario("multi-3", overrides)
    specs = parse_specs(TEXTS)
    store = CellStore(tmp_path_factory.mktemp("cells"))
    outcome = Runner(store).run(scenario, specs, (0, 1))
    summaries = summarise(outcome.records, "random")
    request = Request("multi-3", scenario, overrides, specs, (0, 1), "random")
    folder = tmp_path_factory.mktemp("out")
    write_all(folder, request, outcome, summaries, with_events=True)
    return request, outcome, summaries, folder


class Page(HTMLParser):
    """Notes tags that are not closed, text, and where pictures come from."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.sources, self.rows = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        self.rows += tag == "tr"
        self.sources += [value for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_is_one_whole_page(made):
    request, _, _, folder = made
    page = Page()
    page.feed((folder / "report.html").read_text())
    page.close()
    assert page.open == []
    assert len(page.sources) == len(FIGURES)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    text = " ".join(page.text)
    assert request.command in text
    assert "<b> in use" in text  # escaped in the file, so it is read as text
    assert "min@pending=8" in text
    assert page.rows == 2 * 11 + 6


def test_figures_are_pictures_with_something_on_them(made):
    *_, folder = made
    for name in FIGURES:
        picture = matplotlib.image.imread(folder / "figures" / f"{name}.png")
        assert min(picture.shape[:2]) > 150
        assert picture[..., :3].std() > 0.02, name


def test_schedulers_look_the_same_everywhere_and_different_from_each_other(made):
    _, outcome, summaries, _ = made
    comparison = Comparison("x", 10.0, outcome.records, summaries, "random")
    looks = [tuple(map(str, comparison.look(name).values())) for name in outcome.records]
    assert len(set(looks)) == 10
    figures = [FIGURES[name](comparison) for name in ("completion", "accumulation", "utilisation")]
    for figure in figures:
        for axis in figure.axes:
            for line in axis.get_lines():
                if line.get_label() in outcome.records:
                    assert line.get_color() == comparison.look(line.get_label())["color"]


def test_lines_of_the_accumulation_figure_are_the_records(made):
    _, outcome, summaries, _ = made
    comparison = Comparison("x", 10.0, outcome.records, summaries, "random")
    axis = FIGURES["accumulation"](comparison).axes[0]
    (line,) = [line for line in axis.get_lines() if line.get_label() == "min"]
    assert line.get_ydata().sum() == pytest.approx(np.mean([run.completion.sum() for run in outcome.records["min"]]))
    assert "slots" in axis.get_xlabel()


def test_title_and_report_say_what_was_changed(made):
    request, _, _, folder = made
    assert request.title == "multi-3, 5 overrides, 2 seeds"
    short = Request("multi-3", request.scenario, ("tasks=30",), request.specs, (0,), "random")
    assert short.title == "multi-3, tasks=30, 1 seed"
    text = (folder / "report.html").read_text()
    assert "Changed: tasks=30, resources=" in text
    assert "<title>multi-3, tasks=30, " in text


def test_a_report_over_equal_draws_says_so_and_speaks_of_no_interval(made, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "FIGURES", {"differences": FIGURES["differences"]})  # drawing all is slow
    request, outcome, _, _ = made
    summaries = summarise(outcome.records, "random", independent=False)
    write_all(tmp_path, request, replace(outcome, same_draws=True), summaries, with_events=False)
    text = (tmp_path / "report.html").read_text()
    assert "arrivals.window=N" in text
    assert "±" not in text
    assert "chance alone" not in text
    assert json.loads((tmp_path / "results.json").read_text())["same_draws"] is True


def test_allocations_of_absent_types_are_left_out_and_many_types_are_cut(made, monkeypatch):
    _, outcome, _, _ = made
    runs = outcome.records["min"]
    one_type = {"min": [replace(run, type=np.ones_like(run.type)) for run in runs]}
    comparison = Comparison("x", 10.0, one_type, summarise(one_type, "min"), "min")
    figure = FIGURES["allocations"](comparison)
    assert {axis.get_title().partition(":")[0] for axis in figure.axes if axis.get_title()} == {runs[0].task_types[1]}
    monkeypatch.setattr(plots, "_MAX_TYPES", 1)
    both = {"min": runs}
    figure = FIGURES["allocations"](Comparison("x", 10.0, both, summarise(both, "min"), "min"))
    assert "1 most frequent of 2" in figure.get_suptitle()


@pytest.mark.parametrize(("factor", "scale"), [(2, "linear"), (500, "symlog")])
def test_one_large_difference_does_not_hide_the_others(made, factor, scale):
    _, outcome, summaries, _ = made
    gap = lambda mean: replace(summaries["min"].difference, mean=Estimate(mean, 0.1))  # noqa: E731
    some = {
        "random": summaries["random"],
        "min": replace(summaries["min"], difference=gap(-0.3)),
        "min@pending=1": replace(summaries["min"], difference=gap(0.3 * factor)),
    }
    axis = FIGURES["differences"](Comparison("x", 10.0, outcome.records, some, "random")).axes[0]
    assert axis.get_xscale() == scale
    assert ("logarithmic beyond ±0.1" in axis.get_xlabel()) == (scale == "symlog")


def test_one_scheduler_alone_can_be_drawn(made):
    _, outcome, _, _ = made
    alone = {"min": outcome.records["min"][:1]}
    comparison = Comparison("x", 10.0, alone, summarise(alone, "min"), "min")
    assert [len(draw(comparison).axes) > 0 for draw in FIGURES.values()] == [True] * len(FIGURES)


def test_names_of_files_are_safe_and_distinct():
    assert slug("multi-3") == "multi-3"
    texts = ["a@b=1", "a@b/1", "a b=1", "../x", "my.mod:Class"]
    assert len({slug(text) for text in texts}) == len(texts)
    assert all("/" not in slug(text) and not slug(text).startswith(".") for text in texts)


def test_the_revision_is_a_hash_or_nothing():
    found = git_revision()
    assert found is None or len(found.rstrip("+")) == 40


KIND = constant_type((1, 1), (4, 4), name="steady")


def chart(*events, capacity=4):
    made = gantt.Gantt([Cluster("c0", R((8, capacity)))], [KIND])
    for event in events:
        made(event)
    return made


def bars(made):
    return [(task, unit, units, begin, end) for task, _, _, unit, units, begin, end in made._drawn]


def test_gantt_bars_follow_starts_resizes_and_ends():
    made = chart(
        TaskArrived(0, make_task(0, KIND)),
        TaskArrived(0, make_task(1, KIND)),
        TaskStarted(0, 0, 0, R((1, 3))),
        TaskStarted(0, 1, 0, R((1, 1))),
        # Task 0 shrinks while task 1 grows into what it leaves, in the same slot and before it in order.
        TaskResized(2, 0, 0, R((1, 1))),
        TaskResized(2, 1, 0, R((1, 3))),
        TaskFinished(3, 0, 0),
        TaskFinished(4, 1, 0),
    )
    assert bars(made) == [(0, 0, 3, 0, 2), (1, 3, 1, 0, 2), (0, 0, 1, 2, 4), (1, 1, 3, 2, 5)]
    assert made.slots == 5


def test_gantt_shows_pauses_as_gaps_and_split_units_as_two_bars():
    made = chart(
        *(TaskArrived(0, make_task(i, KIND)) for i in range(3)),
        TaskStarted(0, 0, 0, R((1, 1))),
        TaskStarted(0, 1, 0, R((1, 2))),
        TaskResized(1, 0, 0, R((0, 0))),
        TaskStarted(2, 2, 0, R((1, 2))),  # units 0 and 3 are free
        TaskFinished(2, 2, 0),
        TaskFinished(3, 1, 0),
        TaskResized(4, 0, 0, R((1, 1))),
        TaskFinished(4, 0, 0),
    )
    assert bars(made) == [(0, 0, 1, 0, 1), (2, 0, 1, 2, 3), (2, 3, 1, 2, 3), (1, 1, 2, 0, 4), (0, 0, 1, 4, 5)]


def test_gantt_draws_outages_and_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(gantt, "MAX_SLOTS", 5)
    made = chart(
        TaskArrived(0, make_task(0, KIND)),
        TaskStarted(0, 0, 0, R((1, 2))),
        ClusterLost(2, 0),
        ClusterJoined(4, 0),
        TaskStarted(4, 0, 0, R((1, 2))),
        TaskFinished(9, 0, 0),
    )
    assert bars(made) == [(0, 0, 2, 0, 2), (0, 0, 2, 4, 10)]
    figure = made.draw("toy", "gpu", 10.0, unit=0.5)
    assert "slots 4 to 8 of 10" in figure.get_suptitle()
    assert figure.axes[0].get_ylabel() == "c0\n[gpu]"
    assert (figure.axes[0].get_xlim(), figure.axes[0].get_ylim()) == ((4, 9), (0, 2))
    assert "slots 1 to 3 of 10" in made.draw("toy", "gpu", 10.0, range(1, 4)).get_suptitle()
    with pytest.raises(ConfigError, match="10 slots"):
        made.draw("toy", "gpu", 10.0, range(10, 12))


NODES = (
    Cluster("lab:0", R((8, 4)), "lab", "a100"),
    Cluster("lab:1", R((8, 1)), "lab", "t4"),
    Cluster("edge", R((8, 2)), "", "t4"),
)


def others(made):
    taken = [(unit, begin, end) for cluster, unit, begin, end in made._others if cluster == 0]
    return sorted(taken), sorted(made._taken[0].items())


def test_gantt_groups_nodes_by_their_cluster_and_names_kinds():
    made = gantt.Gantt(NODES, [KIND])
    for event in (TaskArrived(0, make_task(0, KIND)), TaskStarted(0, 0, 0, R((1, 2))), TaskFinished(9, 0, 0)):
        made(event)
    axes = made.draw("toy", "gpu", 10.0).axes
    assert [axis.get_title(loc="left") for axis in axes] == ["lab, 2 nodes [gpu]", "", "edge [gpu]"]
    assert [axis.get_ylabel() for axis in axes] == ["lab:0\na100", "lab:1\nt4", "edge\nt4"]
    heights = axes[0].get_gridspec().get_height_ratios()
    assert heights[0] == pytest.approx(2 * heights[2])
    assert heights[1] >= 0.3, "still readable"


def test_gantt_shows_others_on_units_that_no_task_holds():
    made = chart(
        OthersChanged(0, 0, R((0, 1))),
        *(TaskArrived(0, make_task(i, KIND)) for i in range(2)),
        TaskStarted(0, 0, 0, R((1, 3))),
        # They want everything, but the task keeps what it has; then they have what it leaves.
        OthersChanged(2, 0, R((0, 4))),
        TaskFinished(4, 0, 0),
        OthersChanged(7, 0, R((0, 1))),
        TaskStarted(7, 1, 0, R((1, 3))),
        TaskFinished(9, 1, 0),
    )
    assert others(made) == ([(0, 5, 7), (1, 5, 7), (2, 5, 7)], [(3, 0)])
    assert bars(made) == [(0, 0, 3, 0, 5), (1, 0, 3, 7, 10)]
    figure = made.draw("toy", "gpu", 10.0)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["steady", "used by others"]


def test_gantt_gives_growing_tasks_what_others_release_with_them():
    made = chart(
        *(TaskArrived(0, make_task(i, KIND)) for i in range(2)),
        TaskStarted(0, 0, 0, R((1, 3))),
        TaskStarted(0, 1, 0, R((1, 1))),
        OthersChanged(1, 0, R((0, 1))),  # nothing is free for them
        TaskResized(2, 0, 0, R((1, 1))),
        TaskResized(2, 1, 0, R((1, 2))),
        TaskFinished(3, 0, 0),
        TaskFinished(3, 1, 0),
    )
    held = [sum(units for task, _, units, begin, _ in bars(made) if task == 1 and begin == at) for at in (0, 2)]
    assert held == [1, 2]
    assert others(made)[1][0][1] == 2, "they come after the tasks of that slot"
