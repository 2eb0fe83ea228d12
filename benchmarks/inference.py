"""Central inference against inference by agents, over the relay of the overhead bench.

python benchmarks/inference.py
"""

from __future__ import annotations

import os
import statistics
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overhead.bench import SKIP, Bench, answer_of, measure, processes
from overhead.inferring import AgentSlot, CoordinatorSlot, run_asking_coordinator, run_inferring_agent
from overhead.parties import Exchange, parts, run_relay
from overhead.relay import SlowLine

from tapfinger.config import load_scenario
from tapfinger.reproduce.overhead import LatencyPhase
from tapfinger.workloads.world import build_world

#: Slots of each run; the first is left out, because processes fill their caches then.
SLOTS = 11
#: Runs of the same slots, of which the best of each slot counts.
RUNS = 2

#: What each agent and the coordinator have measured in one run.
_Measured = tuple[list[list[AgentSlot]], list[CoordinatorSlot]]


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
    """One case at one latency: means over slots; times are those of the slowest agent."""

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
    """Both ways at every latency, one way after the other; a latency that is given several times is one phase."""
    scheduler = f"tapfinger@model={case.model}"
    mode = load_scenario(case.scenario).mode
    central = measure(
        Bench(bench.latencies, bench.slots, bench.bandwidth, scheduler, bench.seed, False, {mode: case.scenario})
    )
    by_agents = _by_agents(case, bench, scheduler)
    found = []
    for latency in dict.fromkeys(bench.latencies):
        runs = [n for n, one in enumerate(bench.latencies) if one == latency]
        found.append(_compared(case, latency, [central[n] for n in runs], [by_agents[n] for n in runs]))
        on_phase(found[-1])
    return found


def _compared(case: Case, latency: float, central: Sequence[LatencyPhase], by_agents: Sequence[_Measured]) -> Compared:
    """Of each slot the best of the runs, which are the same but for what else the machine does."""
    slots = [list(zip(*agents, strict=True))[1:] for agents, _ in by_agents]  # (runs, slots, agents)
    decided = [one for _, coordinator in by_agents for one in coordinator]
    turns = [one.turns for one in by_agents[0][1][1:]]
    each = [one for slot in slots[0] for one in slot]
    return Compared(
        case,
        latency,
        _best([phase.seconds[1:] for phase in central]),
        _best([[max(one.seconds for one in slot) for slot in run] for run in slots]),
        (statistics.mean(central[0].action[1:]), statistics.mean(central[0].state[1:])),
        (statistics.mean(one.down for one in each), statistics.mean(one.up for one in each)),
        _best([phase.decision[1:] for phase in central]),
        _best([[max(one.inferring for one in slot) for slot in run] for run in slots]),
        statistics.mean(turns),
        max(turns),
        sum(one.same for one in decided),
        len(decided),
    )


def _best(runs: Sequence[Sequence[float]]) -> float:
    return statistics.mean(min(slot) for slot in zip(*runs, strict=True))


def _by_agents(case: Case, bench: Bench, scheduler: str) -> list[_Measured]:
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
    chosen = bench or Bench(Bench().latencies * RUNS, SLOTS, padded=False)
    latencies = list(dict.fromkeys(chosen.latencies))
    runs, before = len(chosen.latencies) // len(latencies), os.getloadavg()[0]
    found = {case: compare(case, chosen, _tell) for case in cases}
    after = os.getloadavg()[0]
    text = (
        "`python benchmarks/run.py inference`: coordinator, relay and agents are processes of their own that exchange "
        f"the live system's messages; {chosen.bandwidth / 1e6:g} Mbps in each direction. Central: the coordinator runs "
        "the network. Agents: in every turn it sends the observation to the agents whose clusters could start "
        "something, and waits for their proposals. Bytes are per cluster and slot, with frames. Times are from the "
        f"slowest agent's report to its orders, in the mean of {chosen.slots - 1} slots; each slot was played {runs} "
        f"times, and the best counts. All processes shared {os.cpu_count()} cores with each other and with other work "
        f"(load {before:.0f} at the beginning, {after:.0f} at the end): agents that infer at the same instant wait for "
        "each other, as they would not on machines of their own."
    )
    lines = [
        "## Inference by agents",
        "",
        *textwrap.wrap(text, 116),
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
    head = " | ".join(f"{1e3 * latency:g} ms" for latency in latencies)
    lines += [
        "",
        f"| from report to orders, by latency one way | | {head} |",
        "|---|---|" + "---|" * len(latencies),
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
