"""The pipeline of the learned scheduler: which stages there are, what each adds, and that nothing else decides."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from helpers import log_of

from tapfinger.config import load_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Decision, Proposal, SchedulerContext, Snapshot
from tapfinger.core.events import Event, TaskResized
from tapfinger.errors import UnknownNameError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.policy.actions import best_actions
from tapfinger.policy.card import PIPELINES
from tapfinger.policy.encoding.for_card import encoder_for
from tapfinger.policy.exported import load_model
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.registry import create
from tapfinger.reproduce.styles import PAPER_PIPELINE
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.greedy_features import make_advisers
from tapfinger.schedulers.tapfinger import MAX_WAIT, NETWORKS, STAGES, TapFinger
from tapfinger.workloads.world import World, build_world

DEFAULTS = {name: p.default for name, p in inspect.signature(TapFinger).parameters.items()}

#: (model, scenario): a model of one scenario and the one for any site, each in multi-task and in single-task mode.
CASES = [("multi-3", "multi-3"), ("synthetic-6", "synthetic-6"), ("universal", "multi-3"), ("universal", "synthetic-6")]

#: Scenario -> a model with which every stage comes into play, in multi-task and in single-task mode.
BUSY = {"multi-3": "universal", "synthetic-6": "synthetic-6"}

#: Busy enough for tasks to become overdue with ``max_wait=1``, and calm enough for conflicts.
CHANGES = {
    "multi-3": ["tasks=120", "arrivals.rate=4"],
    "synthetic-6": ["tasks=120", "arrivals.rate=7", 'eligibility={kind="all"}'],
}

#: Ideal durations that no task ever waits.
FOR_EVER = 1e6


@cache
def world(scenario: str) -> World:
    return build_world(load_scenario(scenario, CHANGES[scenario]))


def log(scenario: str, scheduler: Any) -> list[Event]:
    return log_of(world(scenario), scheduler, seed=51)[0]


def names(scheduler: TapFinger) -> list[str]:
    return [stage.name for stage in scheduler.stages]


def made(scenario: str, **options: Any) -> TapFinger:
    """A scheduler after its reset."""
    scheduler = TapFinger(**{"model": BUSY[scenario], **options})
    scheduler.reset(world(scenario).context(0))
    return scheduler


class NetworkAndBayes:
    """The paper's method, written out: proposals of the network, settled by Bayes' rule."""

    one_shot = False

    def __init__(self, model: str) -> None:
        self._network = load_model(model)

    def reset(self, context: SchedulerContext) -> None:
        self._encoder = encoder_for(self._network.card, SiteTables(context), make_advisers())

    def decide(self, snapshot: Snapshot) -> Decision:
        self._encoder.observe(snapshot)
        encoded = self._encoder.encode_startable(snapshot)
        if encoded is None:
            return Decision()
        inputs = encoded.inputs
        acts = best_actions(self._network.run(inputs), inputs, self._network.card.size("accelerator"))
        proposals = []
        for n, (place, amounts) in enumerate(zip(acts.place[0].tolist(), acts.amounts[0].tolist(), strict=True)):
            if place < inputs.startable.shape[2]:
                task, size = int(encoded.task[n, place]), self._encoder.decode(inputs, n, place, amounts)
                proposals.append(Proposal(n, task, size, float(acts.score[0, n])))
        return resolve(proposals, snapshot.free, {task.id: task.type.minimum for task in snapshot.queue})


class Recorded(TapFinger):
    """Keeps the reasons of every turn; checks that they belong to the decision's starts."""

    def reset(self, context: SchedulerContext) -> None:
        super().reset(context)
        self.reasons: list[tuple[str, ...]] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = super().decide(snapshot)
        plan = self._last
        assert tuple(start.placement for start in plan.starts) == decision.placements
        self.reasons += [start.because for start in plan.starts]
        return decision


@pytest.mark.parametrize(("model", "scenario"), CASES)
def test_the_papers_pipeline_is_the_network_and_bayes_rule(model: str, scenario: str) -> None:
    scheduler = create("scheduler", "tapfinger", {"model": model, **dict(parse_spec(PAPER_PIPELINE).options)})
    expected = log(scenario, NetworkAndBayes(model))
    assert log(scenario, scheduler) == expected
    assert names(scheduler) == ["network", "conflicts"]
    assert scheduler.counters["conflicts"] > 0, "conflicts came up"
    assert expected != log(scenario, TapFinger(model, max_wait=1.0)), "a bound on waiting would have mattered"


@pytest.mark.parametrize(
    ("scenario", "options", "expected"),
    [
        ("multi-3", {}, ["waiting", "network", "conflicts"]),
        ("synthetic-6", {}, ["waiting", "network", "conflicts", "again"]),
        ("multi-3", {"lend": True}, ["waiting", "network", "conflicts", "lending"]),
        ("synthetic-6", {"lend": True}, ["waiting", "network", "conflicts", "again", "lending"]),
        ("synthetic-6", {"pipeline": "paper"}, ["network", "conflicts"]),
        ("synthetic-6", {"pipeline": "paper", "lend": True}, ["network", "conflicts", "lending"]),
        ("multi-3", {"network": "none"}, ["waiting", "greedy", "conflicts"]),
    ],
)
def test_the_stages_and_their_order(scenario: str, options: dict[str, Any], expected: list[str]) -> None:
    found = names(made(scenario, **options))
    assert found == expected
    assert [name for name in STAGES if name in found] == found, "in the order of STAGES"
    for left_out in [[name] for name in STAGES] + [expected[:2], expected]:
        kept = names(made(scenario, without="+".join(left_out), **options))
        assert kept == [name for name in expected if name not in left_out]


@pytest.mark.parametrize("scenario", ["multi-3", "synthetic-6"])
@pytest.mark.parametrize("left_out", STAGES)
def test_without_a_stage_nothing_is_because_of_it(left_out: str, scenario: str) -> None:
    """Without network or conflicts no proposal is made or granted: then only overdue tasks start."""
    scheduler = TapFinger(BUSY[scenario], max_wait=1.0, without=left_out, lend=True)
    events = log(scenario, scheduler)
    assert scheduler.counters[left_out] == 0
    resized = any(isinstance(e, TaskResized) for e in events)
    assert resized == (scheduler.counters["resized"] > 0)
    assert not (resized and left_out == "lending")
    if left_out in ("network", "conflicts"):
        started = sum(scheduler.counters[name] for name in ("waiting", "lending"))
        assert (started, scheduler.counters["network"]) == (120, 0)
    with_all = TapFinger(BUSY[scenario], max_wait=1.0, lend=True)
    unused = left_out == "greedy" or (left_out, scenario) == ("again", "multi-3")
    assert (log(scenario, with_all) == events) == unused


@pytest.mark.parametrize("scenario", ["multi-3", "synthetic-6"])
def test_in_the_networks_place_greedy_decides_as_ever(scenario: str) -> None:
    scheduler = TapFinger(network="none", max_wait=FOR_EVER)
    assert log(scenario, scheduler) == log(scenario, Greedy())
    assert scheduler.counters["greedy"] == 120
    assert sum(scheduler.counters.values()) == 120, "nothing else counts anything"
    assert scheduler.card is None


@pytest.mark.parametrize("options", [{"network": "none"}, {"without": "network"}])
def test_without_a_network_there_is_nothing_to_explain(options: dict[str, Any]) -> None:
    scheduler = made("multi-3", **options)
    with pytest.raises(Exception, match="leave out network=none and without=network"):
        scheduler.explain()


@pytest.mark.parametrize("options", [{}, {"network": "none"}, {"pipeline": "paper"}, {"lend": True}], ids=str)
@pytest.mark.parametrize("scenario", ["multi-3", "synthetic-6"])
def test_every_start_has_its_reasons_and_they_are_what_is_counted(scenario: str, options: dict[str, Any]) -> None:
    scheduler = Recorded(BUSY[scenario], **{"max_wait": 1.0, **options})
    log(scenario, scheduler)
    assert len(scheduler.reasons) == 120
    order = list(STAGES)
    for because in scheduler.reasons:
        assert because
        assert list(because) == sorted(set(because), key=order.index), "each once, in the order of the pipeline"
    counted = Counter(name for because in scheduler.reasons for name in because)
    assert {name: scheduler.counters[name] for name in STAGES} == {name: counted[name] for name in STAGES}
    # Every start has exactly one source; conflicts and again say more about one of the network.
    assert sum(counted[name] for name in ("waiting", "network", "greedy", "lending")) == 120
    if not options:
        assert counted["waiting"] > 0
        assert (counted["again"] > 0) == (scenario == "synthetic-6")


def meaning(option: str, scheduler: TapFinger) -> Any:
    """What the documentation of the option says that leaving it out means."""
    assert scheduler.card is not None
    return scheduler.card.pipeline if option == "pipeline" else DEFAULTS[option]


@pytest.mark.parametrize(("model", "scenario"), CASES)
def test_options_given_their_defaults_change_nothing(model: str, scenario: str) -> None:
    scheduler = TapFinger(model)
    events = log(scenario, scheduler)
    given = TapFinger(model, **{o: meaning(o, scheduler) for o in DEFAULTS.keys() - {"model"}})
    assert log(scenario, given) == events
    assert given.counters == scheduler.counters


@pytest.mark.parametrize(
    ("scenario", "change"),
    [
        ("synthetic-6", {"max_wait": 1.0}),
        ("multi-3", {"lend": True}),
        ("synthetic-6", {"pipeline": "paper"}),
        ("synthetic-6", {"without": "again"}),
        ("synthetic-6", {"network": "none"}),
    ],
    ids=str,
)
def test_options_do_change_something(scenario: str, change: dict[str, Any]) -> None:
    """Otherwise the test above would prove nothing."""
    assert log(scenario, TapFinger(BUSY[scenario], **change)) != log(scenario, TapFinger(BUSY[scenario]))


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("pipeline", "papr", PIPELINES),
        ("network", "nun", NETWORKS),
        ("without", "seniority", STAGES),
        ("without", "waiting+agian", STAGES),
    ],
)
def test_an_unknown_name_is_refused_with_the_valid_ones(option: str, value: str, valid: Sequence[str]) -> None:
    with pytest.raises(UnknownNameError, match=value.split("+")[-1]) as refused:
        create("scheduler", "tapfinger", {option: value})
    assert all(name in str(refused.value) for name in valid)


def test_the_card_names_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tapfinger.schedulers import tapfinger as module

    network = load_model("synthetic-6")
    monkeypatch.setattr(network, "card", replace(network.card, pipeline="paper"))
    monkeypatch.setattr(module, "load_model", lambda _: network)
    assert names(made("synthetic-6")) == ["network", "conflicts"]
    assert names(made("synthetic-6", pipeline="default")) == ["waiting", "network", "conflicts", "again"]


def test_the_bound_on_waiting_costs_nothing_unless_somebody_waits_that_long() -> None:
    assert DEFAULTS["max_wait"] == MAX_WAIT
    scheduler = TapFinger("universal")
    assert log("multi-3", scheduler) == log("multi-3", TapFinger("universal", without="waiting"))
    assert scheduler.counters["waiting"] == 0
