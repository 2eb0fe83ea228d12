"""Collects, prints and writes the explanations of ``tapfinger simulate --explain``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rich import box
from rich.console import Console
from rich.table import Table

from tapfinger.commands.screen import plain_console
from tapfinger.core.contract import Decision, Proposal, Scheduler, Snapshot
from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.errors import ConfigError

if TYPE_CHECKING:
    from tapfinger.policy.explain import AgentView, Explanation
    from tapfinger.records import RunRecord
    from tapfinger.workloads.world import World

#: Most clusters that are printed, also of a conflict; the file has all of them.
MAX_CLUSTERS = 12

#: Stage -> why a task starts that it led to. Conflicts have a table of their own.
_REASONS = {
    "waiting": "because it has waited for the longest time allowed, whatever the network says",
    "greedy": "because Greedy chose so in the network's place",
    "again": "after its cluster had lost another task and chose again",
    "lending": "because running tasks shrink for it",
}


@runtime_checkable
class Explains(Scheduler, Protocol):
    """A scheduler that can explain its decisions."""

    def explain(self) -> Explanation:
        """The explanation of the last decision."""
        ...


class Watched(SchedulerWrapper):
    """Wraps a scheduler and keeps explanations of some of its decisions."""

    def __init__(self, scheduler: Scheduler, spec: str, slots: Collection[int]) -> None:
        """``slots``: slots to explain. Empty: the first turn with a conflict, or else that with the longest queue."""
        if not isinstance(scheduler, Explains):
            raise ConfigError(
                f"scheduler {spec!r} cannot explain itself: --explain needs one that can, such as "
                "tapfinger@model=FILE.onnx"
            )
        super().__init__(scheduler)
        self._explains: Explains = scheduler
        self.slots = frozenset(slots)
        self.explanations: list[Explanation] = []
        self._interest = (False, 0)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide as the scheduler does, and keep its explanation."""
        decision = self.inner.decide(snapshot)
        if snapshot.slot in self.slots and snapshot.queue:
            self.explanations.append(self._explains.explain())
        elif not self.slots and not decision.void:
            # A conflict may still come later; once there is one, nothing is more interesting.
            interest = (True, 0) if decision.lost else (False, len(snapshot.queue))
            if interest > self._interest:
                self._interest = interest
                self.explanations = [self._explains.explain()]
        return decision


def report(watched: Watched, world: World, record: RunRecord, out: Path | None) -> None:
    """Print the explanations; with ``out``, also write them there."""
    if not watched.explanations:
        asked = ", ".join(map(str, sorted(watched.slots)))
        where = f"no task was waiting in slot {asked}" if asked else "nothing was started"
        raise ConfigError(f"--explain: {where}; the run has {record.slots} slots, choose others with --at SLOT")
    console = plain_console()
    for explanation in watched.explanations:
        show(explanation, world.resources, console)
    if out is not None:
        about = {"scenario": record.scenario, "scheduler": record.scheduler, "seed": record.seed}
        written, note = write(watched.explanations, world.resources, about, out)
        for path in written:
            console.print(f"Wrote {path}", markup=False, soft_wrap=True)
        if note:
            console.print(note)


def show(explanation: Explanation, resources: ResourceTypes, console: Console) -> None:
    """Print one decision: a table per cluster that could start something, conflicts, and reasons."""
    words = _Words(explanation, resources)
    console.print(f"Slot {explanation.slot}, turn {explanation.turn}: {words.outcome()}", style="bold")
    busy = [a for a in explanation.agents if any(o.startable for o in a.options)]
    # If not all fit, clusters that want a task take precedence; those shown are in order of their number.
    wanted = sorted(busy, key=lambda a: (a.wants is None, a.cluster))[:MAX_CLUSTERS]
    for agent in sorted(wanted, key=lambda a: a.cluster):
        console.print(words.table(agent))
    if len(busy) > len(wanted):
        console.print(f"{len(busy) - len(wanted)} clusters more could start something; --out DIR writes them all.")
    idle = [a.name for a in explanation.agents if a not in busy]
    if idle:
        console.print(f"Nothing to start on {', '.join(idle)}.")
    for table in words.contests():
        console.print(table)
    for line in words.reasons():
        console.print(line)


class _Words:
    """One explanation as text and tables."""

    def __init__(self, explanation: Explanation, resources: ResourceTypes) -> None:
        self._it, self._resources = explanation, resources
        self._names = [agent.name for agent in explanation.agents]
        self._placed = {(p.task, p.cluster) for p in explanation.decision.placements}

    def outcome(self) -> str:
        placements = self._it.decision.placements
        if not placements:
            return "nothing is started"
        return "; ".join(
            f"task {p.task} starts on {self._names[p.cluster]} with {self._amounts(p.allocation)}" for p in placements
        )

    def table(self, agent: AgentView) -> Table:
        table = Table(
            title=f"{agent.name}, {self._amounts(agent.free)} free: {self._fate(agent.wants)}",
            box=box.SIMPLE_HEAD,
            title_justify="left",
            title_style="bold",
        )
        table.add_column("")
        table.add_column("task")
        table.add_column("type")
        table.add_column("waited", justify="right")
        table.add_column("probability", justify="right")
        table.add_column("allocations, given the task")
        for option in agent.options:
            chosen = agent.wants is not None and agent.wants.task == option.task
            odds = _percent(option.probability) if option.startable else "cannot start"
            shown = option.allocations if chosen else option.allocations[:1]
            shares = [f"{self._amounts(s.allocation)}  {_percent(s.probability)}" for s in shown]
            if chosen and agent.wants and agent.wants.allocation not in [s.allocation for s in shown]:
                # Amounts are chosen one after the other, so the choice need not be the most likely combination.
                shares.append(f"chosen: {self._amounts(agent.wants.allocation)}  {_percent(agent.amounts_probability)}")
            style = "bold" if chosen else None if option.startable else "dim"
            cells = [str(option.task), option.type, str(option.waited), odds, "\n".join(shares)]
            table.add_row(">" if chosen else "", *cells, style=style)
        void = agent.wants is None
        table.add_row(">" if void else "", "void", "", "", _percent(agent.void), "", style="bold" if void else None)
        return table

    def contests(self) -> Iterator[Table]:
        for contest in self._it.contests:
            winner = contest.winner
            table = Table(
                title=f"Conflict over task {winner.task}: {self._names[winner.cluster]} wins",
                box=box.SIMPLE_HEAD,
                title_justify="left",
                title_style="bold",
            )
            table.add_column("")
            table.add_column("cluster")
            for head in ("Pr(task | cluster)", "minimum fits", "prior", "posterior"):
                table.add_column(head, justify="right")
            rows = zip(contest.rivals, contest.copies, contest.prior, contest.posterior, strict=True)
            best = sorted(rows, key=lambda row: (row[0] is not winner, -row[3]))[:MAX_CLUSTERS]
            for p, copies, prior, posterior in sorted(best, key=lambda row: row[0].cluster):
                won = p is winner
                cells = [self._names[p.cluster], _percent(p.score), f"{copies} x"]
                cells += [_percent(prior), _percent(posterior)]
                table.add_row(">" if won else "", *cells, style="bold" if won else None)
            if len(contest.rivals) > MAX_CLUSTERS:
                table.caption = f"and {len(contest.rivals) - MAX_CLUSTERS} clusters more"
            yield table

    def reasons(self) -> Iterator[str]:
        """What led to starts, other than the network's choice."""
        for p, because in zip(self._it.decision.placements, self._it.because, strict=False):
            for name in because:
                if name in _REASONS:
                    yield f"{name.capitalize()}: task {p.task} starts on {self._names[p.cluster]} {_REASONS[name]}."

    def _fate(self, wants: Proposal | None) -> str:
        if wants is None:
            return "waits"
        if (wants.task, wants.cluster) in self._placed:
            return f"starts task {wants.task}"
        lost = any((p.task, p.cluster) == (wants.task, wants.cluster) for p in self._it.decision.lost)
        if lost and not any(wants in contest.rivals for contest in self._it.contests):
            return f"wants task {wants.task}, for which its nodes leave too little"  # a span
        return f"wants task {wants.task}, does not get it"

    def _amounts(self, allocation: Resources) -> str:
        """Amounts with the accelerator first, in the order of decisions: ``gpu 8 cpu 2``."""
        first = self._resources.names[self._resources.accelerator]
        natural = self._resources.natural(allocation)
        order = [first, *(name for name in natural if name != first)]
        return " ".join(f"{name} {natural[name]:g}" for name in order)


def _percent(share: float) -> str:
    """A percentage that never rounds a possible event to 0 %, nor an uncertain one to 100 %."""
    percent = 100.0 * share
    if 0.0 < percent < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if 99.9 < percent < 100.0 - 1e-9 else f"{percent:.1f} %"


def write(
    explanations: Sequence[Explanation], resources: ResourceTypes, about: dict[str, Any], folder: Path
) -> tuple[list[Path], str]:
    """Write explain.json and a picture per decision. Returns the files, and a note if there is no picture."""
    from tapfinger.drawing import save
    from tapfinger.evaluation.attention import draw
    from tapfinger.evaluation.output import write_json
    from tapfinger.policy.explain import plain

    written = [folder / "explain.json"]
    write_json(written[0], {**about, "decisions": [plain(e, resources) for e in explanations]})
    for explanation in explanations:
        if explanation.attention is None:
            return written, "No picture: the network has no graph, or was exported by an older version."
        if not explanation.attention.tasks:
            continue  # overdue tasks have left none to show
        path = folder / f"attention-{explanation.slot}-{explanation.turn}.png"
        save(draw(explanation, explanation.attention, f"{about['scenario']}, seed {about['seed']}"), path)
        written.append(path)
    return written, ""
