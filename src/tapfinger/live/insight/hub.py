"""Watches a coordinator: metrics, shadows, what is learnt; ``reasons`` answers why tasks wait and run where they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from prometheus_client.core import Metric

from tapfinger.core.contract import Phase, Scheduler
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

#: So many of the latest finished tasks say which sizes are usual, when a coordinator begins.
LATEST = 50


class Insight:
    """Watches one coordinator; changes nothing of it."""

    def __init__(
        self,
        site: Site,
        machine: Callable[[], Coordinator],
        store: Store,
        clock: Callable[[], float],
        decision_thread: Worker,
        shadows: Mapping[str, Scheduler],
        learning: Learning,
    ) -> None:
        """``machine``: the one that leads now; raises where there is none.

        ``decision_thread``: the thread in which the machine's schedulers decide; nobody else may ask them anything.
        """
        self._site = site
        self._machine = machine
        self._store = store
        self._clock = clock
        self._watching: set[asyncio.Task[None]] = set()
        self._learning = learning
        self.recent_sizes = RecentSizes(site.slot_seconds, site.believed)
        self.reasons = Reasons(site, machine, store, clock, decision_thread, self.recent_sizes, learning)
        self.shadows = Shadows(shadows)
        self.telemetry = Telemetry(self._gauges)
        self._ended: dict[str, int] = {}

    def take_up(self) -> None:
        """Learn what happened before the machine was made."""
        self._ended = {phase: count for phase, count in self._store.counts().items() if Phase(phase) in ENDED}
        for record in reversed(self._store.tasks([Phase.FINISHED], LATEST, None)):
            self._note_size(record)

    # -------------------------------------------------------------------- what happens

    def saw(self, instructions: Instructions) -> None:
        """Something happened and was saved."""
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
            with suppress(TapfingerError):  # it may be of a configuration that is no more
                self.recent_sizes.granted(self._site.task(record.id, record.spec, 0).type, Resources(record.allocation))

    def decided(self, question: RoundQuestion, answer: Answer, took: float) -> None:
        """A round was decided; shadows have their say when nobody waits for it any more."""
        if answer.by:
            self.telemetry.decision.labels(answer.by).observe(took)
        watching = asyncio.ensure_future(self.shadows.watch(question, answer, self.recent_sizes, self._clock()))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    def known(self) -> Mapping[str, Known]:
        """What is believed of each task type of the configuration."""
        self._machine()  # whoever stands by has seen nothing
        return self._learning.known

    def _gauges(self) -> Iterator[Metric]:
        try:
            machine = self._machine()
        except TapfingerError:
            return iter(())  # another coordinator leads, and tells
        return gauges(machine, self._clock(), self._ended, self.shadows)
