"""Observes a coordinator: metrics, shadows and learning; ``reasons`` explains why tasks wait and where they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from prometheus_client.core import Metric

from tapfinger.core.contract import Phase
from tapfinger.core.model import Resources
from tapfinger.errors import TapfingerError
from tapfinger.live.coordinator.decisions import Answer, RoundQuestion
from tapfinger.live.coordinator.inputs import Instructions
from tapfinger.live.coordinator.machine import Coordinator
from tapfinger.live.coordinator.site import Site
from tapfinger.live.coordinator.worker_thread import Worker
from tapfinger.live.insight.gauges import gauges
from tapfinger.live.insight.learning import Known, Learning
from tapfinger.live.insight.metrics import Telemetry
from tapfinger.live.insight.reasons import Reasons
from tapfinger.live.insight.recent_sizes import RecentSizes
from tapfinger.live.insight.shadow import Shadows
from tapfinger.live.protocol.records import ENDED, TaskRecord
from tapfinger.live.store.store import Store

#: Number of latest finished tasks from which a new leader takes the recent sizes.
LATEST = 50


class Insight:
    """Observes one coordinator; never changes it."""

    def __init__(
        self,
        site: Site,
        machine: Callable[[], Coordinator],
        store: Store,
        clock: Callable[[], float],
        decision_thread: Worker,
        shadows: Shadows,
        learning: Learning,
        faults: Mapping[str, str] | None = None,
    ) -> None:
        """``machine``: returns the leader's state machine; raises if this coordinator does not lead.

        ``decision_thread``: the thread in which its scheduler decides; it must not be used in any other thread.
        ``faults``: what is wrong at the moment, by name.
        """
        self._site = site
        self._machine = machine
        self._store = store
        self._clock = clock
        self._faults: Mapping[str, str] = {} if faults is None else faults
        self._watching: set[asyncio.Task[None]] = set()
        self._learning = learning
        self.recent_sizes = RecentSizes(site.slot_seconds, site.believed)
        self.reasons = Reasons(site, machine, store, clock, decision_thread, self.recent_sizes, learning, self._faults)
        self.shadows = shadows
        self.telemetry = Telemetry(self._gauges)
        self._ended: dict[str, int] = {}

    def take_up(self) -> None:
        """Read from the store what happened before this coordinator led."""
        self._ended = {phase: count for phase, count in self._store.counts().items() if Phase(phase) in ENDED}
        for record in reversed(list(self._store.tasks([Phase.FINISHED], LATEST))):
            self._note_size(record)

    # -------------------------------------------------------------------- what happens

    def saw(self, instructions: Instructions) -> None:
        """Note events that were saved."""
        self.telemetry.saw(instructions)
        self.reasons.saw(instructions)
        for record in instructions.records:
            if record.phase in ENDED:
                self._ended[record.phase.value] = self._ended.get(record.phase.value, 0) + 1
            self._learning.saw(record)
            if record.phase is Phase.PLACED:
                self._note_size(record)

    def _note_size(self, record: TaskRecord) -> None:
        if record.allocation is not None:
            with suppress(TapfingerError):  # it may be from an earlier configuration
                self.recent_sizes.granted(self._site.task_of(record, 0).type, Resources(record.allocation))

    def decided(self, question: RoundQuestion, answer: Answer, took: float) -> None:
        """Note the answer of a round, and ask the shadows now that nobody waits for it."""
        if answer.failed:
            self.telemetry.faults.inc()
        if answer.by:
            self.telemetry.decision.labels(answer.by).observe(took)
        watching = asyncio.ensure_future(self.shadows.watch(question, answer, self.recent_sizes, self._clock()))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    def known(self) -> Mapping[str, Known]:
        """The belief about each task type of the configuration."""
        self._machine()  # raises on a standby, which has seen no runs
        return self._learning.known

    def _gauges(self) -> Iterator[Metric]:
        try:
            machine = self._machine()
        except TapfingerError:
            return iter(())  # the leader reports them
        return gauges(machine, self._clock(), self._ended, self.shadows, self._faults)
