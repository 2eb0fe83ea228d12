"""A teacher's actions as examples: a scheduler's decisions played turn by turn, one agent per cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tapfinger.core.conflict import crowded_out
from tapfinger.core.contract import Decision, Placement, Scheduler, Snapshot
from tapfinger.observation import GraphObs
from tapfinger.policy.encoding.by_type import TypeEncoder
from tapfinger.policy.encoding.inputs import Inputs, batch_of_one
from tapfinger.sim.run import new_session
from tapfinger.workloads.world import World, draw_workload


@dataclass(frozen=True)
class Examples:
    """E states, and the teacher's actions in them."""

    inputs: Inputs  # every array with a leading axis E
    #: (E, N) place in the pending set; K for void.
    choice: npt.NDArray[np.int64]
    #: (E, N, R) allocation of the chosen task; 0 for void.
    amounts: npt.NDArray[np.int64]
    #: (E, N) whether the agent had a choice.
    decidable: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of states."""
        return len(self.choice)

    def save(self, path: Path) -> None:
        """Write one .npz file; ``load`` reads it."""
        arrays = {f"in_{name}": value for name, value in self.inputs._asdict().items()}
        np.savez_compressed(path, choice=self.choice, amounts=self.amounts, decidable=self.decidable, **arrays)

    @classmethod
    def load(cls, path: Path) -> Examples:
        """Read examples from a file."""
        with np.load(path, allow_pickle=False) as data:
            inputs = Inputs(**{name: data[f"in_{name}"] for name in Inputs._fields})
            return cls(inputs, data["choice"], data["amounts"], data["decidable"])


def join(parts: Sequence[Examples]) -> Examples:
    """Several sets of examples as one."""
    inputs = Inputs(*(np.concatenate(arrays) for arrays in zip(*(p.inputs for p in parts), strict=True)))
    return Examples(
        inputs,
        np.concatenate([p.choice for p in parts]),
        np.concatenate([p.amounts for p in parts]),
        np.concatenate([p.decidable for p in parts]),
    )


def visible(snapshot: Snapshot, pending: int) -> Snapshot:
    """The part of a snapshot that agents see: a teacher that wants a task no agent can choose would wait forever.

    Each cluster sees the first ``pending`` tasks of its queue; a task is eligible only on clusters that see it.
    """
    seen = [{task.id for task in snapshot.pending(n, pending)} for n in range(len(snapshot.clusters))]
    queue = (replace(t, eligible=tuple(n for n in t.eligible if t.id in seen[n])) for t in snapshot.queue)
    return snapshot.with_queue(task for task in queue if task.eligible)


class Recorder:
    """Plays a teacher on workloads and records what its agents saw and did."""

    def __init__(self, world: World, pending: int = 10) -> None:
        """``pending``: size of the pending set that the agents will see."""
        self._world = world
        self._encoder = TypeEncoder(world.context(0), pending)
        self._pending = pending

    def record(self, teacher: Scheduler, seeds: Sequence[int], progress: Callable[[], None] | None = None) -> Examples:
        """Examples of whole runs on these seeds."""
        self._observations: list[GraphObs] = []
        self._choices: list[npt.NDArray[np.int64]] = []
        self._amounts: list[npt.NDArray[np.int64]] = []
        for seed in seeds:
            self._play(teacher, seed)
            if progress is not None:
                progress()
        return self._examples()

    def _play(self, teacher: Scheduler, seed: int) -> None:
        session = new_session(self._world, draw_workload(self._world, seed))
        teacher.reset(self._world.context(seed))
        while not session.done:
            wanted = teacher.decide(visible(session.state.snapshot(), self._pending))
            queues: list[deque[Placement]] = [deque() for _ in self._world.clusters]
            for placement in wanted.placements:
                queues[placement.cluster].append(placement)
            settled = False
            while not settled:
                snapshot = session.state.snapshot()
                turn = self._turn(self._encoder.observer.observe(snapshot), queues, snapshot)
                settled = session.turn(Decision(turn))
            session.end_slot()

    def _turn(self, obs: GraphObs, queues: list[deque[Placement]], snapshot: Snapshot) -> tuple[Placement, ...]:
        """One placement per cluster: the next of its list that its agent can see and still start."""
        choice = np.full(len(queues), self._pending, dtype=np.int64)
        amounts = np.zeros((len(queues), obs.largest.shape[2]), dtype=np.int64)
        turn: list[Placement] = []
        for n, queue in enumerate(queues):
            while queue:
                placement = queue.popleft()
                places = np.flatnonzero(obs.task[n] == placement.task)
                # Another cluster may have taken the task first, or a span what it needs of this node.
                if len(places) and (np.asarray(placement.allocation) <= obs.largest[n, places[0]]).all():
                    choice[n] = places[0]
                    amounts[n] = placement.allocation
                    turn.append(placement)
                    break
        for late in crowded_out(turn, snapshot.free, snapshot.spans):  # in the next turn
            queues[late.cluster].appendleft(late)
            turn.remove(late)
            choice[late.cluster], amounts[late.cluster] = self._pending, 0
        if obs.startable.any():
            self._observations.append(obs)
            self._choices.append(choice)
            self._amounts.append(amounts)
        return tuple(turn)

    def _examples(self) -> Examples:
        made = [self._encoder.make(batch_of_one(obs)) for obs in self._observations]
        inputs = Inputs(*(np.concatenate(arrays) for arrays in zip(*made, strict=True)))
        decidable = inputs.startable.any(axis=2)
        return Examples(inputs, np.stack(self._choices), np.stack(self._amounts), decidable)
