"""The processes of the overhead bench: a coordinator that decides, agents that report and obey, a relay between them.

A slot is one exchange, as in the paper: every agent reports at the same instant, the coordinator waits for all
reports, decides, and sends every agent its orders. An agent's overhead is the time from its report to its orders.
Messages are the live system's own, in its own encoding; frames are a length and the text.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from overhead.relay import SlowLine, no_delay, relay
from tapfinger.config import load_scenario
from tapfinger.core.contract import Decision, Scheduler, Snapshot
from tapfinger.core.events import Event, TaskFinished
from tapfinger.core.exchange import AsksAgents
from tapfinger.core.model import Resources
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.errors import TapfingerError
from tapfinger.evaluation.specs import parse_spec
from tapfinger.live.agent.machine import Agent, Found, Observed
from tapfinger.live.protocol.messages import AttemptId, Launch, Orders, Outcome, Report
from tapfinger.live.protocol.wire import Message, decode, encode
from tapfinger.sim.run import new_session
from tapfinger.workloads.world import World, build_world, draw_workload

#: Stands for a real command: what a user would type to train a model.
COMMAND = ("python", "-m", "my_project.train", "--model", "{type}", "--epochs", "10", "--data", "/srv/data/{type}")

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Exchange:
    """One phase: a line, and the number of slots it lasts. All processes go through the phases in step."""

    line: SlowLine
    slots: int
    #: Seconds from one slot's report to the next.
    period: float
    #: Bytes that a report and an order are filled up to; 0 leaves them as they are.
    report_bytes: int = 0
    order_bytes: int = 0


async def send(writer: asyncio.StreamWriter, message: Message, fill: int = 0) -> int:
    """Send a message, filled up with blanks (JSON does not mind); returns the bytes on the line."""
    text = encode(message).encode()
    frame = _LENGTH.pack(max(len(text), fill)) + text.ljust(fill)
    writer.write(frame)
    await writer.drain()
    return len(frame)


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next message."""
    return (await receive_frame(reader))[0]


async def receive_frame(reader: asyncio.StreamReader) -> tuple[Message, int]:
    """The next message, and its bytes on the line."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return decode(await reader.readexactly(length)), _LENGTH.size + length


class _Watched(SchedulerWrapper):
    """A scheduler whose decisions are kept, with the time they take."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.seconds = 0.0
        self.decisions: list[Decision] = []

    def decide(self, snapshot: Snapshot) -> Decision:
        begin = time.perf_counter()
        decision = super().decide(snapshot)
        self.seconds += time.perf_counter() - begin
        self.decisions.append(decision)
        return decision


class Play:
    """The simulated site behind the coordinator: what arrives, what the scheduler decides, what ends."""

    def __init__(self, world: World, scheduler: str, seed: int, ask: AsksAgents | None = None) -> None:
        """``ask``: agents compute the proposals."""
        self.world = world
        self.ended: list[TaskFinished] = []
        made = parse_spec(scheduler).create()
        if ask is not None:
            made.infer_by(ask)
        self._watched = _Watched(made)
        self._watched.reset(world.context(seed))
        self._session = new_session(world, draw_workload(world, seed), (self._note,))
        self._types: dict[int, str] = {}

    def _note(self, event: Event) -> None:
        if isinstance(event, TaskFinished):
            self.ended.append(event)

    def decide(self) -> tuple[dict[int, list[Launch]], float]:
        """Cluster -> what it is to start now; and the seconds that deciding took."""
        self._types = {task.id: task.type.name for task in self._session.state.snapshot().queue}
        self._watched.seconds, self._watched.decisions = 0.0, []
        self._session.play_round(self._watched)
        launches: dict[int, list[Launch]] = {n: [] for n in range(len(self.world.clusters))}
        for decision in self._watched.decisions:
            for placement in decision.placements:
                launches[placement.cluster].append(self._launch(placement.task, placement.allocation))
        return launches, self._watched.seconds

    def _launch(self, task: int, allocation: Resources) -> Launch:
        argv = tuple(word.format(type=self._types[task]) for word in COMMAND)
        return Launch((task, 1), argv, self.world.resources.natural(allocation), {}, cwd="/srv/project")

    def end_slot(self) -> dict[int, list[AttemptId]]:
        """Let the slot pass; cluster -> attempts that ended."""
        self.ended.clear()
        self._session.end_slot()
        ends: dict[int, list[AttemptId]] = {n: [] for n in range(len(self.world.clusters))}
        for event in self.ended:
            ends[event.cluster].append((event.task, 1))
        return ends

    def running(self) -> dict[int, list[AttemptId]]:
        """Cluster -> what runs there."""
        clusters = self._session.state.snapshot().clusters
        return {cluster.index: [(task.id, 1) for task in cluster.running] for cluster in clusters}


@dataclass(frozen=True)
class Part:
    """What an agent cannot know of itself here, because its tasks are no real processes."""

    cluster: str
    #: What runs before the first exchange.
    running: tuple[AttemptId, ...]
    #: What ends in each slot.
    ends: tuple[tuple[AttemptId, ...], ...]


def parts(world: World, scheduler: str, seed: int, skip: int, slots: int) -> list[Part]:
    """The agents' parts, one per cluster: the scheduler is deterministic, so a run beforehand knows what ends when."""
    play = Play(world, scheduler, seed)
    for _ in range(skip):
        play.decide()
        play.end_slot()
    running, ends = play.running(), []
    for _ in range(slots):
        play.decide()
        ends.append(play.end_slot())
    return [
        Part(cluster.name, tuple(running[n]), tuple(tuple(ended[n]) for ended in ends))
        for n, cluster in enumerate(world.clusters)
    ]


# --------------------------------------------------------------- coordinator


def run_coordinator(
    pipe: Connection, scenario: str, scheduler: str, seed: int, skip: int, phases: Sequence[Exchange]
) -> None:
    """A process: tells its port, then goes through the phases and tells what it measured in each."""
    world = build_world(load_scenario(scenario))
    asyncio.run(_coordinate(pipe, world, scheduler, seed, skip, phases))


async def _coordinate(
    pipe: Connection, world: World, scheduler: str, seed: int, skip: int, phases: Sequence[Exchange]
) -> None:
    lines: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        no_delay(writer)
        await lines.put((reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    for phase in phases:
        play = Play(world, scheduler, seed)
        for _ in range(skip):  # until the site has filled
            play.decide()
            play.end_slot()
        agents = [await lines.get() for _ in world.clusters]
        measured = [await _one_slot(play, agents, phase) for _ in range(phase.slots)]
        for _, writer in agents:
            writer.close()
        pipe.send(measured)
    server.close()


async def _one_slot(
    play: Play, agents: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]], phase: Exchange
) -> tuple[float, list[int]]:
    """Seconds of deciding, and bytes of every order."""
    reports = await asyncio.gather(*(receive(reader) for reader, _ in agents))
    launches, seconds = play.decide()
    names = {cluster.name: n for n, cluster in enumerate(play.world.clusters)}
    sending = []
    for (_, writer), report in zip(agents, reports, strict=True):
        if not isinstance(report, Report):
            raise TapfingerError(f"expected a report, got {type(report).__name__}")
        sending.append(send(writer, orders_for(report, launches[names[report.cluster]]), phase.order_bytes))
    sizes = await asyncio.gather(*sending)
    play.end_slot()
    return seconds, list(sizes)


def orders_for(report: Report, starts: Sequence[Launch]) -> Orders:
    """The answer to a report: what to start and what to forget."""
    return Orders(
        report.cluster,
        report.agent,
        report.incarnation,
        epoch=1,
        seq=report.seq,
        echo=report.seq,
        lease=30.0,
        starts=tuple(starts),
        forgets=tuple(run.id for run in report.runs if run.outcome is not None),
    )


# --------------------------------------------------------------------- agent


def run_agent(pipe: Connection, part: Part, phases: Sequence[tuple[int, Exchange]]) -> None:
    """A process: for each phase, connects to its port and exchanges reports for orders; tells what it measured."""
    asyncio.run(_report(pipe, part, phases))


async def _report(pipe: Connection, part: Part, phases: Sequence[tuple[int, Exchange]]) -> None:
    for port, phase in phases:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        no_delay(writer)
        now, found = time.monotonic(), [Found(ident, "stop", None) for ident in part.running]
        name = f"agent-of-{part.cluster}"
        agent = Agent(part.cluster, name, 1, now, beat=3600.0, found=found, lease_until=now + 3600.0)
        pipe.send("ready")
        begin = await asyncio.to_thread(pipe.recv)  # the same instant for all: the clock is that of the machine
        measured = []
        for slot in range(phase.slots):
            await asyncio.sleep(max(0.0, begin + slot * phase.period - time.monotonic()))
            sent = time.monotonic()
            size = await send(writer, agent.report(sent), phase.report_bytes)
            orders = await receive(reader)
            measured.append((time.monotonic() - sent, size))
            if not isinstance(orders, Orders):
                raise TapfingerError(f"expected orders, got {type(orders).__name__}")
            agent.handle(orders, time.monotonic())
            mine = set(agent.running)
            over = {ident: Outcome("finished", 0, output=2048) for ident in part.ends[slot] if ident in mine}
            agent.handle(Observed(over), time.monotonic())
        writer.close()
        pipe.send(measured)


# --------------------------------------------------------------------- relay


def run_relay(pipe: Connection, lines: Sequence[SlowLine], upstream: int) -> None:
    """A process: one port per line, told through the pipe; ends when the pipe says so."""
    asyncio.run(_relay(pipe, lines, upstream))


async def _relay(pipe: Connection, lines: Sequence[SlowLine], upstream: int) -> None:
    servers = [await relay(line, 0, upstream) for line in lines]
    pipe.send([server.sockets[0].getsockname()[1] for server in servers])
    await asyncio.to_thread(_wait, pipe)
    for server in servers:
        server.close()


def _wait(pipe: Connection) -> None:
    """Until told, or until whoever would tell is gone."""
    try:
        pipe.recv()
    except EOFError:
        return
