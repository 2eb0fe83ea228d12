"""Inference by agents: decisions as by the central way, whatever some agents do, and within bounds of time."""

from __future__ import annotations

import asyncio
import base64
import re
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from live.services import services
from live.sites import CONFIG, RealSite, python
from waiting import PATIENCE, wait_for

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode, Phase
from tapfinger.core.exchange import EXCHANGE, AgentChoice, SharedObservation
from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live.agent.inferring import Inferring
from tapfinger.live.config import build_site, load_site
from tapfinger.live.protocol.wire import Message, ProposalAnswer, ProposalRequest, decode, encode
from tapfinger.live.service import proposals
from tapfinger.live.service.proposals import INFERENCE, LONGEST_REST, ProposalDesk
from tapfinger.live.service.service import Service
from tapfinger.registry import create
from tapfinger.schedulers.own_choice import choose
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.run import new_session
from tapfinger.workloads.world import build_world, draw_workload

NAMES = ("a", "b", "c")
SEEN = SharedObservation(0, "some-model", "0" * 64, b"what all see")

#: What the agent of a cluster does with a request: its answers, which may be of any kind.
Behaviour = Callable[[ProposalRequest], Sequence[ProposalAnswer]]


def well(request: ProposalRequest) -> Sequence[ProposalAnswer]:
    choice = choose(request.model, request.digest, base64.b64decode(request.data), request.row)
    return [ProposalAnswer(request.number, choice.place, choice.amounts, choice.score)]


def first(request: ProposalRequest) -> Sequence[ProposalAnswer]:
    return [ProposalAnswer(request.number, 0, (2, 1), 0.5)]


def silent(_: ProposalRequest) -> Sequence[ProposalAnswer]:
    return []


class PretendedAgents:
    """Agents that answer at once through the wire format, or never; while nobody answers, a made-up clock goes on."""

    def __init__(self, *behaviours: Behaviour, seconds: float = 1.0, slot_seconds: float = 15.0) -> None:
        self.now = 0.0
        self.asked: list[list[int]] = []
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None
        self.senders = {name: self._sender(name, one) for name, one in zip(NAMES, behaviours, strict=False)}
        self.desk = ProposalDesk(
            self.senders or NAMES, self.senders, self._on_loop, seconds, slot_seconds, lambda: self.now, self._wait
        )
        for name in self.senders:
            self.desk.heard(name, EXCHANGE)

    def _sender(self, name: str, behaviour: Behaviour) -> Callable[[Message], None]:
        def send(message: Message) -> None:
            request = decode(encode(message))
            assert isinstance(request, ProposalRequest)
            self.asked[-1].append(request.row)
            for said in behaviour(request):
                answer = decode(encode(said))
                assert isinstance(answer, ProposalAnswer)
                self.desk.answered(name, answer)

        return send

    def _on_loop(self, work: Callable[[], None]) -> None:
        self.asked.append([])
        work()

    def _wait(self, _: threading.Condition, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        self.on_wait()

    @property
    def faults(self) -> str:
        found: dict[str, str] = {}
        self.desk.show(found)
        return found.get(INFERENCE, "")


def at(slot: int) -> SharedObservation:
    return SharedObservation(slot, SEEN.model, SEEN.digest, SEEN.data)


# ----------------------------------------------------------------------- equality


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("model", ["multi-3", "universal"])
def test_decisions_are_those_of_the_central_way(mode: Mode, model: str) -> None:
    world = build_world(load_scenario("multi-3", ["tasks=50", f"mode={mode.value}"]))
    agents = PretendedAgents(well, well, well)
    central, distributed = TapFinger(model), TapFinger(model)
    distributed.infer_by(agents.desk)
    for scheduler in (central, distributed):
        scheduler.reset(world.context(1))
    session = new_session(world, draw_workload(world, 11), ())
    while not session.done:
        settled = False
        while not settled:
            snapshot = session.state.snapshot()
            decision = central.decide(snapshot)
            assert distributed.decide(snapshot) == decision
            settled = session.turn(decision)
        session.end_slot()
    assert len(agents.asked) > 10
    assert distributed.counters == central.counters
    assert not agents.waits
    assert not agents.faults


def test_a_silent_agent_costs_its_own_cluster_only() -> None:
    world = build_world(load_scenario("multi-3"))
    agents = PretendedAgents(well, silent, well)
    scheduler = TapFinger("multi-3", max_wait=10_000.0)
    scheduler.infer_by(agents.desk)
    scheduler.reset(world.context(1))
    session = new_session(world, draw_workload(world, 3), ())
    for _ in range(60):
        session.play_round(scheduler)
        session.end_slot()
    clusters = session.state.snapshot().clusters
    assert [bool(cluster.running) for cluster in clusters] == [True, False, True]
    # Asked in slots 0, 2, 5, 10, 19, 36 and 53 or a little later; never twice in a slot.
    assert 5 <= len(agents.waits) <= 7
    assert scheduler.counters["failed"] == 0


# ------------------------------------------------------------------------- bounds


def test_an_agent_that_is_late_rests_ever_longer_until_it_answers_in_time() -> None:
    patient = [False]
    agents = PretendedAgents(first, lambda request: first(request) if patient[0] else [])
    choices = agents.desk(at(0), [0, 1])
    assert choices is not None
    assert choices.keys() == {0}
    assert agents.waits == [1.0]
    assert "cluster b: no proposal within 1 s (live.inference_seconds)" in agents.faults
    asked = []
    for slot in range(200):
        before = len(agents.waits)
        agents.desk(at(slot), [0, 1])
        agents.desk(at(slot), [0, 1])
        if len(agents.waits) > before:
            asked.append(slot)
    assert asked[:4] == [2, 5, 10, 19]
    assert {later - slot for slot, later in pairwise(asked[4:])} == {LONGEST_REST + 1}
    patient[0] = True
    for slot in range(200, 220):
        choices = agents.desk(at(slot), [0, 1])
    assert choices is not None
    assert choices.keys() == {0, 1}
    assert not agents.faults


def test_a_late_answer_counts_for_nothing() -> None:
    agents = PretendedAgents(first, silent)
    agents.desk(at(0), [0, 1])
    agents.desk.answered("b", ProposalAnswer(1, 0, (2, 1), 0.9))
    choices = agents.desk(at(1), [0, 1])
    assert choices is not None
    assert choices.keys() == {0}


def test_the_time_and_the_turns_of_a_slot_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = PretendedAgents(silent, silent, silent, slot_seconds=1.5)
    for row in range(3):  # each is late in a turn of its own
        assert agents.desk(at(7), [row]) == {}
    assert agents.waits == [1.0, 0.5]
    monkeypatch.setattr(proposals, "MOST_TURNS", 5)
    agents = PretendedAgents(first, first, first)
    found = [agents.desk(at(7), [0]) for _ in range(7)]
    assert [bool(one) for one in found] == [True] * 5 + [False] * 2
    assert agents.desk(at(8), [0])


# ------------------------------------------------------------------------- faults


def test_a_lost_connection_is_not_waited_for() -> None:
    agents = PretendedAgents(first, silent)
    agents.on_wait = lambda: agents.desk.gone("b")
    agents.desk(at(0), [0, 1])
    assert len(agents.waits) == 1
    assert agents.now <= 1.0
    assert not agents.faults
    agents.desk(at(0), [0, 1])
    assert agents.asked[-1] == [0]
    agents.desk.heard("b", EXCHANGE)
    agents.desk(at(0), [0, 1])
    assert agents.asked[-1] == [0, 1], "one that is back has no rest"
    agents.on_wait = lambda: None
    del agents.senders["b"]
    agents.desk.heard("b", EXCHANGE)
    waits = len(agents.waits)
    agents.desk(at(1), [0, 1])
    assert len(agents.waits) == waits


@pytest.mark.parametrize("version", [0, EXCHANGE + 1])
def test_an_agent_of_another_version_is_not_asked(version: int) -> None:
    agents = PretendedAgents(first, first)
    agents.desk.heard("b", version)
    choices = agents.desk(at(0), [0, 1])
    assert choices is not None
    assert choices.keys() == {0}
    assert "cluster b" in agents.faults
    agents.desk.heard("a", version)
    assert agents.desk(at(0), [0, 1]) is None, "nobody can be asked"
    agents.desk.heard("elsewhere", EXCHANGE)
    assert agents.desk(at(0), [0, 1]) is None


def test_what_nobody_has_asked_for_counts_for_nothing() -> None:
    def confused(request: ProposalRequest) -> Sequence[ProposalAnswer]:
        return [ProposalAnswer(request.number + n, 1, (9, 9), 0.1) for n in (-1, 1)]

    agents = PretendedAgents(first, confused, lambda request: [*first(request), ProposalAnswer(request.number, None)])
    agents.desk.answered("a", ProposalAnswer(1, 0, (2, 1), 0.5))
    agents.desk.answered("elsewhere", ProposalAnswer(1, 0, (2, 1), 0.5))
    choices = agents.desk(at(0), [0, 1, 2])
    assert choices == {0: AgentChoice(0, (2, 1), 0.5), 2: AgentChoice(0, (2, 1), 0.5)}


def test_an_agent_that_cannot_infer_is_void_and_people_are_told_why() -> None:
    fault = "no such model here\x1b" + "!" * 1000
    agents = PretendedAgents(first, lambda request: [ProposalAnswer(request.number, fault=fault)])
    choices = agents.desk(at(0), [0, 1])
    assert choices is not None
    assert choices.keys() == {0}
    assert "cluster b: no such model here\\x1b!" in agents.faults
    assert len(agents.faults) < 1000
    assert not agents.waits


@pytest.mark.parametrize(
    "body",
    [
        '{"number":-1}',
        '{"number":1,"place":-1}',
        '{"number":1,"place":0,"score":1.5}',
        '{"number":1,"place":0,"score":NaN}',
        '{"number":1,"place":0,"amounts":[-1]}',
        '{"number":1,"place":0,"amounts":[' + "1," * 2000 + "1]}",
        '{"number":1,"place":1e300}',
        '{"place":0}',
    ],
)
def test_answers_beyond_all_bounds_are_no_messages(body: str) -> None:
    with pytest.raises(CoordinatorError, match="not a message"):
        decode(f'{{"ProposalAnswer":{body}}}')


# ---------------------------------------------------------------------- the agent


def request(number: int = 1, data: str = "") -> ProposalRequest:
    return ProposalRequest(number, 0, "multi-3", "0" * 64, data)


def test_an_agent_answers_one_request_at_a_time_and_skips_those_that_are_too_late() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> AgentChoice:
        begun.set()
        assert go_on.wait(PATIENCE)
        return AgentChoice(0, (1,), 0.5)

    async def ask() -> list[int]:
        found: list[int] = []
        done = asyncio.Event()

        async def answer(said: ProposalAnswer) -> None:
            found.append(said.number)
            if said.number == 5:
                done.set()

        inferring = Inferring(slow)
        inferring.take(request(1), answer)
        await asyncio.to_thread(begun.wait, PATIENCE)
        for number in (2, 3, 4, 5):
            inferring.take(request(number), answer)
        go_on.set()
        await asyncio.wait_for(done.wait(), PATIENCE)
        return found

    assert asyncio.run(ask()) == [1, 5]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (request(data="no base 64 !"), "Error"),
        (request(data="x" * 600_000), "600000 characters are more than an observation has"),
        (request(), "model 'multi-3' is another one here"),
        (ProposalRequest(1, 0, "nosuch", "0", ""), "no model 'nosuch'"),
    ],
)
def test_an_agent_says_why_it_computes_no_proposal(given: ProposalRequest, words: str) -> None:
    async def ask() -> ProposalAnswer:
        answered: asyncio.Future[ProposalAnswer] = asyncio.get_running_loop().create_future()

        async def answer(said: ProposalAnswer) -> None:
            answered.set_result(said)

        Inferring().take(given, answer)
        return await asyncio.wait_for(answered, PATIENCE)

    answer = asyncio.run(ask())
    assert (answer.number, answer.place) == (1, None)
    assert words in answer.fault


# ----------------------------------------------------------------------- the site


def test_only_a_scheduler_with_a_network_can_let_agents_infer(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG + 'inference = "agents"\n')
    scenario, config = load_site(path)
    for scheduler in (create("scheduler", "fifo", {}), create("scheduler", "tapfinger", {"network": "none"})):
        with pytest.raises(ConfigError, match=r"fifo|Fifo|network=none"):
            Service(tmp_path / "state", build_site(scenario), config, scheduler, create("scheduler", "min", {}))
    with services(tmp_path) as service:
        assert service().config.inference == "central"


def test_agents_may_not_be_waited_for_as_long_as_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(CONFIG + 'inference = "agents"\ninference_seconds = 13.0\n')
    with pytest.raises(
        ConfigError, match=r"inference_seconds = 13 must be at most a tenth of live\.lease_seconds = 120"
    ):
        load_site(path)


def test_a_real_site_decides_by_its_agents(tmp_path: Path) -> None:
    site = RealSite(tmp_path)
    text = site.config.read_text().replace('scheduler = "fifo"', 'scheduler = "tapfinger"\ninference = "agents"')
    # The first request of all imports what runs networks; a busy machine takes its time for that.
    site.config.write_text(text + "inference_seconds = 12.0\n")
    try:
        client = site.up()
        tasks = client.submit(*(python("print('done')") for _ in range(6)))
        wait_for(lambda: all(client.show(task).phase is Phase.FINISHED for task in tasks))
        metrics = httpx.get(f"{site.url}/metrics", headers=client._headers).text
        guards = re.findall(r'^tapfinger_scheduler_guards\{.*what="(\w+)"\} ([\d.]+)$', metrics, re.MULTILINE)
        counted = {name: float(count) for name, count in guards}
        assert counted["network"] >= 1
        assert counted["fallbacks"] == counted["failed"] == 0
    finally:
        site.close()
