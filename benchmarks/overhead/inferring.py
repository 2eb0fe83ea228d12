"""The overhead bench with agents that infer: in every turn of a slot they get the observation and send proposals.

As in ``parties``, a slot begins with all reports and ends with all orders. In between the coordinator asks the agents
in each turn and waits for all of them. The same play decided centrally beforehand says whether both decide alike.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from overhead.parties import Exchange, Part, Play, orders_for, receive, receive_frame, send
from overhead.relay import no_delay
from tapfinger.config import load_scenario
from tapfinger.core.exchange import AgentChoice, SharedObservation
from tapfinger.errors import TapfingerError
from tapfinger.live.agent.machine import Agent, Found, Observed
from tapfinger.live.protocol.messages import Launch, Orders, Outcome, Report
from tapfinger.live.protocol.wire import ProposalAnswer, ProposalRequest
from tapfinger.schedulers.own_choice import choose
from tapfinger.workloads.world import World, build_world

_Starts = dict[int, list[Launch]]


@dataclass(frozen=True)
class AgentSlot:
    """One slot as an agent measures it."""

    #: From its report to its orders.
    seconds: float
    #: Its own passes of the network.
    inferring: float
    #: Bytes with frames: its report and answers; the requests and orders that it got.
    up: int
    down: int
    #: How often it was asked.
    asked: int


@dataclass(frozen=True)
class CoordinatorSlot:
    """One slot as the coordinator measures it."""

    #: From the first turn to the last, with the time that agents took.
    seconds: float
    #: Turns in which agents were asked.
    turns: int
    #: Whether the same tasks start at the same sizes on the same clusters as by the central way.
    same: bool


def central_starts(world: World, scheduler: str, seed: int, skip: int, slots: int) -> list[_Starts]:
    """What starts in each slot by the central way."""
    play, found = Play(world, scheduler, seed), []
    for _ in range(skip + slots):
        found.append(play.decide()[0])
        play.end_slot()
    return found[skip:]


class _Desk:
    """Asks the agents from the thread that decides; their connections belong to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        #: Connections by cluster; without any, the proposals are computed here.
        self.lines: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self.turns = 0

    def __call__(self, seen: SharedObservation, clusters: Collection[int]) -> Mapping[int, AgentChoice]:
        if not self.lines:
            return {n: choose(seen.model, seen.digest, seen.data, n) for n in clusters}
        self.turns += 1
        return asyncio.run_coroutine_threadsafe(self._ask(seen, clusters), self._loop).result()

    async def _ask(self, seen: SharedObservation, clusters: Collection[int]) -> Mapping[int, AgentChoice]:
        number, data = next(self._numbers), base64.b64encode(seen.data).decode()

        async def one(row: int) -> AgentChoice:
            reader, writer = self.lines[row]
            await send(writer, ProposalRequest(number, row, seen.model, seen.digest, data))
            answer = await receive(reader)
            if not isinstance(answer, ProposalAnswer) or answer.number != number or answer.fault:
                raise TapfingerError(f"expected a proposal, got {answer}")
            return AgentChoice(answer.place, answer.amounts, answer.score)

        return dict(zip(clusters, await asyncio.gather(*map(one, clusters)), strict=True))


def run_asking_coordinator(
    pipe: Connection, scenario: str, scheduler: str, seed: int, skip: int, phases: Sequence[Exchange]
) -> None:
    """A process: tells its port, then goes through the phases and tells what it measured in each."""
    asyncio.run(_coordinate(pipe, build_world(load_scenario(scenario)), scheduler, seed, skip, phases))


async def _coordinate(
    pipe: Connection, world: World, scheduler: str, seed: int, skip: int, phases: Sequence[Exchange]
) -> None:
    came: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        no_delay(writer)
        await came.put((reader, writer))

    names = {cluster.name: n for n, cluster in enumerate(world.clusters)}
    expected = central_starts(world, scheduler, seed, skip, max(phase.slots for phase in phases))
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    for phase in phases:
        desk = _Desk(asyncio.get_running_loop())
        play = Play(world, scheduler, seed, desk)
        for _ in range(skip):
            play.decide()
            play.end_slot()
        agents = [await came.get() for _ in world.clusters]
        measured = []
        for slot in range(phase.slots):
            reports = await asyncio.gather(*(receive(reader) for reader, _ in agents))
            found = [(report, line) for report, line in zip(reports, agents, strict=True) if isinstance(report, Report)]
            desk.lines, desk.turns = {names[report.cluster]: line for report, line in found}, 0
            begin = time.perf_counter()
            launches, _ = await asyncio.to_thread(play.decide)
            seconds = time.perf_counter() - begin
            await asyncio.gather(
                *(send(line[1], orders_for(report, launches[names[report.cluster]])) for report, line in found)
            )
            measured.append(CoordinatorSlot(seconds, desk.turns, launches == expected[slot]))
            play.end_slot()
        for _, writer in agents:
            writer.close()
        pipe.send(measured)
    server.close()


def run_inferring_agent(pipe: Connection, part: Part, phases: Sequence[tuple[int, Exchange]]) -> None:
    """A process: for each phase, connects to its port, reports, proposes and obeys; tells what it measured."""
    asyncio.run(_agent(pipe, part, phases))


async def _agent(pipe: Connection, part: Part, phases: Sequence[tuple[int, Exchange]]) -> None:
    for port, phase in phases:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        no_delay(writer)
        now, found = time.monotonic(), [Found(ident, "stop", None) for ident in part.running]
        name = f"agent-of-{part.cluster}"
        agent = Agent(part.cluster, name, 1, now, beat=3600.0, found=found, lease_until=now + 3600.0)
        pipe.send("ready")
        begin = await asyncio.to_thread(pipe.recv)
        measured = []
        for slot in range(phase.slots):
            await asyncio.sleep(max(0.0, begin + slot * phase.period - time.monotonic()))
            orders, one = await _one_slot(reader, writer, agent)
            measured.append(one)
            agent.handle(orders, time.monotonic())
            mine = set(agent.running)
            over = {ident: Outcome("finished", 0, output=2048) for ident in part.ends[slot] if ident in mine}
            agent.handle(Observed(over), time.monotonic())
        writer.close()
        pipe.send(measured)


async def _one_slot(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, agent: Agent
) -> tuple[Orders, AgentSlot]:
    """Report, answer every request, and return the orders."""
    sent, inferring, asked, down = time.monotonic(), 0.0, 0, 0
    up = await send(writer, agent.report(sent))
    while True:
        message, size = await receive_frame(reader)
        down += size
        if isinstance(message, Orders):
            return message, AgentSlot(time.monotonic() - sent, inferring, up, down, asked)
        if not isinstance(message, ProposalRequest):
            raise TapfingerError(f"expected a request or orders, got {type(message).__name__}")
        begin = time.perf_counter()
        choice = choose(message.model, message.digest, base64.b64decode(message.data), message.row)
        inferring, asked = inferring + time.perf_counter() - begin, asked + 1
        up += await send(writer, ProposalAnswer(message.number, choice.place, choice.amounts, choice.score))
