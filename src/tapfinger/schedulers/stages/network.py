"""Stage ``network``: what each cluster's agent wants, by the learned network; or Greedy in its place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tapfinger.core.contract import Proposal, Snapshot
from tapfinger.policy.actions import best_actions
from tapfinger.policy.encoding.for_card import encoder_for
from tapfinger.policy.exported import ExportedNetwork
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.greedy_features import make_advisers
from tapfinger.schedulers.stages.base import Plan, Stage, Start
from tapfinger.schedulers.stages.time_budget import TimeBudget

_log = logging.getLogger(__name__)


class GreedyChoice(Stage):
    """Greedy plans each slot as a whole: in the network's place, or where the network fails."""

    name = "greedy"
    meaning = "Starts that Greedy chose, because no network is used, it failed or its time was used up."

    def __init__(self) -> None:
        """A Greedy with its own defaults."""
        self._greedy = Greedy()

    def reset(self, site: SiteTables, counters: dict[str, int]) -> None:
        """No slot is planned yet."""
        super().reset(site, counters)
        #: The last slot that was planned: with fewer waiting tasks, Greedy would start more in a further turn.
        self.planned = -1

    def learn(self, site: SiteTables) -> None:
        """Use these speed profiles from now on."""
        self._greedy.learn_from(site)

    def apply(self, plan: Plan) -> Plan:
        """Start what Greedy starts, once a slot."""
        if self.planned == plan.snapshot.slot:
            return plan
        self.planned = plan.snapshot.slot
        placements = self._greedy.decide(plan.open).placements
        return plan.with_starts(Start(placement, (self.name,)) for placement in placements)


class NetworkChoice(Stage):
    """The network proposes a task and its amounts for every cluster; clusters that are void propose nothing."""

    name = "network"
    meaning = "Starts that the network chose."

    def __init__(
        self, network: ExportedNetwork, seed: int, budget_ms: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``seed``: for the no-pointer ablation, which draws its tasks. ``clock``: read only if there is a budget."""
        self._network = network
        self._accelerator = network.card.size("accelerator")
        self._rng = np.random.default_rng(seed) if network.card.network == "no-pointer" else None
        self._budget = TimeBudget(budget_ms, clock)
        self._fallback = GreedyChoice()
        #: What the network decided on, when it was first asked in this turn.
        self.seen: Snapshot | None = None

    def reset(self, site: SiteTables, counters: dict[str, int]) -> None:
        """Check that the network fits the site."""
        self._encoder = encoder_for(self._network.card, site, make_advisers())
        self._budget.counters = counters
        self._fallback.reset(site, counters)
        super().reset(site, counters)

    def learn(self, site: SiteTables) -> None:
        """Use these speed profiles from now on."""
        self._encoder.learn(site)
        self._fallback.learn(site)

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """Let the encoder see what changed since the last slot."""
        self.seen = None
        self._encoder.observe(snapshot)
        return snapshot

    def apply(self, plan: Plan) -> Plan:
        """Propose; where the network cannot, Greedy plans the rest of the slot."""
        snapshot, slot = plan.open, plan.snapshot.slot
        self.seen = self.seen or snapshot
        if self._fallback.planned == slot:
            return plan
        proposals = self._propose(snapshot) if self._budget.allows(slot) else None
        if proposals is None:
            self.counters["fallbacks"] += bool(plan.snapshot.queue)
            return self._fallback.apply(plan)
        return replace(plan, proposals=tuple(proposals))

    def encoded(self) -> Any:
        """What the network decided on when it was first asked in this turn, as it saw it."""
        return None if self.seen is None else self._encoder.encode(self.seen)

    @property
    def decode(self) -> Callable[..., Any]:
        """(inputs, cluster, place, amounts) -> the allocation that the amounts stand for."""
        return self._encoder.decode

    def _propose(self, snapshot: Snapshot) -> list[Proposal] | None:
        """What each cluster wants; None where the network fails."""
        begin = self._budget.begin()
        encoded = self._encoder.encode_startable(snapshot)
        if encoded is None:
            return []
        inputs = encoded.inputs
        try:
            scores = self._network.run(inputs)
        except Exception as error:  # onnxruntime's errors have no common base
            self._fail(snapshot.slot, str(error))
            return None
        acts = best_actions(scores, inputs, self._accelerator, self._rng)
        self._budget.end(begin)
        if not np.isfinite(acts.score).all():
            self._fail(snapshot.slot, "its scores are not numbers")
            return None
        places = inputs.startable.shape[2]
        chosen = zip(acts.place[0].tolist(), acts.amounts[0].tolist(), acts.score[0].tolist(), strict=True)
        return [
            Proposal(n, int(encoded.task[n, place]), self._encoder.decode(inputs, n, place, amounts), score)
            for n, (place, amounts, score) in enumerate(chosen)
            if place < places
        ]

    def _fail(self, slot: int, reason: str) -> None:
        # Warn once per run: a broken network usually stays broken.
        level = logging.DEBUG if self.counters["failed"] else logging.WARNING
        _log.log(level, "slot %d: the network failed (%s); greedy decides", slot, reason)
        self.counters["failed"] += 1
