from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest
from helpers import R, constant_type, make_task

from tapfinger.config import load_scenario
from tapfinger.core.events import ClusterJoined, ClusterLost, TaskArrived, TaskFinished, TaskResized, TaskStarted
from tapfinger.core.model import Cluster
from tapfinger.evaluation import gantt
from tapfinger.evaluation.cells import CellStore
from tapfinger.evaluation.output import Request, git_revision, slug, write_all
from tapfinger.evaluation.plots import FIGURES, Comparison
from tapfinger.evaluation.runner import Runner
from tapfinger.evaluation.specs import parse_specs
from tapfinger.evaluation.stats import summarise

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
    assert bars(made) == [(0, 0, 2, 0, 2), (0, 0, 2, 4, 5)]
    figure = made.draw("toy", "gpu", 10.0)
    assert "first 5 of 10 slots" in figure.get_suptitle()
    assert figure.axes[0].get_ylabel() == "c0\n[gpu]"
