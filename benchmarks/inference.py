"""Central inference against inference by agents, over the relay of the overhead bench.

python benchmarks/inference.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overhead.bench import SKIP, Bench, answer_of, measure, processes
from overhead.inferring import AgentSlot, CoordinatorSlot, run_asking_coordinator, run_inferring_agent
from overhead.parties import Exchange, parts, run_relay
from overhead.relay import SlowLine

from tapfinger.config import load_scenario
from tapfinger.workloads.world import build_world

#: Slots of each phase; the first is left out, because processes come from their caches then.
SLOTS = 31


@dataclass(frozen=True)
class Case:
    """One site, and the network that decides for it."""

    scenario: str
    model: str


#: In both modes three and six clusters, with the network of the scenario, and once with the model for any site.
CASES = (
    Case("synthetic-3", "synthetic-3"),
    Case("synthetic-6", "synthetic-6"),
    Case("multi-3", "multi-3"),
    Case("hetero-6", "hetero-6"),
    Case("hetero-6", "universal"),
)


@dataclass(frozen=True)
class Compared:
    """One case at one latency: times are medians over slots, of the slowest agent; bytes are means."""

    case: Case
    latency: float
    #: From report to orders, in seconds.
    central: float
    agents: float
    #: Bytes to and from an agent in a slot.
    central_bytes: tuple[float, float]
    agents_bytes: tuple[float, float]
    #: Deciding in the coordinator by the central way; the passes of the slowest agent; seconds in a slot.
    deciding: float
    inferring: float
    turns: float
    most_turns: int
    #: Slots with the same decisions as by the central way.
    same: int
    slots: int


def compare(case: Case, bench: Bench, on_phase: Callable[[Compared], None] = lambda _: None) -> list[Compared]:
    """Both ways at every latency, one way after the other."""
    scheduler = f"tapfinger@model={case.model}"
    mode = load_scenario(case.scenario).mode
    central = measure(
        Bench(bench.latencies, bench.slots, bench.bandwidth, scheduler, bench.seed, False, {mode: case.scenario})
    )
    found = []
    for before, (agents, coordinator) in zip(central, _by_agents(case, bench, scheduler), strict=True):
        slots: list[tuple[AgentSlot, ...]] = list(zip(*agents, strict=True))[1:]
        decided = coordinator[1:]
        found.append(
            Compared(
                case,
                before.latency,
                statistics.median(before.seconds[1:]),
                statistics.median(max(one.seconds for one in slot) for slot in slots),
                (statistics.mean(before.action[1:]), statistics.mean(before.state[1:])),
                (
                    statistics.mean(one.down for slot in slots for one in slot),
                    statistics.mean(one.up for slot in slots for one in slot),
                ),
                statistics.median(before.decision[1:]),
                statistics.median(max(one.inferring for one in slot) for slot in slots),
                statistics.mean(one.turns for one in decided),
                max(one.turns for one in decided),
                sum(one.same for one in coordinator),
                len(coordinator),
            )
        )
        on_phase(found[-1])
    return found


def _by_agents(case: Case, bench: Bench, scheduler: str) -> list[tuple[list[list[AgentSlot]], list[CoordinatorSlot]]]:
    """For every latency, what each agent and the coordinator have measured."""
    world = build_world(load_scenario(case.scenario))
    # A slot that takes longer delays the next one of all agents alike: each waits for its orders.
    phases = [
        Exchange(SlowLine(latency, bench.bandwidth), bench.slots, 0.3 + 12.0 * latency) for latency in bench.latencies
    ]
    roles = parts(world, scheduler, bench.seed, SKIP, bench.slots)
    found: list[Any] = []
    with processes() as start:
        coordinator = start(run_asking_coordinator, case.scenario, scheduler, bench.seed, SKIP, phases)
        relay = start(run_relay, [phase.line for phase in phases], answer_of(coordinator))
        ports = answer_of(relay)
        agents = [start(run_inferring_agent, part, list(zip(ports, phases, strict=True))) for part in roles]
        for _ in phases:
            for agent in agents:
                answer_of(agent)
            begin = time.monotonic() + 0.2
            for agent in agents:
                agent.send(begin)
            found.append(([answer_of(agent) for agent in agents], answer_of(coordinator)))
        relay.send(None)
    return found


def report(bench: Bench | None = None, cases: Sequence[Case] = CASES) -> list[str]:
    """The section of BENCHMARKS.md."""
    chosen = bench or Bench(slots=SLOTS, padded=False)
    before = os.getloadavg()[0]
    found = {case: compare(case, chosen, _tell) for case in cases}
    after = os.getloadavg()[0]
    lines = [
        "## Inference by agents",
        "",
        "`python benchmarks/run.py inference`: coordinator, relay and agents are processes of their own that exchange",
        f"the live system's messages; {chosen.bandwidth / 1e6:g} Mbps in each direction, {chosen.slots - 1} slots",
        "at each latency. Central: the coordinator runs the network. Agents: in every turn it sends the observation to",
        "the agents whose clusters could start something, and waits for their proposals. Bytes per cluster and slot,",
        "with frames; times per slot, in the median, from the slowest agent's report to its orders. All processes",
        f"shared {os.cpu_count()} cores with each other and with other work (load {before:.0f} at the beginning, "
        f"{after:.0f} at the end), so agents",
        "that infer at the same instant wait for each other, as they would not on machines of their own.",
        "",
        "| scenario, model | turns asked, most | to an agent: central, agents | from it: central, agents | "
        "deciding: coordinator, slowest agent | same decisions |",
        "|---|---|---|---|---|---|",
    ]
    for case, phases in found.items():
        down, up = [_bytes(phases, which) for which in (0, 1)]
        deciding, inferring = (
            1e3 * statistics.mean(times) for times in zip(*((p.deciding, p.inferring) for p in phases), strict=True)
        )
        same, slots = sum(p.same for p in phases), sum(p.slots for p in phases)
        lines.append(
            f"| {case.scenario}, {case.model} | {phases[0].turns:.1f}, {phases[0].most_turns} | {down} | {up} | "
            f"{deciding:.1f} ms, {inferring:.1f} ms | {same} of {slots} slots |"
        )
    head = " | ".join(f"{1e3 * latency:g} ms" for latency in chosen.latencies)
    lines += [
        "",
        f"| from report to orders, by latency one way | | {head} |",
        "|---|---|" + "---|" * len(chosen.latencies),
    ]
    for case, phases in found.items():
        for way in ("central", "agents"):
            cells = " | ".join(f"{1e3 * getattr(p, way):.0f} ms" for p in phases)
            lines.append(f"| {case.scenario}, {case.model} | {way} | {cells} |")
    return [*lines, ""]


def _bytes(phases: Sequence[Compared], which: int) -> str:
    central = statistics.mean(p.central_bytes[which] for p in phases)
    agents = statistics.mean(p.agents_bytes[which] for p in phases)
    return f"{central:.0f} B, {agents:.0f} B"


def _tell(one: Compared) -> None:
    print(
        f"{one.case.scenario}, {one.case.model}, {1e3 * one.latency:g} ms one way: central {1e3 * one.central:.0f} ms, "
        f"agents {1e3 * one.agents:.0f} ms, {one.same} of {one.slots} slots alike",
        flush=True,
    )


if __name__ == "__main__":
    print("\n".join(report()))
