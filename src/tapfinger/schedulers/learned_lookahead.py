"""Learned lookahead: the network's plan for a slot is one of those that lookahead plays in sampled futures."""

from __future__ import annotations

from collections.abc import Sequence

from tapfinger.core.contract import LearningScheduler, Mode, Placement, Scheduler, Snapshot
from tapfinger.core.session import MAX_TURNS
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.lookahead import Lookahead
from tapfinger.schedulers.tapfinger import TapFinger

#: Nominal milliseconds that the network takes for a slot, and for each cluster in it.
_MS_PER_SLOT = 2.0
_MS_PER_CLUSTER = 0.25


class PolicyPlans:
    """Plans a slot by playing a scheduler's turns on the snapshot alone."""

    cost_ms = 0.0

    def __init__(self, policy: Scheduler) -> None:
        """``policy``: a scheduler that decides turn after turn."""
        self._policy = policy

    def reset(self, site: SiteTables) -> None:
        """Reset the policy; a ``TapFinger`` shares these tables."""
        if isinstance(self._policy, TapFinger):
            self._policy.reset_on(site)
        else:
            self._policy.reset(site.context)
        self.cost_ms = _MS_PER_SLOT + _MS_PER_CLUSTER * len(site.context.clusters)
        self._turns = 1 if site.context.mode is Mode.SINGLE else MAX_TURNS

    def learn(self, site: SiteTables) -> None:
        """Pass new profiles on to the policy."""
        if isinstance(self._policy, TapFinger):
            self._policy.learn_from(site)
        elif isinstance(self._policy, LearningScheduler):
            self._policy.learn(site.context)

    def propose(self, snapshot: Snapshot) -> Sequence[Sequence[Placement]]:
        """One plan: turn after turn as in a session, until the policy is void."""
        plan: list[Placement] = []
        for _ in range(self._turns):
            placements = self._policy.decide(snapshot).placements
            if not placements:
                break
            plan += placements
            snapshot = snapshot.after(placements)
        return [plan]


def learned(
    model: str = "",
    budget_ms: float = 20.0,
    plans: int = 32,
    futures: int = 128,
    horizon: int | None = None,
    caution: float = 1.5,
    lend: bool = False,
) -> Lookahead:
    """Lookahead over the plans of a network and of the greedies."""
    lookahead = Lookahead(budget_ms, plans, futures, horizon, caution, lend)
    lookahead.proposer = PolicyPlans(TapFinger(model))
    return lookahead
