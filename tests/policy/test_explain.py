"""Explanations give the numbers that the decision was made of."""

from __future__ import annotations

import io
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from policy.models import small_network
from rich.console import Console
from typer.testing import CliRunner

from tapfinger.cli import app
from tapfinger.commands.explaining import show
from tapfinger.config import load_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.model import Resources
from tapfinger.errors import ConfigError
from tapfinger.evaluation.attention import draw
from tapfinger.policy.actions import AmountChain, Scores
from tapfinger.policy.actor_critic import Outputs, as_tensors
from tapfinger.policy.distributions import Actions, evaluate
from tapfinger.policy.explain import plain
from tapfinger.policy.export import export, random_inputs
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import new_session, run_scheduler
from tapfinger.workloads.world import build_world, draw_workload

#: What small_network is given for each model; void about as likely as a task.
MODELS = {
    "full": {"layers": 2, "void": -1.0},
    "joint": {"allocation": "joint", "void": -1.0},
    "no-pointer": {"network": "no-pointer", "void": -1.0},
    "vanilla": {"network": "vanilla", "void": -1.0},
    "idle": {"void": 1000.0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    @cache
    def make(name):
        return str(export(*small_network(**MODELS[name]), folder / f"{name}.onnx"))

    return make


#: No task is ever overdue.
PATIENT = {"max_wait": 1000.0}


class Explained(TapFinger):
    """Explains every decision with something waiting; keeps the snapshots, too."""

    def reset(self, context):
        super().reset(context)
        self.seen = []

    def decide(self, snapshot):
        decision = super().decide(snapshot)
        if snapshot.queue:
            self.seen.append((snapshot, decision, self.explain()))
        return decision


def run(path, scenario="multi-3", tasks=30, seed=3, **options):
    world = build_world(load_scenario(scenario, [f"tasks={tasks}"]))
    scheduler = Explained(path, **options)
    run_scheduler(world, scheduler, seed)
    return world, scheduler.seen


@pytest.mark.parametrize("name", ["full", "joint", "no-pointer", "vanilla"])
def test_the_numbers_are_those_of_the_decision(model, name):
    _, seen = run(model(name), **PATIENT)
    minimum = {t.id: t.type.minimum for snapshot, _, _ in seen for t in snapshot.queue}
    contests = 0
    for snapshot, decision, it in seen:
        assert (it.slot, it.turn, it.decision) == (snapshot.slot, snapshot.turn, decision)
        contested = {p.task for p in decision.lost}
        assert it.because == tuple(
            ("network", "conflicts") if p.task in contested else ("network",) for p in decision.placements
        )
        proposals = [agent.wants for agent in it.agents if agent.wants is not None]
        again = resolve(proposals, snapshot.free, minimum)
        assert again.placements == decision.placements
        assert [(p.task, p.cluster) for p in again.lost] == [(p.task, p.cluster) for p in decision.lost]
        np.testing.assert_allclose([p.score for p in again.lost], [p.score for p in decision.lost], rtol=1e-12)
        for agent, cluster in zip(it.agents, snapshot.clusters, strict=True):
            assert [o.task for o in agent.options] == [t.id for t in snapshot.pending(cluster.index, 10)]
            assert sum(o.probability for o in agent.options) + agent.void == pytest.approx(1.0, abs=1e-9)
            for option in agent.options:
                assert option.startable == bool(option.allocations)
                assert option.startable or option.probability == 0.0
            odds = {o.task: o.probability for o in agent.options} | {None: agent.void}
            wanted = agent.wants.task if agent.wants else None
            if name != "no-pointer":  # whose task is drawn
                assert odds[wanted] == max(odds.values())
            assert agent.wants is None or agent.wants.score == odds[wanted]
        for contest in it.contests:
            contests += 1
            assert contest.winner.cluster in {p.cluster for p in decision.placements if p.task == contest.winner.task}
            assert sum(contest.posterior) == pytest.approx(1.0)
            assert sum(contest.prior) == pytest.approx(1.0)
            assert max(contest.posterior) == contest.posterior[contest.rivals.index(contest.winner)]
        assert sum(len(c.rivals) - 1 for c in it.contests) == len(decision.lost)
    assert contests


def test_who_loses_a_task_chooses_again_and_that_is_told(model):
    world, seen = run(model("full"), scenario="synthetic-3", tasks=60, **PATIENT)
    minimum = {t.id: t.type.minimum for snapshot, _, _ in seen for t in snapshot.queue}
    told = 0
    for snapshot, decision, it in seen:
        first = resolve([a.wants for a in it.agents if a.wants is not None], snapshot.free, minimum)
        assert it.decision == decision
        second = decision.placements[len(first.placements) :]
        assert decision.placements == first.placements + second, "all but reasons is about the first choice"
        assert [p for p, why in zip(decision.placements, it.because, strict=True) if "again" in why] == list(second)
        assert len({p.cluster for p in decision.placements}) == len(decision.placements)
        assert bool(second) <= bool(first.lost)
        assert sum(len(c.rivals) - 1 for c in it.contests) == len(first.lost)
        # Whoever is left idle has lost nothing that is still to be had.
        served = {p.cluster for p in decision.placements}
        taken = {p.task for p in decision.placements}
        assert all(p.task in taken for p in decision.lost if p.cluster not in served)
        told += len(second)
        reasons = [(p["task"], tuple(p["because"])) for p in plain(it, world.resources)["placements"]]
        assert reasons == [(p.task, why) for p, why in zip(decision.placements, it.because, strict=True)]
        if second:
            name = it.agents[second[0].cluster].name
            said = f"Again: task {second[0].task} starts on {name} after its cluster had lost another task"
            assert said in shown(it, world)
    assert told
    _, alone = run(model("full"), scenario="synthetic-3", tasks=60, **PATIENT, without="again")
    assert not any("again" in why for _, _, it in alone for why in it.because)


def test_a_start_for_which_running_tasks_shrink_is_told():
    changes = {"scenario": "multi-3", "tasks": 192, "seed": 51, "lend": True}
    world, seen = run("universal", **changes, **PATIENT)
    lent = [(p, it) for _, d, it in seen for p, why in zip(d.placements, it.because, strict=True) if "lending" in why]
    assert lent
    for placement, it in lent:
        name = it.agents[placement.cluster].name
        assert f"Lending: task {placement.task} starts on {name} because running tasks shrink" in shown(it, world)


def shown(it, world):
    """What is printed of an explanation."""
    console = Console(file=io.StringIO(), width=200)
    show(it, world.resources, console)
    return console.file.getvalue()


def test_attention_sums_to_one_over_neighbours_and_is_zero_for_strangers(model):
    _, seen = run(model("full"))
    strangers = lonely = 0
    for _, _, it in seen:
        look = it.attention
        assert look.of_clusters.shape == look.of_tasks.shape == (2, 2, 3, len(look.tasks))
        joined = np.array([[t in {o.task for o in a.options} for t in look.tasks] for a in it.agents])
        assert sorted(look.tasks) == sorted({o.task for a in it.agents for o in a.options})
        for weights in (look.of_clusters, look.of_tasks):
            assert (weights[:, :, ~joined] == 0.0).all()
            assert (weights[:, :, joined] > 0.0).all()
        np.testing.assert_allclose(
            look.of_clusters.sum(axis=3), np.broadcast_to(joined.any(axis=1), (2, 2, 3)), atol=1e-6
        )
        np.testing.assert_allclose(look.of_tasks.sum(axis=2), 1.0, atol=1e-6)
        strangers += (~joined).sum()
        lonely += (~joined.any(axis=1)).sum()
    assert strangers
    assert lonely
    assert all(it.attention is None for _, _, it in run(model("vanilla"), tasks=8)[1])


@pytest.mark.parametrize("resources", [1, 2, 3])
def test_allocations_are_the_likeliest_of_all(resources):
    _, config, _ = small_network()
    accelerator = resources - 1
    config = type(config)(**{**config.as_dict(), "resources": resources, "accelerator": accelerator})
    inputs = random_inputs(config, resources, 1, 2, 4, 9, 3, 5)
    rng = np.random.default_rng(resources)
    shape = (1, 2, 4, resources, 6)
    scores = Scores(
        np.zeros((1, 2, 5), dtype=np.float32),
        rng.normal(size=shape).astype(np.float32),
        rng.normal(size=(*shape, 4)).astype(np.float32),
        rng.normal(size=(*shape, 4)).astype(np.float32),
    )
    outputs = Outputs(*(torch.from_numpy(a) for a in scores), torch.zeros(1))
    checked = 0
    for n, k in zip(*np.nonzero(inputs.startable[0]), strict=True):
        chain = AmountChain(scores, inputs, n, k, accelerator)
        everything = chain.top(10_000)
        odds = [share.probability for share in everything]
        assert len(odds) == np.prod(inputs.largest[0, n, k] - inputs.minimum[0, n, k] + 1)
        assert sum(odds) == pytest.approx(1.0)
        assert odds == sorted(odds, reverse=True)
        assert chain.top(3) == everything[:3]
        for share in everything[:20]:
            place = torch.full((1, 2), int(k))
            amounts = torch.tensor(share.allocation).expand(1, 2, -1)
            terms = evaluate(outputs, as_tensors(inputs), Actions(place, amounts), accelerator)
            assert share.probability == pytest.approx(float(terms.amounts[0, n].exp()), rel=1e-4)
            assert chain.probability(share.allocation) == pytest.approx(share.probability)
            checked += 1
        assert chain.probability(Resources(inputs.largest[0, n, k] + 1)) == 0.0
    assert checked


def test_a_start_of_an_overdue_task_is_told_apart(model):
    _, seen = run(model("idle"), tasks=6, max_wait=0.0)
    overdue = [(d, it) for _, d, it in seen if d.placements]
    assert overdue
    for decision, it in overdue:
        assert it.because == (("waiting",),) * len(decision.placements)
        assert all(agent.wants is None for agent in it.agents)


def test_a_large_picture_leaves_out_the_rest(model, monkeypatch):
    monkeypatch.setattr("tapfinger.evaluation.attention.MAX_CLUSTERS", 4)
    monkeypatch.setattr("tapfinger.evaluation.attention.MAX_TASKS", 6)
    monkeypatch.setattr("tapfinger.commands.explaining.MAX_CLUSTERS", 2)
    clusters = 'clusters=[{name="edge", count=30, capacity={cpu=16, gpu=16}}]'
    world = build_world(load_scenario("multi-3", ["tasks=60", "arrivals.rate=60", clusters]))
    scheduler = TapFinger(model("full"))
    session = new_session(world, draw_workload(world, 3))
    scheduler.reset(world.context(3))
    scheduler.decide(session.state.snapshot())
    it = scheduler.explain()
    picture = draw(it, it.attention, "large")
    assert f"4 of 30 clusters, 6 of {len(it.attention.tasks)} tasks" in picture.get_suptitle()
    names = {label.get_text() for label in picture.axes[1].get_yticklabels()}
    assert len(names) == 4
    got = {it.agents[p.cluster].name for p in it.decision.placements}
    assert got <= names or names <= got
    console = Console(file=io.StringIO(), width=100)
    show(it, world.resources, console)
    assert "28 clusters more could start something" in console.file.getvalue()
    assert re.search(r"and \d+ clusters more", console.file.getvalue())  # of a conflict


def test_plain_is_json_with_natural_amounts(model):
    world, seen = run(model("full"))
    it = next(it for _, d, it in seen if d.lost)
    data = json.loads(json.dumps(plain(it, world.resources)))
    assert data["conflicts"][0]["winner"] in {p["cluster"] for p in data["placements"]}
    first = data["clusters"][0]
    assert set(first["free"]) == {"cpu", "gpu"}
    assert sum(t["probability"] for t in first["tasks"]) + first["void"] == pytest.approx(1.0)
    assert np.array(data["attention"]["of_clusters"]).shape == (2, 3, len(data["attention"]["tasks"]))


def simulate(*words):
    command = ["simulate", "multi-3", "--set", "tasks=20", "--seed", "3", "--explain", *words]
    return CliRunner().invoke(app, command, env={"COLUMNS": "120"})


def test_the_command_explains_a_conflict_and_writes_it(model, tmp_path):
    done = simulate("--scheduler", f"tapfinger@model={model('full')}", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    for said in ("Conflict over task", "posterior", "probability", "gpu ", " %", "void", "explain.json"):
        assert said in done.output
    data = json.loads((tmp_path / "out" / "explain.json").read_text())
    (decision,) = data["decisions"]
    assert decision["conflicts"]
    conflicts = [(snapshot.slot, snapshot.turn) for snapshot, d, _ in run(model("full"), tasks=20)[1] if d.lost]
    assert len(conflicts) > 1
    assert (decision["slot"], decision["turn"]) == conflicts[0]
    assert data["seed"] == 3
    picture = tmp_path / "out" / f"attention-{decision['slot']}-{decision['turn']}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_tells_of_overdue_tasks(model, tmp_path):
    words = ("--scheduler", f"tapfinger@model={model('idle')}@max_wait=0", "--at", "0", "--out", str(tmp_path))
    done = simulate(*words)
    assert done.exit_code == 0, done.output
    assert "Waiting: task 0 starts on edge-" in done.output
    assert "because it has waited for the longest time allowed" in done.output
    assert "No picture" not in done.output


def test_the_command_explains_the_slots_asked_for(model, tmp_path):
    done = simulate(
        "--scheduler", f"tapfinger@model={model('vanilla')}", "--at", "0", "--at", "1", "--out", str(tmp_path)
    )
    assert done.exit_code == 0, done.output
    assert "Slot 0, turn 0" in done.output
    assert "No picture" in done.output
    slots = {d["slot"] for d in json.loads((tmp_path / "explain.json").read_text())["decisions"]}
    assert slots == {0, 1}
    assert [p.name for p in tmp_path.iterdir()] == ["explain.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--scheduler", "greedy"), "scheduler 'greedy' cannot explain itself"),
        (("--scheduler", "tapfinger@model={full}", "--at", "4000"), "no task was waiting in slot 4000"),
    ],
)
def test_what_cannot_be_explained_is_said(model, words, said):
    done = simulate(*(word.format(full=model("full")) for word in words))
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_options_without_explain(model):
    done = CliRunner().invoke(app, ["simulate", "multi-3", "--scheduler", "greedy", "--at", "3"])
    assert "ask for them with --explain" in str(done.exception)


def test_the_page_runs(model, capsys):
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    code = block.replace("multi-3.onnx", model("full")).replace(
        'load_scenario("multi-3")', 'load_scenario("multi-3", ["tasks=20"])'
    )
    exec(code, {})
    assert "[" in capsys.readouterr().out
