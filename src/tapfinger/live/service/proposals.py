"""Asks agents for the proposals of a turn: the thread that decides waits for them, the service's loop hears them.

Nothing that an agent does delays a decision for longer than the bounds of this file, and nothing of it delays a lease:
the loop only sends and takes messages. What agents want is checked by the scheduler as if they were its own numbers.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from tapfinger.core.contract import Scheduler
from tapfinger.core.exchange import EXCHANGE, AgentChoice, InfersByAgents, SharedObservation
from tapfinger.core.wrapper import SchedulerWrapper, name_of
from tapfinger.errors import ConfigError
from tapfinger.live.protocol.wire import Message, ProposalAnswer, ProposalRequest
from tapfinger.visible import visible

#: Most turns of a slot in which agents are asked: further starts wait for the next slot.
MOST_TURNS = 200
#: After a turn without an answer an agent is not asked for the rest of the slot, then for 1, 2, 4, ... slots, at most
#: this many, until it has answered in time.
LONGEST_REST = 16
#: Most characters that are shown of what an agent says is wrong.
MOST_SAID = 300
#: Name among the coordinator's faults.
INFERENCE = "inference"


def inferring(scheduler: Scheduler) -> InfersByAgents:
    """The scheduler below wrappers that lets agents infer; raises ConfigError if there is none."""
    inner = scheduler
    while isinstance(inner, SchedulerWrapper):
        inner = inner.inner
    if not isinstance(inner, InfersByAgents):
        raise ConfigError(
            f'live.inference = "agents" needs the scheduler tapfinger, and live.scheduler is {name_of(scheduler)}; it '
            'has no network that agents could run. Use "central"'
        )
    return inner


def _wait(changed: threading.Condition, seconds: float) -> None:
    changed.wait(seconds)


class ProposalDesk:
    """Requests for proposals that agents have not answered yet."""

    def __init__(
        self,
        clusters: Iterable[str],
        senders: Mapping[str, Callable[[Message], None]],
        on_loop: Callable[[Callable[[], None]], None],
        seconds: float,
        slot_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Condition, float], None] = _wait,
    ) -> None:
        """``senders``: by cluster, of connected agents; used only in what ``on_loop`` runs on the service's loop.

        ``seconds``: for the answers of a turn. ``slot_seconds``: for those of all turns of a slot.
        """
        self._names: Sequence[str] = tuple(clusters)
        self._rows = {name: row for row, name in enumerate(self._names)}
        self._senders, self._on_loop = senders, on_loop
        self._seconds, self._slot_seconds = seconds, slot_seconds
        self._clock, self._wait = clock, wait
        self._changed = threading.Condition()
        #: Version of the exchange that the agents speak which are heard, by row.
        self._speaks: dict[int, int] = {}
        self._slot, self._spent, self._turns = -1, 0.0, 0
        #: Number of the latest request, the rows that have not answered it, and the choices of those that have.
        self._number = 0
        self._open: set[int] = set()
        self._choices: dict[int, AgentChoice] = {}
        #: Slot from which a row is asked again, and its next rest.
        self._asked_from: dict[int, int] = {}
        self._rests: dict[int, int] = {}
        #: Why a row is void, in words.
        self._why: dict[int, str] = {}

    # ------------------------------------------------------------ the deciding thread

    def __call__(self, observation: SharedObservation, clusters: Collection[int]) -> Mapping[int, AgentChoice] | None:
        """Choices of the agents that answer in time; None if no agent that is heard computes any."""
        with self._changed:
            if observation.slot != self._slot:
                self._slot, self._spent, self._turns = observation.slot, 0.0, 0
            if EXCHANGE not in self._speaks.values():
                return None
            left = self._slot_seconds - self._spent
            asked = [row for row in clusters if self._can_ask(row)]
            if not asked or left <= 0.0 or self._turns >= MOST_TURNS:
                return {}
            return self._ask(observation, asked, min(self._seconds, left))

    def _can_ask(self, row: int) -> bool:
        return self._speaks.get(row) == EXCHANGE and self._slot >= self._asked_from.get(row, 0)

    def _ask(self, observation: SharedObservation, rows: Sequence[int], seconds: float) -> Mapping[int, AgentChoice]:
        begin = self._clock()
        self._turns += 1
        self._number += 1
        self._open, self._choices = set(rows), {}
        self._on_loop(partial(self._send, self._number, observation, rows))
        while self._open and (left := begin + seconds - self._clock()) > 0.0:
            self._wait(self._changed, left)
        for row in self._open:
            rest = self._rests.get(row, 1)
            self._asked_from[row], self._rests[row] = self._slot + 1 + rest, min(2 * rest, LONGEST_REST)
            self._why[row] = f"no proposal within {seconds:.3g} s (live.inference_seconds)"
        self._open = set()
        self._spent += self._clock() - begin
        return self._choices

    # ------------------------------------------------------------- the service's loop

    def _send(self, number: int, observation: SharedObservation, rows: Sequence[int]) -> None:
        data = base64.b64encode(observation.data).decode()
        for row in rows:
            send = self._senders.get(self._names[row])
            if send is None:
                self.gone(self._names[row])
            else:
                send(ProposalRequest(number, row, observation.model, observation.digest, data))

    def heard(self, cluster: str, infers: int) -> None:
        """Note which version of the exchange the agent of a cluster speaks; 0: it computes no proposals."""
        row = self._rows.get(cluster)
        if row is not None and self._speaks.get(row) != infers:
            with self._changed:
                self._speaks[row] = infers

    def gone(self, cluster: str) -> None:
        """Do not wait for an agent that is not connected; one that connects again is asked at once."""
        row = self._rows.get(cluster)
        if row is not None:
            with self._changed:
                for noted in (self._speaks, self._asked_from, self._rests, self._why):
                    noted.pop(row, None)
                self._settle(row)

    def answered(self, cluster: str, answer: ProposalAnswer) -> None:
        """Take an answer. One that is late, or that nobody has asked for, counts for nothing."""
        row = self._rows.get(cluster)
        with self._changed:
            if row is None or row not in self._open or answer.number != self._number:
                return
            self._rests.pop(row, None)
            if answer.fault:
                self._why[row] = visible(answer.fault)[:MOST_SAID]
            else:
                self._why.pop(row, None)
                self._choices[row] = AgentChoice(answer.place, answer.amounts, answer.score)
            self._settle(row)

    def _settle(self, row: int) -> None:
        self._open.discard(row)
        if not self._open:
            self._changed.notify_all()

    def show(self, faults: dict[str, str]) -> None:
        """Keep the coordinator's faults up to date: which clusters are void, and why."""
        with self._changed:
            older = {
                row: f"its agent is of another version ({v} instead of {EXCHANGE}) of the exchange"
                for row, v in self._speaks.items()
                if v != EXCHANGE
            }
            why = sorted({**self._why, **older}.items())
        if why:
            told = "; ".join(f"cluster {self._names[row]}: {text}" for row, text in why)
            faults[INFERENCE] = (
                f"Agents that compute no proposals, so that their clusters start only overdue tasks: {told}"
            )
        else:
            faults.pop(INFERENCE, None)
