"""Why a decision was made: how each cluster's agent rated its pending tasks, and how conflicts ended.

It reads the same network, inputs and masks as the scheduler that decided, so its numbers are those of the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tapfinger.core.conflict import Contest, contest
from tapfinger.core.contract import Decision, Placement, Proposal, Snapshot, TaskView
from tapfinger.core.model import Resources, ResourceTypes
from tapfinger.policy.actions import AmountChain, Scores, Share, best_actions, softmax
from tapfinger.policy.encoding.inputs import Inputs, Ints
from tapfinger.policy.exported import ExportedNetwork

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PendingOption:
    """A pending task as one cluster's agent sees it."""

    task: int
    type: str
    #: Slots since the task's arrival.
    waited: int
    #: Whether the task could start here now; if not, its probability is exactly zero.
    startable: bool
    #: Pr(j|n).
    probability: float
    #: The most likely allocations, best first; empty if the task cannot start.
    allocations: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class AgentView:
    """One cluster's agent: its options, and what it wanted."""

    cluster: int
    name: str
    free: Resources
    #: Pending tasks, in the order of the pending set (advised tasks first, then oldest first).
    options: tuple[PendingOption, ...]
    #: Probability of starting nothing; with those of all options it sums to one.
    void: float
    #: What the network proposes for this cluster; None when void.
    wants: Proposal | None
    #: Probability of the proposed amounts, given the task; 1 when void.
    amounts_probability: float


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention in the network's graph; zero between a cluster and a task that is not in its pending set."""

    #: Ids of the tasks, in the order of the last axis.
    tasks: tuple[int, ...]
    #: (layers, heads, N, tasks): each cluster's attention sums to one over its tasks.
    of_clusters: Numbers
    #: (layers, heads, N, tasks): each task's attention sums to one over its clusters.
    of_tasks: Numbers


@dataclass(frozen=True, eq=False)
class Explanation:
    """One turn's decision, explained."""

    slot: int
    turn: int
    agents: tuple[AgentView, ...]
    #: Contests for tasks that several clusters wanted.
    contests: tuple[Contest, ...]
    #: What was decided.
    decision: Decision
    #: For each placement, the names of what led to it; empty if only the network did.
    because: tuple[tuple[str, ...], ...]
    #: None if the network has no graph, or was exported by a version that did not include attention.
    attention: AttentionView | None


#: Inputs, cluster, place and amounts -> the allocation that the amounts stand for.
Meaning = Callable[[Inputs, int, int, list[int]], Resources]


def explain(
    network: ExportedNetwork,
    inputs: Inputs,
    task: Ints,
    meaning: Meaning,
    snapshot: Snapshot,
    decision: Decision,
    top: int = 3,
) -> Explanation:
    """Explain a decision made on a snapshot.

    ``inputs``: a batch of one, made from the snapshot; ``task`` (N, K): id in each place, -1 for none; ``top``:
    number of allocations to report per task. Nothing is sampled and nothing is changed.
    """
    task = task[:, : inputs.startable.shape[2]]
    queue = {view.id: view for view in snapshot.queue}
    scores = network.run(inputs)
    wants = _wants(network, scores, inputs, task, decision)
    agents = tuple(_agents(network, scores, inputs, task, meaning, snapshot, wants, top))
    proposals = [agent.wants for agent in agents if agent.wants is not None]
    lost = {(p.task, p.cluster) for p in decision.lost}
    rivals = [[p for p in proposals if p.task == j] for j in sorted({j for j, _ in lost})]
    return Explanation(
        slot=snapshot.slot,
        turn=snapshot.turn,
        agents=agents,
        contests=tuple(contest(r, snapshot.free, queue[r[0].task].type.minimum) for r in rivals if len(r) > 1),
        decision=decision,
        because=tuple(() for _ in decision.placements),
        attention=_attention(network, inputs, task) if network.layers else None,
    )


def _wants(
    network: ExportedNetwork, scores: Scores, inputs: Inputs, task: Ints, decision: Decision
) -> dict[int, tuple[int, Resources]]:
    """cluster -> place and amounts of the network's proposal; void clusters are left out."""
    if network.card.network == "no-pointer":
        # This network samples its tasks: the decision holds the result. A cluster may lose more than once in a turn.
        first = {p.cluster: p.task for p in reversed(decision.lost)}
        drawn = {p.cluster: p.task for p in decision.placements} | first
        logits = np.full_like(scores.task_logits, -np.inf)
        for n, row in enumerate(task.tolist()):
            logits[0, n, row.index(drawn[n]) if drawn.get(n) in row else len(row)] = 0.0
        scores = scores._replace(task_logits=logits)
    acts = best_actions(scores, inputs, network.card.size("accelerator"))
    chosen = zip(acts.place[0].tolist(), acts.amounts[0].tolist(), strict=True)
    return {n: (place, Resources(amounts)) for n, (place, amounts) in enumerate(chosen) if place < task.shape[1]}


def _agents(
    network: ExportedNetwork,
    scores: Scores,
    inputs: Inputs,
    task: Ints,
    meaning: Meaning,
    snapshot: Snapshot,
    wants: Mapping[int, tuple[int, Resources]],
    top: int,
) -> Sequence[AgentView]:
    queue = {view.id: view for view in snapshot.queue}
    accelerator = network.card.size("accelerator")
    probability = softmax(scores.task_logits)[0].tolist()  # (N, K + 1)
    agents = []
    for n, cluster in enumerate(snapshot.clusters):
        options = []
        proposal, odds = None, 1.0
        for k, ident in enumerate(ident for ident in task[n].tolist() if ident >= 0):
            startable = bool(inputs.startable[0, n, k])
            chain = AmountChain(scores, inputs, n, k, accelerator)
            found = chain.top(top) if startable else []
            shares = tuple(Share(meaning(inputs, n, k, list(s.allocation)), s.probability) for s in found)
            if n in wants and wants[n][0] == k:
                proposal = Proposal(n, ident, meaning(inputs, n, k, list(wants[n][1])), probability[n][k])
                odds = chain.probability(wants[n][1])
            options.append(_option(queue[ident], snapshot.slot, startable, probability[n][k], shares))
        agents.append(AgentView(n, cluster.name, cluster.free, tuple(options), probability[n][-1], proposal, odds))
    return agents


def _option(view: TaskView, slot: int, startable: bool, probability: float, shares: tuple[Share, ...]) -> PendingOption:
    return PendingOption(view.id, view.type.name, slot - view.arrival, startable, probability, shares)


def _attention(network: ExportedNetwork, inputs: Inputs, task: Ints) -> AttentionView:
    """Attention without padding: only real tasks, and nothing for a cluster without tasks."""
    n, k = np.nonzero(task >= 0)
    node = inputs.node[0, n, k]
    ids = dict(zip(node.tolist(), task[n, k].tolist(), strict=True))
    joined = np.zeros((task.shape[0], len(ids)), dtype=np.bool_)
    joined[n, node] = True
    weights = network.attention(inputs)[:, :, 0].astype(np.float64)[..., : len(ids)] * joined
    return AttentionView(tuple(ids[i] for i in range(len(ids))), weights[:, 0], weights[:, 1])


def plain(explanation: Explanation, resources: ResourceTypes) -> dict[str, Any]:
    """For JSON: amounts as natural quantities by name, attention as the mean over heads of each layer."""
    names = [agent.name for agent in explanation.agents]

    def proposal(p: Proposal | Placement) -> dict[str, Any]:
        return {"task": p.task, "cluster": names[p.cluster], "allocation": resources.natural(p.allocation)}

    def option(o: PendingOption) -> dict[str, Any]:
        shares = [{"allocation": resources.natural(s.allocation), "probability": s.probability} for s in o.allocations]
        named = {name: getattr(o, name) for name in ("task", "type", "waited", "startable", "probability")}
        return {**named, "allocations": shares}

    def agent(a: AgentView) -> dict[str, Any]:
        wants = {**proposal(a.wants), "amounts_probability": a.amounts_probability} if a.wants else None
        tasks = [option(o) for o in a.options]
        return {"name": a.name, "free": resources.natural(a.free), "wants": wants, "void": a.void, "tasks": tasks}

    def conflict(c: Contest) -> dict[str, Any]:
        rows = zip(c.rivals, c.copies, c.prior, c.posterior, strict=True)
        rivals = [
            {"cluster": names[p.cluster], "score": p.score, "copies": copies, "prior": prior, "posterior": posterior}
            for p, copies, prior, posterior in rows
        ]
        return {"task": c.winner.task, "winner": names[c.winner.cluster], "rivals": rivals}

    look = explanation.attention
    return {
        "slot": explanation.slot,
        "turn": explanation.turn,
        "placements": [
            {**proposal(p), "because": list(because)}
            for p, because in zip(explanation.decision.placements, explanation.because, strict=True)
        ],
        "clusters": [agent(a) for a in explanation.agents],
        "conflicts": [conflict(c) for c in explanation.contests],
        "attention": look
        and {
            "tasks": list(look.tasks),
            "of_clusters": look.of_clusters.mean(axis=1).tolist(),
            "of_tasks": look.of_tasks.mean(axis=1).tolist(),
        },
    }
