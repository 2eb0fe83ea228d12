"""TapFinger: one agent per cluster, all run by one exported network; Bayes' rule decides who gets a contested task.

Needs no torch: the network is an ONNX file. The paper's kind of network knows tasks by their type; a model for any site
knows them by their speed profiles, and so do the rules around both.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from tapfinger.core.conflict import crowded_out, resolve
from tapfinger.core.contract import VOID, Decision, Mode, Placement, Proposal, SchedulerContext, Snapshot
from tapfinger.errors import ConfigError
from tapfinger.policy.actions import best_actions
from tapfinger.policy.card import MAX_WAIT, Card
from tapfinger.policy.encoding.for_card import encoder_for
from tapfinger.policy.encoding.profile_features import PROFILES
from tapfinger.policy.explain import Explanation, explain
from tapfinger.policy.exported import load_model, shipped_models
from tapfinger.profiles.greedy_options import THRIFTY_GREEDY
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers import counters
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.greedy_features import make_advisers
from tapfinger.schedulers.guards import Ageing, SizeLimit, TimeBudget
from tapfinger.schedulers.lateness import LateFirst, Lateness
from tapfinger.schedulers.lending import Lending
from tapfinger.schedulers.model_domain import warn_outside
from tapfinger.schedulers.moving import Moving
from tapfinger.schedulers.seniority import Seniority
from tapfinger.schedulers.sharing import Sharing, sharing_pays

_log = logging.getLogger(__name__)

#: Waiting tasks per cluster beyond which a model for any site is not asked: it has not learnt enough about such queues.
VERY_LONG_QUEUE = 8.0

_T = TypeVar("_T")


class _Rule(Protocol):
    def learn(self, site: SiteTables) -> None: ...


class TapFinger:
    """The learned scheduler: a network chooses each cluster's next task and its allocation.

    Guard rails (``guards.py``): tasks that have waited too long come first, whatever the network says;
    if the network takes too long or fails, Greedy decides for the rest of the slot.
    """

    one_shot = False
    #: Every counter of ``counters``, with a sentence that says what it counts.
    COUNTERS: ClassVar[Mapping[str, str]] = counters.COUNTERS
    #: Whether tasks share their clusters in this run.
    shares = False

    def __init__(
        self,
        model: str = "",
        max_wait: float = MAX_WAIT,
        calm_wait: float | None = None,
        max_stretch: float | None = None,
        budget_ms: float = 0.0,
        lend: bool | None = None,
        share: bool | None = None,
        crowd: float | None = None,
        seniority: bool = True,
        again: bool | None = None,
        move: bool | None = None,
        late_first: bool | None = None,
    ) -> None:
        """``model``: a shipped name or a .onnx file; without it, the shipped one that fits the task types best.

        Options that are None depend on the model. A "model for any site" knows tasks by their speed profiles; other
        models are for one scenario and follow the paper.

        ``max_wait``: a task that has waited this many times its ideal duration is overdue: it is started as soon as it
        fits, and a cluster is held for it if it does not fit.
        ``calm_wait``: the same while the queue is not long, if it is less than ``max_wait``. None: as the model's card
        says. A model for any site was not made for this one, so at the card's value a task must also have waited longer
        than is usual here.
        ``max_stretch``: while the queue is not long, sizes at which a task would run more than this many times its
        ideal duration are refused; 0: no limit. None: as the model's card says.
        ``budget_ms``: milliseconds in one slot after which Greedy decides instead of the network; 0: no limit, so that
        the same seed gives the same decisions on any machine.
        ``lend``: spare resources are lent to running tasks (``lending.py``), which must be able to resize. None: true
        with a model for any site, false with others.
        ``share``: tasks share their cluster (``sharing.py``) instead. None: true if ``lend`` is true, resizing is free
        and small sizes are much more efficient than fast ones; false otherwise.
        ``crowd``: while more tasks than this wait per cluster, a thrifty Greedy decides; 0: never. None: 8 with a model
        for any site where tasks do not share, 0 otherwise.
        ``seniority``: an older task of the same type goes first where the network would start a younger one.
        ``again``: in single-task mode, clusters that lost a task to another choose again in the same slot. None: true
        with a model for any site, false with others.
        ``move``: a start goes to the cluster that loses least by it (``moving.py``). None: true with a model for any
        site, false with others.
        ``late_first``: late tasks go first where that costs little (``lateness.py``). None: true with a model for any
        site, false with others.
        """
        switches = {"lend": lend, "share": share, "seniority": seniority, "again": again, "move": move}
        switches["late_first"] = late_first
        for name, choice in switches.items():
            if choice is not None and not isinstance(choice, bool):
                raise ConfigError(f"tapfinger: {name} = {choice!r} must be true or false")
        if not isinstance(model, str):
            raise ConfigError(f"tapfinger: model = {model!r} must be the name of a shipped model or a .onnx file")
        limits = {
            "max_wait": max_wait,
            "calm_wait": calm_wait,
            "max_stretch": max_stretch,
            "budget_ms": budget_ms,
            "crowd": crowd,
        }
        for name, value in limits.items():
            if value is None and name not in ("max_wait", "budget_ms"):
                continue
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"tapfinger: {name} = {value!r} must be a number, zero or more")
        self._model, self._budget_ms = model, budget_ms
        self._max_wait, self._calm_wait, self._max_stretch, self._crowd = max_wait, calm_wait, max_stretch, crowd
        self._lend, self._share, self._choose_again, self._move = lend, share, again, move
        self._puts_older_first, self._puts_late_first = seniority, late_first
        #: Clock in seconds; read only if there is a time budget.
        self.clock = time.perf_counter
        self.counters = counters.new_counters()
        self._greedy = Greedy()
        self._thrifty = Greedy(**THRIFTY_GREEDY)  # type: ignore[arg-type]

    def reset(self, context: SchedulerContext) -> None:
        """Load the network and check that it was made for these task types and resources."""
        self.reset_on(SiteTables(context))

    def reset_on(self, site: SiteTables) -> None:
        """The same with tables that the caller has made."""
        context = site.context
        self._network = load_model(self._model or _choose(context))
        card = self._network.card
        self._encoder = encoder_for(card, site, make_advisers())
        warn_outside(card, site)
        self._accelerator = card.size("accelerator")
        self._rng = np.random.default_rng(context.seed) if card.network == "no-pointer" else None
        self._single = context.mode is Mode.SINGLE
        for_any_site = card.schema == PROFILES.name
        # In multi-task mode there is always another turn.
        self._again = self._single and _either(self._choose_again, for_any_site)
        lends = _either(self._lend, for_any_site)
        self.shares = _either(self._share, lends and sharing_pays(site))
        crowd = _either(self._crowd, VERY_LONG_QUEUE if for_any_site and not self.shares else 0.0)
        #: Length of the queue beyond which the thrifty Greedy decides.
        self._longest_queue = crowd * len(context.clusters) or math.inf
        self._make_rules(site, for_any_site, lends)
        #: The last slot that Greedy has planned.
        self._planned = -1

    def _make_rules(self, site: SiteTables, for_any_site: bool, lends: bool) -> None:
        card, counts = self._network.card, counters.new_counters()
        self.counters = counts
        self._budget = TimeBudget(self._budget_ms, self.clock, counts)
        self._size_limit = SizeLimit(site, _either(self._max_stretch, card.max_stretch), counts)
        self._seniority = Seniority(counts) if self._puts_older_first else None
        self._moving = Moving(site, counts) if _either(self._move, for_any_site) else None
        self._lending = Lending(site, counts) if lends and not self.shares else None
        self._sharing = Sharing(site) if self.shares else None
        self._lateness = Lateness(site) if _either(self._puts_late_first, for_any_site) else None
        self._late_starts = LateFirst(site, counts)
        calm_wait = _either(self._calm_wait, card.max_wait)
        # The bound on the card of a model for any site was not chosen for this site.
        adapt = for_any_site and calm_wait == card.max_wait
        # Where tasks share, nearly all start at once; late ones get more of the cluster instead.
        late_starts_first = None if self.shares else self._lateness
        self._ageing = Ageing(site, self._max_wait, calm_wait, adapt, late_starts_first, counts)
        rules: tuple[_Rule | None, ...] = (
            self._size_limit,
            self._moving,
            self._lending,
            self._sharing,
            self._lateness,
            self._late_starts,
            self._ageing,
        )
        self._rules = [rule for rule in rules if rule is not None]
        for greedy in (self._greedy, self._thrifty):
            greedy.learn_from(site)

    def learn(self, context: SchedulerContext) -> None:
        """Use new profiles from now on, in the rules and in a model for any site."""
        self.learn_from(SiteTables(context))

    def learn_from(self, site: SiteTables) -> None:
        """The same with tables that the caller has made."""
        self._encoder.learn(site)
        for rule in self._rules:
            rule.learn(site)
        for greedy in (self._greedy, self._thrifty):
            greedy.learn_from(site)

    @property
    def card(self) -> Card:
        """The card of the model in use."""
        return self._network.card

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start overdue tasks, then play one turn of all agents; when nothing more starts, lend spare resources."""
        if self._lateness is not None:
            self._lateness.see(snapshot)
        if self._sharing is not None:
            if self._sharing.finished(snapshot):
                return VOID
            late_after = math.inf if self._lateness is None else self._lateness.late_after
            return self._sharing.decide(snapshot, self._fresh_turn, late_after)
        if self._lending is None:
            return self._turn(snapshot)
        if self._lending.finished(snapshot):
            return VOID
        decision = self._turn(self._lending.returned(snapshot))
        return self._lending.lend(snapshot, decision, last=self._single or not decision.placements)

    def _fresh_turn(self, snapshot: Snapshot) -> Decision:
        """A turn as if Greedy had not planned this slot yet: sharing plays a slot more than once."""
        self._planned = -1
        return self._turn(snapshot)

    def _turn(self, snapshot: Snapshot) -> Decision:
        self._encoder.observe(snapshot)
        overdue, rest = self._ageing.start(snapshot)
        decision = self._decide(rest)
        steps = self._steps
        whole = replace(decision, placements=overdue + decision.placements)
        if self._again:
            whole = self._ask_again(rest, decision, whole)
        self._last = rest, overdue, steps, whole
        return whole

    def _ask_again(self, snapshot: Snapshot, decision: Decision, whole: Decision) -> Decision:
        """Let clusters that lost a task choose among the remaining tasks, until none loses or none starts anything.

        ``decision``: the decision on the snapshot, a part of the ``whole`` so far.
        """
        while decision.placements and decision.lost:
            snapshot = snapshot.after(decision.placements)
            decision = self._decide(snapshot)
            whole = Decision(whole.placements + decision.placements, lost=whole.lost + decision.lost)
        return whole

    def explain(self, top: int = 3) -> Explanation:
        """Explain the last decision, with the ``top`` allocations of each task; changes nothing."""
        seen, overdue, steps, whole = self._last
        encoded = self._encoder.encode(seen)
        granted, late_first, exchanged, moved = steps
        first = Decision(overdue + granted.placements, lost=granted.lost)
        found = explain(self._network, encoded.inputs, encoded.task, self._encoder.decode, seen, first, top)
        return replace(
            found,
            decision=whole,
            late=_changed(granted.placements, late_first),
            older=_changed(late_first, exchanged),
            moved=_changed(exchanged, moved),
            second=whole.placements[len(first.placements) :],
        )

    def _decide(self, snapshot: Snapshot) -> Decision:
        """Starts of the network, or of Greedy in its place, changed by the rules on late tasks, age and cluster."""
        granted = self._grant(snapshot)
        late_first = granted.placements
        # The no-pointer ablation draws its task uniformly, and Greedy plans a slot as a whole: reordering undoes both.
        chosen = self._rng is None and self._planned != snapshot.slot
        if chosen and self._lateness is not None and late_first:
            late = self._ageing.late(snapshot)
            late_first = self._late_starts.put_first(late_first, late, self._lateness, self._choice)
            if crowded_out(late_first, snapshot.free, snapshot.spans):
                late_first = granted.placements  # a late task would take what a span was granted
        exchanged = late_first
        if chosen and self._seniority is not None:
            exchanged = self._seniority.put_first(exchanged, snapshot)
        moved = exchanged if self._moving is None else self._moving.move(exchanged, snapshot)
        self._steps = granted, late_first, exchanged, moved
        return replace(granted, placements=moved)

    def _grant(self, snapshot: Snapshot) -> Decision:
        if self._planned == snapshot.slot:
            return VOID  # Greedy plans a slot as a whole
        if len(snapshot.queue) > self._longest_queue:
            self.counters["crowded"] += 1
            self._planned = snapshot.slot
            return self._thrifty.decide(snapshot)
        proposals = self._propose(snapshot) if self._budget.allows(snapshot.slot) else None
        if proposals is None:
            self.counters["fallbacks"] += bool(snapshot.queue)
            self._planned = snapshot.slot
            return self._greedy.decide(snapshot)
        proposals = self._size_limit.keep(proposals, snapshot)
        wanted = {proposal.task for proposal in proposals}
        minimum = {task.id: task.type.minimum for task in snapshot.queue if task.id in wanted}
        return resolve(proposals, snapshot.free, minimum, snapshot.spans)

    def _propose(self, snapshot: Snapshot) -> list[Proposal] | None:
        """What each cluster wants; clusters that are void are left out. None where the network fails."""
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
        self._seen = encoded, scores
        self._budget.end(begin)
        if not np.isfinite(acts.score).all():
            self._fail(snapshot.slot, "its scores are not numbers")
            return None
        places = inputs.startable.shape[2]
        return [
            Proposal(n, int(encoded.task[n, place]), self._encoder.decode(inputs, n, place, amounts), score)
            for n, (place, amounts, score) in enumerate(
                zip(acts.place[0].tolist(), acts.amounts[0].tolist(), acts.score[0].tolist(), strict=True)
            )
            if place < places
        ]

    def _choice(self, cluster: int, tasks: Collection[int]) -> Placement | None:
        """The one of these tasks that the network prefers on the cluster, at the size it would get."""
        encoded, scores = self._seen
        inputs = encoded.inputs
        places = inputs.startable.shape[2]
        wanted = inputs.startable[0, cluster] & np.isin(encoded.task[cluster, :places], list(tasks))
        if not wanted.any():
            return None
        logits = np.full_like(scores.task_logits, -np.inf)
        logits[0, :, places] = 0.0  # the other clusters are void
        logits[0, cluster] = np.where(np.append(wanted, False), scores.task_logits[0, cluster], -np.inf)
        acts = best_actions(scores._replace(task_logits=logits), inputs, self._accelerator)
        place, amounts = int(acts.place[0, cluster]), acts.amounts[0, cluster].tolist()
        if place == places:
            return None  # the scores are not numbers
        task = int(encoded.task[cluster, place])
        return Placement(task, cluster, self._encoder.decode(inputs, cluster, place, amounts))

    def _fail(self, slot: int, reason: str) -> None:
        # Warn once per run: a broken network usually stays broken.
        level = logging.DEBUG if self.counters["failed"] else logging.WARNING
        _log.log(level, "slot %d: the network failed (%s); greedy decides", slot, reason)
        self.counters["failed"] += 1


def _either(option: _T | None, default: _T) -> _T:
    """The option if it was given, otherwise the default."""
    return default if option is None else option


def _changed(before: Sequence[Placement], after: Sequence[Placement]) -> tuple[Placement, ...]:
    return tuple(new for old, new in zip(before, after, strict=True) if new != old)


#: The model that fits any site.
UNIVERSAL = "universal"


def _choose(context: SchedulerContext) -> str:
    """The shipped model for these task types, clusters and this mode; the universal one if there is none."""
    cards = shipped_models()
    fitting = [card.name for card in cards.values() if _is_for(card, context)]
    if not fitting and UNIVERSAL not in cards:
        types = ", ".join(t.name for t in context.task_types)
        raise ConfigError(
            f"tapfinger: no shipped model is for the task types {types}, the resources "
            f"{', '.join(context.resources.names)}, these clusters and {context.mode.value}-task mode; train one and "
            f"give model=PATH.onnx (shipped: {', '.join(cards) or 'none'})"
        )
    return min(fitting, default=UNIVERSAL)


def has_model(context: SchedulerContext) -> bool:
    """Whether a shipped model is for this site, or for any site."""
    cards = shipped_models()
    return UNIVERSAL in cards or any(_is_for(card, context) for card in cards.values())


def _is_for(card: Card, context: SchedulerContext) -> bool:
    """Whether the model was made for this scenario.

    On its own scenario such a model is better than the universal one. Elsewhere it is worse: on larger clusters, with
    another number of clusters (by up to 10 % on 6 and on 100 equal ones), and in the other mode.

    Ablations and other variants ship to be measured; they are used only if asked for.
    """
    types = {t.name for t in context.task_types}
    same = set(card.task_types) == types and card.resources == tuple(context.resources.names)
    return (
        same
        and card.name == card.scenario.get("name")
        and card.scenario.get("mode") == context.mode.value
        and _has_seen(card, [tuple(context.resources.natural(c.capacity).values()) for c in context.clusters])
    )


def _has_seen(card: Card, capacities: list[tuple[float, ...]]) -> bool:
    """Whether the clusters are the model's own, or as many with less capacity in total.

    Less capacity is like a higher load, so it counts only if the model was trained at such loads.
    """
    if card.capacities == sorted(capacities):
        return True
    heaviest = max(card.training.get("loads", (1.0,)))
    mine, its = (np.sum(amounts, axis=0) for amounts in (capacities, card.capacities))
    return len(capacities) == len(card.capacities) and bool(np.all((mine < its) & (mine * heaviest >= its)))
