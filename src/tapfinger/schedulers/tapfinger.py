"""TapFinger: one agent per cluster, all run by one exported network; Bayes' rule decides who gets a contested task.

Needs no torch: the network is an ONNX file. The paper's kind of network knows tasks by their type; a model for any site
knows them by their speed profiles. Every decision goes through a pipeline of named stages (``stages/``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tapfinger.core.contract import Decision, Mode, SchedulerContext, Snapshot
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.policy.card import DEFAULT_PIPELINE, PIPELINES, Card
from tapfinger.policy.explain import Explanation, explain
from tapfinger.policy.exported import load_model
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.model_choice import choose_model
from tapfinger.schedulers.model_domain import warn_outside
from tapfinger.schedulers.stages.again import Again
from tapfinger.schedulers.stages.base import Plan, Stage
from tapfinger.schedulers.stages.conflicts import Conflicts
from tapfinger.schedulers.stages.lending import Lends
from tapfinger.schedulers.stages.network import GreedyChoice, NetworkChoice
from tapfinger.schedulers.stages.waiting import Waiting

#: Ideal durations that a task may wait before it is started whatever the network says; long enough to cost nothing.
MAX_WAIT = 40.0

#: Stages in the order of the pipeline ``default``, by name.
STAGES: Mapping[str, type[Stage]] = {
    stage.name: stage for stage in (Waiting, NetworkChoice, GreedyChoice, Conflicts, Again, Lends)
}

#: Values of the option ``network``.
NETWORKS = ("model", "none")


class TapFinger:
    """The learned scheduler: a network chooses each cluster's next task and its allocation."""

    one_shot = False
    #: Name of every counter and what it counts: starts by the stages that led to them, and a few things more.
    COUNTERS: ClassVar[Mapping[str, str]] = {
        **{name: stage.meaning for name, stage in STAGES.items()},
        "fallbacks": "Slots that Greedy decided because the network failed or had used up its time.",
        "failed": "Passes of the network that raised an error or gave no numbers.",
        "over_budget": "Slots in which the network took longer than its time budget.",
        "reserved": "Times a cluster was reserved for a task that had waited too long.",
        "resized": "Resizes of running tasks.",
    }

    def __init__(
        self,
        model: str = "",
        network: str = "model",
        pipeline: str = "",
        without: str = "",
        lend: bool = False,
        max_wait: float = MAX_WAIT,
        budget_ms: float = 0.0,
    ) -> None:
        """``model``: a shipped name or a .onnx file; without it, the shipped one that fits the site best.

        ``network``: "none" puts Greedy in the network's place, to see what was learned.
        ``pipeline``: "default", or "paper", which is the network and Bayes' rule and nothing else; without it, the one
        on the model's card. ``without``: names of stages to leave out, joined by +.
        ``lend``: lend spare resources to running tasks (the elastic regime); otherwise a task keeps the size it was
        started with.
        ``max_wait``: a task that has waited this many times its ideal duration is started as soon as it fits, and a
        cluster is reserved for it if it does not fit.
        ``budget_ms``: milliseconds in one slot after which Greedy decides instead of the network; 0: no limit, so that
        the same seed gives the same decisions on any machine.
        """
        if not isinstance(lend, bool):
            raise ConfigError(f"tapfinger: lend = {lend!r} must be true or false")
        for name, text in {"model": model, "network": network, "pipeline": pipeline, "without": without}.items():
            if not isinstance(text, str):
                raise ConfigError(f"tapfinger: {name} = {text!r} must be a text")
        for name, value in {"max_wait": max_wait, "budget_ms": budget_ms}.items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"tapfinger: {name} = {value!r} must be a number, zero or more")
        if network not in NETWORKS:
            raise UnknownNameError("network", network, NETWORKS)
        if pipeline and pipeline not in PIPELINES:
            raise UnknownNameError("pipeline", pipeline, PIPELINES)
        self._model, self._pipeline, self._lend = model, pipeline, lend
        self._uses_network = network == "model"
        self._without = [name for name in without.split("+") if name]
        for name in self._without:
            if name not in STAGES:
                raise UnknownNameError("stage", name, STAGES)
        self._max_wait, self._budget_ms = max_wait, budget_ms
        #: Clock in seconds; read only if there is a time budget.
        self.clock = time.perf_counter
        self.counters = dict.fromkeys(self.COUNTERS, 0)

    def reset(self, context: SchedulerContext) -> None:
        """Load the network and check that it was made for these task types and resources."""
        self.reset_on(SiteTables(context))

    def reset_on(self, site: SiteTables) -> None:
        """The same with tables that the caller has made."""
        self.counters = dict.fromkeys(self.COUNTERS, 0)
        self.stages = self._make_stages(site)
        for stage in self.stages:
            stage.reset(site, self.counters)

    def _make_stages(self, site: SiteTables) -> tuple[Stage, ...]:
        """The stages of the pipeline, in their order, without those that are left out."""
        single = site.context.mode is Mode.SINGLE
        chooser, name = self._make_chooser(site)
        core = self._kept(chooser, Conflicts())
        stages = core
        if name == DEFAULT_PIPELINE:
            stages = (*self._kept(Waiting(self._max_wait)), *core, *(self._kept(Again(core)) if single else ()))
        return (*stages, *(self._kept(Lends(every_turn_is_last=single)) if self._lend else ()))

    def _make_chooser(self, site: SiteTables) -> tuple[Stage, str]:
        """The stage that chooses what starts, and the name of its pipeline."""
        self._network = None
        if not self._uses_network:
            return GreedyChoice(), self._pipeline or DEFAULT_PIPELINE
        self._network = load_model(self._model or choose_model(site.context))
        card = self._network.card
        warn_outside(card, site)
        chooser = NetworkChoice(self._network, site.context.seed, self._budget_ms, self.clock)
        return chooser, self._pipeline or card.pipeline

    def _kept(self, *stages: Stage) -> tuple[Stage, ...]:
        """These stages without those that are left out."""
        return tuple(stage for stage in stages if stage.name not in self._without)

    def learn(self, context: SchedulerContext) -> None:
        """Use new profiles from now on, in every stage."""
        self.learn_from(SiteTables(context))

    def learn_from(self, site: SiteTables) -> None:
        """The same with tables that the caller has made."""
        for stage in self.stages:
            stage.learn(site)

    @property
    def card(self) -> Card | None:
        """The card of the model in use; None without a network."""
        return None if self._network is None else self._network.card

    def decide(self, snapshot: Snapshot) -> Decision:
        """Play one turn of all agents: each stage plans further."""
        for stage in self.stages:
            snapshot = stage.observe(snapshot)
        plan = Plan(snapshot)
        for stage in self.stages:
            plan = stage.apply(plan)
        for start in plan.starts:
            for name in start.because:
                self.counters[name] += 1
        self._last = plan
        return plan.decision

    def explain(self, top: int = 3) -> Explanation:
        """Explain the last decision, with the ``top`` allocations of each task; changes nothing."""
        chooser = next((stage for stage in self.stages if isinstance(stage, NetworkChoice)), None)
        if self._network is None or chooser is None or chooser.seen is None:
            raise ConfigError(
                "tapfinger: no network has decided, so there is nothing to explain; leave out network=none and "
                "without=network"
            )
        encoded, plan = chooser.encoded(), self._last
        because = tuple(start.because for start in plan.starts)
        found = explain(self._network, encoded.inputs, encoded.task, chooser.decode, chooser.seen, plan.decision, top)
        return replace(found, because=because)
