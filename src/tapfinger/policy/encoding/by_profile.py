"""Encoder of schema ``profiles``: snapshots or batched worlds of any site to inputs, and menu places to sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tapfinger.core.contract import Mode, Placement, SchedulerContext, Snapshot
from tapfinger.core.feasibility import can_start
from tapfinger.core.model import Noise, Resources, TaskType
from tapfinger.observation import GraphObs, Observer
from tapfinger.policy.encoding.base import AdvisedWorlds, Adviser, EncodedSnapshot, StateEncoder
from tapfinger.policy.encoding.features import write
from tapfinger.policy.encoding.inputs import Bools, Floats, Inputs, Ints, batch_of_one, rows_of
from tapfinger.policy.encoding.profile_features import (
    CLUSTER,
    COLUMN_COUNTS,
    FIT,
    PAIR,
    PROFILES,
    RUNNING,
    SIZE,
    SIZE_COLUMNS,
    TYPE,
    WAITING,
    MenuState,
    ProfileState,
    RunningState,
    SiteFacts,
    SizeFacts,
    TypeFacts,
)
from tapfinger.policy.encoding.rivals import emptiest_first, match, ranks, starters_of
from tapfinger.profiles.durations import mean_slots
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.profiles.size_menus import BUCKETS, DEPTH, NOWHERE, Menus

#: Slots over which arriving work is averaged.
WINDOW = 100

#: Largest absolute value of a feature of a type or a size.
_MOST = 4.0

#: Points at which a type's speed is given, as shares of the way from the minimum to the largest useful size.
_CURVE = {"minimum": 0.0, "eighth": 0.125, "quarter": 0.25, "half": 0.5, "largest": 1.0}

# fmt: off
_WIDTHS: Final = {kind: table.width(COLUMN_COUNTS) for kind, table in PROFILES.tables.items()}
_WRITERS: Final = {
    kind: table.writers(COLUMN_COUNTS)
    for kind, table in {"cluster": CLUSTER, "waiting": WAITING, "running": RUNNING, "fit": FIT, "pair": PAIR}.items()
}


class ArrivalWindow:
    """The tasks that arrived over the last slots, as observed in snapshots."""

    def __init__(self) -> None:
        """Start with no arrivals."""
        self._arrived: deque[tuple[int, str]] = deque()  # slot and type
        self._first = -1  # the slot of the first snapshot
        self._last = -1  # the latest slot whose arrivals are counted

    def observe(self, snapshot: Snapshot) -> None:
        """Record what arrived in this slot."""
        if snapshot.slot == self._last:
            return
        if self._first < 0:
            self._first = snapshot.slot
        for task in snapshot.arrived_since(self._last):
            self._arrived.append((task.arrival, task.type.name))
        self._last = snapshot.slot
        while self._arrived and self._arrived[0][0] <= snapshot.slot - WINDOW:
            self._arrived.popleft()

    def recent(self, slot: int, kind: Mapping[str, int]) -> tuple[Ints, Bools, Ints]:
        """As in AdvisedWorlds.recent_arrivals, for one world."""
        kinds = np.array([[kind[name] for _, name in self._arrived]], dtype=np.int64)
        return kinds, np.ones(kinds.shape, dtype=np.bool_), np.array([min(slot - self._first + 1, WINDOW)])


class ProfileEncoder(StateEncoder):
    """Encodes states of one site."""

    schema = PROFILES

    def __init__(
        self,
        site: SiteTables,
        pending: int = 10,
        advisers: Sequence[Adviser] = (),
        known: Mapping[str, Sequence[str]] | None = None,
        who: str = "the model",
    ) -> None:
        """``advisers``: one for each of ADVISERS, to encode snapshots; batched worlds bring their own advice.

        ``known`` and ``who``: as in StateEncoder.
        """
        super().__init__(COLUMN_COUNTS, pending, known, who)
        self._advisers = tuple(advisers)
        self._arrivals = ArrivalWindow()
        self.learn(site)

    def learn(self, site: SiteTables) -> None:
        """As in StateEncoder; recorded arrivals are kept."""
        context, menus = site.context, site.menus
        self.menus = menus
        for adviser in self._advisers:
            adviser.learn_from(site)
        self._observer = Observer(context.clusters, context.task_types, self.pending)
        speeds, *_, resources = menus.allocation.shape
        types = len(menus.minimum)
        self._resources, self._types = resources, types
        #: (T+1, N) which speed each type has on each cluster; the last one is that of no task.
        self._speed = np.concatenate([menus.speed, np.full_like(menus.speed[:1], speeds)])
        self._size = np.maximum(menus.capacity, 1).astype(np.float32)
        #: (S+1, BUCKETS, DEPTH, R) allocations; those of no task never fit.
        self._allocation = np.concatenate([menus.allocation, np.full_like(menus.allocation[:1], NOWHERE)])
        #: The same, flattened: ``Inputs.size`` indexes into it.
        self._flat = self._allocation.reshape(-1, resources)
        self._make_offers(np.concatenate([menus.slots, menus.slots[:1]]))
        self._minimum = np.concatenate([menus.minimum, np.zeros((1, resources), dtype=np.int64)])

        self._site = self._facts(context)

    def _make_offers(self, slots: Floats) -> None:
        """Tables to find the sizes that fit; ``slots``: (S+1, BUCKETS, DEPTH)."""
        here = self._speed.T  # (N, T+1): a cluster needs the speeds of its own hardware only
        #: R times (DEPTH, N, T+1, BUCKETS): amounts. With DEPTH in front, comparisons run over long rows.
        self._amounts_at = [
            np.ascontiguousarray(np.moveaxis(self._allocation[here, ..., r], 3, 0)) for r in range(self._resources)
        ]
        #: (N, T+1, BUCKETS, DEPTH) the sizes of a bucket, fastest first.
        self._fastest = np.argsort(slots, axis=2, kind="stable")[here]
        #: (N, T+1) whether the menu begins with the fastest size.
        self._several = np.append(self.menus.several, False)[here]

    def _facts(self, context: SchedulerContext) -> SiteFacts:
        menus = self.menus
        relative = np.log((menus.capacity + 1e-3) / menus.mean_capacity) / 2.0
        with np.errstate(divide="ignore"):
            gap = np.log(menus.ideal_on / menus.ideal[:, None]).clip(0.0, 4.0)
        return SiteFacts(
            accelerator=menus.accelerator,
            single=float(context.mode is Mode.SINGLE),
            usual=menus.usual,
            relative_accelerator=relative[:, menus.accelerator].clip(-2, 2),
            relative_least=relative.min(axis=1).clip(-2, 2),
            ideal=np.append(menus.ideal, 1.0).astype(np.float32),
            gap=np.concatenate([gap, np.zeros((1, len(self._size)))]).astype(np.float32),
            least_cost=(np.append(menus.least_cost, 0.0) / menus.usual).astype(np.float32),
            types=self._type_rows(context),
            sizes=self._size_rows(),
        )

    def _type_rows(self, context: SchedulerContext) -> Floats:
        """(T+1, features of a type); the last row is for no task."""
        facts = [_type_facts(self.menus, t, context.noise) for t in context.task_types]
        rows = np.array([[feature.source(f) for feature in TYPE.features] for f in facts])
        return np.concatenate([rows, np.zeros_like(rows[:1])]).astype(np.float32).clip(-_MOST, _MOST)

    def _size_rows(self) -> Floats:
        """(sizes of all speeds and of no task, features of a size)."""
        menus = self.menus
        kind = np.arange(len(menus.slots)) % self._types
        real = np.isfinite(menus.slots)
        facts = SizeFacts(
            slots=np.where(real, menus.slots, 1.0),
            cost=np.where(real, menus.cost, 1.0),
            ideal=menus.ideal[kind, None, None],
            least_cost=menus.least_cost[kind, None, None],
            usual=menus.usual,
            doubt=menus.doubt,
        )
        columns = [np.where(real, feature.source(facts), 0.0) for feature in SIZE.features]
        static = np.stack(columns, axis=3).clip(-_MOST, _MOST)
        return np.concatenate([static, np.zeros_like(static[:1])]).reshape(-1, len(columns)).astype(np.float32)

    # ------------------------------------------------------------------ encoding

    def observe(self, snapshot: Snapshot) -> None:
        """As in StateEncoder."""
        self._arrivals.observe(snapshot)

    def encode_startable(self, snapshot: Snapshot) -> EncodedSnapshot | None:
        """As in StateEncoder."""
        if any(can_start(task, snapshot.clusters[n]) for task in snapshot.queue for n in task.eligible):
            return self.encode(snapshot)
        return None

    def encode(self, snapshot: Snapshot) -> EncodedSnapshot:
        """As in StateEncoder."""
        opinions = [adviser.decide(snapshot).placements for adviser in self._advisers]
        obs = self._observer.observe(snapshot, False, [{p.task: p.cluster for p in opinion} for opinion in opinions])
        load = self._load(*self._arrivals.recent(snapshot.slot, self.menus.kind))
        return EncodedSnapshot(obs.task, self.make(batch_of_one(obs), self._advised(snapshot, obs, opinions), load))

    def encode_batch(self, worlds: AdvisedWorlds, live: Ints) -> Inputs:
        """As in StateEncoder."""
        load = self._load(*worlds.recent_arrivals(live, WINDOW))
        return self.make(rows_of(worlds.observations, live), worlds.advice(live), load)

    def _advised(self, snapshot: Snapshot, obs: GraphObs, opinions: Sequence[Sequence[Placement]]) -> Ints:
        """As in AdvisedWorlds.advice, for one world."""
        place = np.full((1, *obs.task.shape, len(opinions)), -1, dtype=np.int64)
        kind = {task.id: self.menus.kind[task.type.name] for task in snapshot.queue}
        for a, opinion in enumerate(opinions):
            for placement in opinion:
                here = np.flatnonzero(obs.task[placement.cluster] == placement.task)
                if len(here):
                    size = self.menus.place_of(kind[placement.task], placement.cluster, placement.allocation)
                    place[0, placement.cluster, here[0], a] = size
        return place

    def _load(self, kinds: Ints, recent: Bools, slots: Ints) -> Any:
        """(B,) work that arrived per slot, as a share of what all clusters together can do."""
        work = (self.menus.least_cost[kinds] * recent).sum(axis=1)
        return work / np.minimum(slots, WINDOW) / len(self._size)

    def make(self, obs: Any, advised: Ints, load: Any) -> Inputs:
        """Inputs from ``obs``: arrays with the fields of observation.GraphObs and a leading batch axis."""
        place_mask = obs.task >= 0
        node = np.maximum(obs.node, 0)
        types, width = self._types, self._resources
        dummy = obs.pending_features[:, :, -1] == 1.0
        node_kind = np.where(dummy, types, obs.pending_features[:, :, width : width + types].argmax(axis=2))  # (B, M)
        rows = np.arange(len(node))[:, None, None]
        kind = np.where(place_mask, node_kind[rows, node], types)  # (B, N, K)
        free = obs.cluster_features[:, :, :-1].astype(np.int64)
        order = emptiest_first((free / self.menus.mean_capacity).sum(axis=2))
        seen = np.zeros(node_kind.shape, dtype=np.float32)
        np.add.at(seen, (np.broadcast_to(rows, node.shape)[place_mask], node[place_mask]), 1.0)
        can = obs.startable.astype(np.float32)
        rank = ranks(order)
        everywhere, emptier = starters_of(rank, node, obs.startable, node_kind.shape[1])
        menu = self._menu(free, kind, obs.startable, advised)
        state = ProfileState(
            obs=obs,
            site=self._site,
            clusters=node.shape[1],
            share=free / self._size,
            used_by_others=obs.others / self._size,
            others_change=(obs.others - obs.others_lately) / self._size,
            rank=rank,
            load=load,
            real=~dummy,
            node_kind=node_kind,
            seen=seen,
            kind=kind,
            copies=self._copies(free, kind) * place_mask,
            advised=advised,
            can=can,
            others=everywhere - can,
            emptier=emptier - can,
            matched=match(order, node, obs.startable, node_kind.shape[1]),
            running=self._running(obs),
            menu=menu,
        )
        return self._select(
            Inputs(
                cluster=_filled("cluster", "cluster", state, node.shape[:2]),
                pending=_filled("pending", "waiting", state, node_kind.shape, first=self._site.types[node_kind]),
                pending_mask=state.real,
                running=_filled("running", "running", state.running, state.running.mask.shape, state.running.mask),
                running_mask=state.running.mask,
                node=node,
                place_mask=place_mask,
                pair=_filled("pair", "pair", state, node.shape, place_mask),
                startable=obs.startable,
                minimum=np.zeros((*kind.shape, 1), dtype=np.int64),
                largest=np.maximum(menu.count - 1, 0)[..., None] * obs.startable[..., None],
                copies=state.copies.astype(np.float32),
                menu=_filled("menu", "fit", menu, menu.at.shape, menu.real, first=menu.rows),
                size=menu.size,
            )
        )

    def _copies(self, free: Ints, kind: Ints) -> Ints:
        least = self._minimum  # (T+1, R)
        with np.errstate(divide="ignore"):
            each = np.where(least > 0, free[:, :, None, :] // np.maximum(least, 1), 1 << 20)
        rows, agents = np.arange(len(kind))[:, None, None], np.arange(kind.shape[1])[None, :, None]
        return np.asarray(each.min(axis=3)[rows, agents, kind])

    def _running(self, obs: Any) -> RunningState:
        raw, menus = obs.running_features, self.menus
        width, types = self._resources, self._types
        mask = np.arange(raw.shape[2]) < obs.running_count[:, :, None]
        kind = raw[..., width : width + types].argmax(axis=3)
        speed = self._speed[kind, np.arange(raw.shape[1])[:, None]]
        share = raw[..., :width] / self._size[None, :, None, :]
        predicted = menus.predicted(speed, raw[..., :width].astype(np.int64), mask)
        left, most = menus.left(speed, predicted, raw[..., -1], obs.running_progress), share.max(axis=3)
        within = np.stack([left <= 1.0 + 1e-6, left <= menus.usual / 2.0, left <= menus.usual], axis=3)
        freed = ((most * mask)[..., None] * within).sum(axis=2).clip(0.0, 2.0)
        return RunningState(
            mask=mask,
            most=most,
            accelerator=share[..., menus.accelerator],
            left=left,
            predicted=predicted,
            elapsed=raw[..., -1],
            progress=obs.running_progress,
            doubt=menus.mean_doubt[speed],
            usual=menus.usual,
            freed_next=freed[..., 0],
            freed_soon=freed[..., 1],
            freed_later=freed[..., 2],
        )

    # -------------------------------------------------------------------- menus

    def _menu(self, free: Ints, kind: Ints, startable: Bools, advised: Ints) -> MenuState:
        """The sizes that fit, in the menu's order. ``kind``: (B, N, K) type of each place, T for none."""
        offered, chosen = self._offered(free)
        rows, agents = np.arange(len(kind))[:, None, None], np.arange(kind.shape[1])[None, :, None]
        speed = self._speed[kind, agents]
        # Offered sizes come first, in the menu's order.
        order = np.argsort(~offered, axis=3, kind="stable")[..., : self.menus.places]
        at = order[rows, agents, kind]  # (B, N, K, C): place on the whole menu
        count = offered.sum(axis=3)[rows, agents, kind] * startable
        real = np.arange(at.shape[3]) < count[..., None]
        inside = chosen[rows[..., None], agents[..., None], kind[..., None], at]
        size = (speed[..., None] * BUCKETS * DEPTH + inside) * real
        amounts = self._flat[size]  # (B, N, K, C, R)
        rows_of_sizes = self._site.sizes[size]
        of_free = (amounts / np.maximum(free, 1)[:, :, None, None, :]).clip(0.0, 2.0)
        return MenuState(
            at=at,
            real=real,
            count=count,
            size=size,
            of_free=of_free,
            of_free_most=of_free.max(axis=4).astype(np.float32),
            of_cluster=(amounts / self._size[:, None, None, :]).clip(0.0, 2.0).max(axis=4),
            rows=rows_of_sizes,
            cost=np.where(real, rows_of_sizes[..., SIZE_COLUMNS["cost"]], np.float32(9.0)),
            advised=advised,
            accelerator=self.menus.accelerator,
        )

    def _offered(self, free: Ints) -> tuple[Bools, Ints]:
        """(B, N, T+1, PLACES) which places of each type's menu are available now, and the size in each of them."""
        fits = np.ones((DEPTH, len(free), *self._several.shape, BUCKETS), dtype=np.bool_)
        for r, amounts in enumerate(self._amounts_at):
            fits &= amounts[:, None] <= free[..., r, None, None]
        one: Bools = np.logical_or.reduce(fits, axis=0)  # (B, N, T+1, BUCKETS)
        best = np.zeros(one.shape, dtype=np.int64)
        for depth in range(DEPTH - 1, 0, -1):
            best[fits[depth]] = depth
        best[fits[0]] = 0
        best += DEPTH * np.arange(BUCKETS)
        # Buckets are ranges of durations, so the fastest size of all is in the first bucket of which any size fits.
        bucket = one.argmax(axis=3)[..., None]  # (B, N, T+1, 1)
        agents, types = np.arange(one.shape[1])[:, None], np.arange(one.shape[2])
        inside = self._fastest[agents, types, bucket[..., 0]]  # (B, N, T+1, DEPTH)
        there = fits[inside, np.arange(len(free))[:, None, None, None], agents[..., None], types[:, None], bucket]
        fastest = np.take_along_axis(inside, there.argmax(axis=3)[..., None], axis=3) + DEPTH * bucket
        any_fits = one.any(axis=3) & self._several
        return np.concatenate([any_fits[..., None], one], axis=3), np.concatenate([fastest, best], axis=3)

    # ------------------------------------------------------------------- decoding

    def decode(self, inputs: Inputs, cluster: int, place: int, amounts: list[int]) -> Resources:
        """As in StateEncoder: the amount is a place on the menu."""
        return Resources(self._flat[inputs.size[0, cluster, place, amounts[0]]].tolist())

    def decode_batch(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """As in StateEncoder: amounts are places on menus."""
        batch, clusters, places = inputs.startable.shape
        extra = place.ndim - 2
        rows = np.arange(batch).reshape(-1, *[1] * (extra + 1))
        agents = np.arange(clusters).reshape(1, -1, *[1] * extra)
        there = np.minimum(place, places - 1)
        size = inputs.size[rows, agents, there, amounts[..., 0]]
        return np.where((place < places)[..., None], self._flat[size], 0)


def _filled(
    kind: str, writers: str, state: Any, shape: tuple[int, ...], mask: Bools | None = None, first: Floats | None = None
) -> Floats:
    """The features of a kind of node, 0 outside ``mask``; ``first``: looked-up columns that precede the others."""
    out = np.empty((*shape, _WIDTHS[kind]), dtype=np.float32)
    begin = 0 if first is None else first.shape[-1]
    if first is not None:
        out[..., :begin] = first
    write(_WRITERS[writers], out[..., begin:], state)
    if mask is not None:
        out *= mask[..., None]
    return out


def _type_facts(menus: Menus, t: TaskType, noise: Noise) -> TypeFacts:
    kind, options = menus.kind[t.name], menus.options.of[t.name]
    top = menus.capacity.max(axis=0)
    return TypeFacts(
        ideal=menus.ideal[kind],
        usual=menus.usual,
        least=np.asarray(t.minimum) / menus.mean_capacity,
        most=np.minimum(t.maximum, top) / menus.mean_capacity,
        accelerator=menus.accelerator,
        costs=(options[-1].cost, menus.least_cost[kind], options[0].cost),
        slots=_slots_on_the_way(t, noise, top, menus.accelerator),
        doubt=float(menus.mean_doubt[menus.usual_speed[kind]]),
    )


def _slots_on_the_way(t: TaskType, noise: Noise, top: Any, accelerator: int) -> dict[str, float]:
    """Slots at fixed allocations from the minimum to what fits the largest cluster; then one resource alone."""
    low = np.asarray(t.minimum)
    high = np.maximum(low, np.minimum(t.maximum, top))
    cells = {name: np.rint(low + share * (high - low)).astype(int) for name, share in _CURVE.items()}
    only = np.arange(len(low)) == accelerator
    cells |= {"accelerator only": np.where(only, high, low), "others only": np.where(only, low, high)}
    slots = mean_slots(t.profile, noise)
    return {name: float(slots[t.profile.index(tuple(cell.tolist()))]) for name, cell in cells.items()}
