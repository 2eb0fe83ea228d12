"""TapFinger: one agent per cluster, all run by one exported network; who gets a contested task is Bayes' rule.

Needs no torch: the network is an ONNX file. Speed profiles are used only by the guard rails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from tapfinger.core.conflict import resolve
from tapfinger.core.contract import VOID, Decision, Mode, Placement, Proposal, SchedulerContext, Snapshot
from tapfinger.errors import ConfigError
from tapfinger.policy.card import MAX_WAIT, Card
from tapfinger.policy.explain import Explanation, explain
from tapfinger.policy.exported import best_actions, load_model, shipped_models
from tapfinger.policy.profile_inputs import SCHEMA as PROFILES
from tapfinger.schedulers.eyes import make_eyes
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.guards import Ageing, SizeLimit, TimeBudget
from tapfinger.schedulers.lateness import LateFirst, Lateness
from tapfinger.schedulers.lending import Lending
from tapfinger.schedulers.moving import Moving
from tapfinger.schedulers.outside import warn_outside
from tapfinger.schedulers.seniority import Seniority
from tapfinger.schedulers.sharing import Sharing

_log = logging.getLogger(__name__)

#: Waiting tasks per cluster beyond which the universal model is not asked.
_CROWD = 8.0


class TapFinger:
    """The learned scheduler: a network chooses each cluster's next task and what it gets.

    Guard rails (``guards.py``): tasks that have waited too long come first, whatever the network says;
    where the network takes too long or fails, Greedy decides for the rest of the slot.
    """

    one_shot = False
    #: Passes of the network in this run that raised or gave no numbers.
    failed = 0
    #: Slots of this run that were left to Greedy, for whatever reason.
    fallbacks = 0
    #: Slots of this run that were left to the thrifty Greedy because many tasks waited.
    crowded = 0
    #: Whether tasks share their clusters in this run.
    shares = False

    def __init__(
        self,
        model: str = "",
        max_wait: float | None = None,
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

        A task that has waited ``max_wait`` times its ideal duration (None: 40) is started as soon as it fits, and
        a cluster is held for it if it does not fit; while few tasks wait, one that has waited ``calm_wait`` times that.
        Before, while few tasks wait, a size at which it would run more than ``max_stretch`` times that duration is
        refused; 0: any size will do. None: as the model's card says; if only ``max_wait`` is given, it always holds.

        Passes of the network beyond ``budget_ms`` milliseconds in one slot are replaced by Greedy; 0: no limit, so that
        the same seed gives the same decisions on any machine.

        ``lend``: what is spare is lent to running tasks (``lending.py``), which asks of tasks that they can be resized;
        None: only by models that know tasks by their speed. Those of one scenario size a task once, as in the paper.

        ``share``: tasks share their cluster (``sharing.py``) instead; None: if they may be lent something and small
        sizes are much more efficient than fast ones here.

        While more than ``crowd`` tasks wait per cluster, a thrifty Greedy decides; 0: never; None: at 8 where the model
        is for any site, since that has not learnt enough of long queues, and tasks do not share; never otherwise.

        ``seniority``: an older task of the same type goes first where the network would start a younger one.

        ``again``: in single-task mode, clusters that lost a task to another choose again in the same slot; None: only
        with models that know tasks by their speed. With those of one scenario they wait, as in the paper.

        ``move``: a start goes to the cluster that loses least by it (``moving.py``); None: only with such models.

        ``late_first``: tasks that will take longer than nearly all did before go first where that costs little
        (``lateness.py``); None: only with such models, and if neither ``max_wait`` nor ``calm_wait`` is given.
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
            if value is None:
                continue
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"tapfinger: {name} = {value!r} must be a number, zero or more")
        self._model = model
        self._max_wait, self._calm_wait, self._max_stretch = max_wait, calm_wait, max_stretch
        self._ageing = Ageing(MAX_WAIT)
        self._size_limit = SizeLimit(0.0)
        self._seniority = Seniority() if seniority else None
        self._budget = TimeBudget(budget_ms)
        self._greedy = Greedy()
        self._lend, self._share, self._crowd, self._choose_again, self._move = lend, share, crowd, again, move
        self._late_first = late_first
        self._late_starts = LateFirst()
        self._sharing = Sharing()
        # Saves resources and takes slow sizes: what long queues ask for.
        self._thrifty = Greedy(calm=0.0, patience=5.0)

    def reset(self, context: SchedulerContext) -> None:
        """Load the network and check that it was made for these task types and resources."""
        self._network = load_model(self._model or _choose(context))
        card = self._network.card
        self._eyes = make_eyes(context, card)
        warn_outside(card, context)
        self._accelerator = card.size("accelerator")
        self._rng = np.random.default_rng(context.seed) if card.network == "no-pointer" else None
        knows_speeds = card.schema == PROFILES
        self._size_limit = SizeLimit(card.max_stretch if self._max_stretch is None else self._max_stretch)
        self._size_limit.reset(context)
        if self._seniority is not None:
            self._seniority.reset()
        self._budget.reset()
        self._greedy.reset(context)
        self._thrifty.reset(context)
        self._single = context.mode is Mode.SINGLE
        # In multi-task mode there is another turn in any case.
        self._again = self._single and (knows_speeds if self._choose_again is None else self._choose_again)
        self._moving = Moving() if (knows_speeds if self._move is None else self._move) else None
        if self._moving is not None:
            self._moving.reset(context)
        self._lending = Lending() if (knows_speeds if self._lend is None else self._lend) else None
        if self._lending is not None:
            self._lending.reset(context)
        self._sharing.reset(context)
        pays = self._lending is not None and self._sharing.pays
        self.shares = pays if self._share is None else self._share
        self._reset_ageing(context, card, knows_speeds)
        usual = _CROWD if knows_speeds and not self.shares else 0.0
        #: So many waiting tasks are a crowd.
        self._many = (usual if self._crowd is None else self._crowd) * len(context.clusters) or math.inf
        #: The last slot that Greedy has planned.
        self._planned = -1
        self.failed = self.fallbacks = self.crowded = 0

    def _reset_ageing(self, context: SchedulerContext, card: Card, knows_speeds: bool) -> None:
        max_wait = MAX_WAIT if self._max_wait is None else self._max_wait
        usual = card.max_wait if self._max_wait is None else max_wait
        # A bound that was not chosen for this site, nor by its owner.
        adapt = knows_speeds and self._calm_wait is None and self._max_wait is None
        self._lateness = Lateness(context) if (adapt if self._late_first is None else self._late_first) else None
        calm_wait = usual if self._calm_wait is None else self._calm_wait
        # Where tasks share, nearly all start at once; who is late gets more of the cluster instead.
        self._ageing = Ageing(max_wait, calm_wait, adapt, None if self.shares else self._lateness)
        self._ageing.reset(context)
        self._late_starts.reset(context)

    def learn(self, context: SchedulerContext) -> None:
        """The guards look at profiles, and so does a network that knows tasks by them."""
        self._eyes.learn(context)
        self._ageing.learn(context)
        self._late_starts.learn(context)
        if self._lateness is not None:
            self._lateness.learn(context)
        self._size_limit.learn(context)
        self._greedy.learn(context)
        self._thrifty.learn(context)
        if self._moving is not None:
            self._moving.learn(context)
        if self._lending is not None:
            self._lending.learn(context)
        self._sharing.learn(context)

    @property
    def card(self) -> Card:
        """Of the model in use."""
        return self._network.card

    @property
    def forced(self) -> int:
        """Overdue tasks started in this run without asking the network."""
        return self._ageing.forced

    @property
    def holds(self) -> int:
        """How often in this run a cluster was held for an overdue task."""
        return self._ageing.holds

    @property
    def lent(self) -> int:
        """How often in this run a running task was lent something."""
        return 0 if self._lending is None else self._lending.lent

    @property
    def refused(self) -> int:
        """Proposals of the network in this run with a size that is far too slow."""
        return self._size_limit.refused

    @property
    def exchanged(self) -> int:
        """Starts of the network in this run that were given to an older task of the same type."""
        return 0 if self._seniority is None else self._seniority.exchanged

    @property
    def moved(self) -> int:
        """Starts of the network in this run that went to another cluster."""
        return 0 if self._moving is None else self._moving.moved

    @property
    def late_starts(self) -> int:
        """Starts of the network in this run that were given to a task that is late for this site."""
        return self._late_starts.taken

    @property
    def late(self) -> int:
        """Slots of this run in which the network used up its time."""
        return self._budget.late

    def decide(self, snapshot: Snapshot) -> Decision:
        """One turn of all agents, after the tasks that are overdue; when nothing more starts, what is spare is lent."""
        if self._lateness is not None:
            self._lateness.see(snapshot)
        if self.shares:
            late = math.inf if self._lateness is None else self._lateness.limit
            return VOID if self._sharing.finished(snapshot) else self._sharing.decide(snapshot, self._fresh_turn, late)
        if self._lending is None:
            return self._turn(snapshot)
        if self._lending.finished(snapshot):
            return VOID
        decision = self._turn(self._lending.returned(snapshot))
        return self._lending.lend(snapshot, decision, last=self._single or not decision.placements)

    def _fresh_turn(self, snapshot: Snapshot) -> Decision:
        """A turn that does not mind whether Greedy has planned this slot before: it is looked at more than once."""
        self._planned = -1
        return self._turn(snapshot)

    def _turn(self, snapshot: Snapshot) -> Decision:
        self._eyes.count(snapshot)
        overdue, rest = self._ageing.start(snapshot)
        decision = self._decide(rest)
        steps = self._steps
        whole = replace(decision, placements=overdue + decision.placements)
        if self._again:
            whole = self._ask_again(rest, decision, whole)
        self._last = rest, overdue, steps, whole
        return whole

    def _ask_again(self, snapshot: Snapshot, decision: Decision, whole: Decision) -> Decision:
        """Clusters that got nothing choose among the tasks that are left, until nobody loses or starts anything.

        ``decision``: what was decided on the snapshot, a part of the ``whole`` so far.
        """
        while decision.placements and decision.lost:
            snapshot = snapshot.after(decision.placements)
            decision = self._decide(snapshot)
            whole = Decision(whole.placements + decision.placements, lost=whole.lost + decision.lost)
        return whole

    def explain(self, top: int = 3) -> Explanation:
        """Why the last decision was taken, with the ``top`` allocations of each task; changes nothing."""
        seen, overdue, steps, whole = self._last
        sight = self._eyes.look(seen)
        granted, late_first, exchanged, moved = steps
        first = Decision(overdue + granted.placements, lost=granted.lost)
        found = explain(self._network, sight.inputs, sight.task, self._eyes.meaning, seen, first, top)
        return replace(
            found,
            decision=whole,
            late=_changed(granted.placements, late_first),
            older=_changed(late_first, exchanged),
            moved=_changed(exchanged, moved),
            second=whole.placements[len(first.placements) :],
        )

    def _decide(self, snapshot: Snapshot) -> Decision:
        """What the network starts, or Greedy in its place; then who of equals, and where."""
        granted = self._grant(snapshot)
        late_first = granted.placements
        # A task that is drawn is to be any task.
        chosen = self._rng is None and self._planned != snapshot.slot
        if chosen and self._lateness is not None and late_first:
            late = self._ageing.late(snapshot)
            late_first = self._late_starts.put_first(late_first, late, self._lateness, self._choice)
        exchanged = late_first
        if chosen and self._seniority is not None:
            exchanged = self._seniority.put_first(exchanged, snapshot)
        moved = exchanged if self._moving is None else self._moving.move(exchanged, snapshot)
        self._steps = granted, late_first, exchanged, moved
        return replace(granted, placements=moved)

    def _grant(self, snapshot: Snapshot) -> Decision:
        if self._planned == snapshot.slot:
            return VOID  # Greedy plans a slot as a whole
        if len(snapshot.queue) > self._many:
            self.crowded += 1
            self._planned = snapshot.slot
            return self._thrifty.decide(snapshot)
        proposals = self._propose(snapshot) if self._budget.allows(snapshot.slot) else None
        if proposals is None:
            self.fallbacks += bool(snapshot.queue)
            self._planned = snapshot.slot
            return self._greedy.decide(snapshot)
        proposals = self._size_limit.keep(proposals, snapshot.queue)
        wanted = {proposal.task for proposal in proposals}
        minimum = {task.id: task.type.minimum for task in snapshot.queue if task.id in wanted}
        return resolve(proposals, snapshot.free, minimum)

    def _propose(self, snapshot: Snapshot) -> list[Proposal] | None:
        """What each cluster wants; clusters that are void are left out. None where the network fails."""
        begin = self._budget.begin()
        sight = self._eyes.see(snapshot)
        if sight is None:
            return []
        inputs = sight.inputs
        try:
            scores = self._network.run(inputs)
        except Exception as error:  # onnxruntime's errors have no common base
            self._fail(snapshot.slot, str(error))
            return None
        acts = best_actions(scores, inputs, self._accelerator, self._rng)
        self._seen = sight, scores
        self._budget.end(begin)
        if not np.isfinite(acts.score).all():
            self._fail(snapshot.slot, "its scores are not numbers")
            return None
        places = inputs.startable.shape[2]
        return [
            Proposal(n, int(sight.task[n, place]), self._eyes.meaning(inputs, n, place, amounts), score)
            for n, (place, amounts, score) in enumerate(
                zip(acts.place[0].tolist(), acts.amounts[0].tolist(), acts.score[0].tolist(), strict=True)
            )
            if place < places
        ]

    def _choice(self, cluster: int, tasks: Collection[int]) -> Placement | None:
        """The one of these tasks that the network likes best there, at the size it would get."""
        sight, scores = self._seen
        inputs = sight.inputs
        places = inputs.startable.shape[2]
        wanted = inputs.startable[0, cluster] & np.isin(sight.task[cluster, :places], list(tasks))
        if not wanted.any():
            return None
        logits = np.full_like(scores.task_logits, -np.inf)
        logits[0, :, places] = 0.0  # the other clusters are void
        logits[0, cluster] = np.where(np.append(wanted, False), scores.task_logits[0, cluster], -np.inf)
        acts = best_actions(scores._replace(task_logits=logits), inputs, self._accelerator)
        place, amounts = int(acts.place[0, cluster]), acts.amounts[0, cluster].tolist()
        if place == places:
            return None  # no numbers
        task = int(sight.task[cluster, place])
        return Placement(task, cluster, self._eyes.meaning(inputs, cluster, place, amounts))

    def _fail(self, slot: int, reason: str) -> None:
        # Loud once per run: a network that is broken mostly stays so.
        level = logging.DEBUG if self.failed else logging.WARNING
        _log.log(level, "slot %d: the network failed (%s); greedy decides", slot, reason)
        self.failed += 1


def _changed(before: Sequence[Placement], after: Sequence[Placement]) -> tuple[Placement, ...]:
    return tuple(new for old, new in zip(before, after, strict=True) if new != old)


#: The model that fits any site.
UNIVERSAL = "universal"


def _choose(context: SchedulerContext) -> str:
    """The shipped model for these task types, clusters and this mode; elsewhere the universal one."""
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
    """Whether a shipped model is for this site, or for any."""
    cards = shipped_models()
    return UNIVERSAL in cards or any(_is_for(card, context) for card in cards.values())


def _is_for(card: Card, context: SchedulerContext) -> bool:
    """A scenario's model is better than the universal one at home and worse elsewhere: on larger clusters, another
    number of them (up to 10 % on 6 and on 100 equal clusters), and in the other mode.

    Ablations and other variants ship to be measured; nobody gets one unasked.
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
    """The model's own clusters; or as many with less in all: so is a higher load, if it was trained at such ones."""
    if card.capacities == sorted(capacities):
        return True
    heaviest = max(card.training.get("loads", (1.0,)))
    mine, its = (np.sum(amounts, axis=0) for amounts in (capacities, card.capacities))
    return len(capacities) == len(card.capacities) and bool(np.all((mine < its) & (mine * heaviest >= its)))
