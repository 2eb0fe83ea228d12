"""Observation -> arrays of a network that knows tasks by their speed, not by their name. numpy only.

Everything is relative, so one set of weights serves any clusters, resources and task types. Sizes are chosen from a
menu (profiles.menus): the network is told of each size that fits how long it takes and what it costs. Of running tasks
it is told when they should end by their profile and by the progress they reported, never what only a simulator knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tapfinger.policy.inputs import Bools, Columns, Floats, Inputs, Ints, emptiest_first, match, ranks, starters_of
from tapfinger.profiles.menus import BUCKETS, DEPTH, NOWHERE, PLACES, SIZE_COLUMNS, TYPE_COLUMNS, Menus

#: Raised whenever the meaning or number of a column changes.
SCHEMA = "profiles-1"

#: How many greedies give advice.
ADVISERS = 3

_AGE_COLUMNS = 4
_PAIR_COLUMNS = 12 + ADVISERS
_MENU_COLUMNS = SIZE_COLUMNS + 8 + ADVISERS
_CLUSTER_COLUMNS = 20
_RUNNING_COLUMNS = 8

#: As inputs.HINTS: also what all clusters together have and wait for, and what greedies would do, who see them all.
HINTS = Columns(cluster=(14, 15, 16, 17, 18), pending=(-2, -1), pair=(3, 4, 5, 6, *range(12, _PAIR_COLUMNS)))

#: Counts are told by their logarithm, divided by this.
_LOG = 3.0


class Advice(NamedTuple):
    """What greedies would do in B states, beside what the state itself says."""

    place: Ints  # (B, N, K, ADVISERS) place on the whole menu of the size each would give, -1 where it starts nothing
    load: Any  # float (B,) work that arrived per slot lately, as a share of what all clusters together can do


class ProfileInputMaker:
    """Turns observations of one site into network inputs."""

    def __init__(self, menus: Menus, single: bool) -> None:
        """``single``: whether a cluster starts at most one task per slot."""
        self.menus = menus
        types, *_, resources = menus.allocation.shape
        self._resources, self._types, self._sizes = resources, types, BUCKETS * DEPTH
        self._single = float(single)
        self._accelerator = menus.accelerator
        size = np.maximum(menus.capacity, 1).astype(np.float32)
        self._size = size
        relative = np.log((menus.capacity + 1e-3) / menus.mean_capacity) / 2.0
        clusters = len(size)
        #: Columns of clusters that never change: capacity relative to the mean one, number of clusters, mode.
        self._fixed = np.empty((clusters, 4), dtype=np.float32)
        self._fixed[:, 0] = relative[:, self._accelerator].clip(-2, 2)
        self._fixed[:, 1] = relative.min(axis=1).clip(-2, 2)
        self._fixed[:, 2] = np.log(clusters) / _LOG
        self._fixed[:, 3] = self._single
        #: Rows of all types, then of none.
        self._rows = np.concatenate([menus.types, np.zeros((1, TYPE_COLUMNS))]).astype(np.float32).clip(-4, 4)
        static = np.concatenate([menus.static, np.zeros_like(menus.static[:1])])
        self._static = static.reshape(-1, SIZE_COLUMNS).astype(np.float32)
        #: (T+1, BUCKETS, DEPTH, R) allocations; none of those of no task fit.
        self.allocation = np.concatenate([menus.allocation, np.full_like(menus.allocation[:1], NOWHERE)])
        #: (T+1, sizes) each type's sizes, fastest first; whether its menu begins with the fastest.
        self._fastest = np.argsort(
            np.concatenate([menus.slots, menus.slots[:1]]).reshape(types + 1, -1), axis=1, kind="stable"
        )
        self._several = np.append(menus.several, False)
        #: The same, one behind the other: what ``Inputs.size`` points into.
        self.flat = self.allocation.reshape(-1, resources)
        self._ideal = np.append(menus.ideal, 1.0).astype(np.float32)
        with np.errstate(divide="ignore"):
            gap = np.log(menus.ideal_on / menus.ideal[:, None]).clip(0.0, 4.0)
        #: (T+1, N) how much longer the ideal is on this very cluster.
        self._gap = np.concatenate([gap, np.zeros((1, clusters))]).astype(np.float32)
        least = np.append(menus.least_cost, 0.0) / menus.usual
        self._least = least.astype(np.float32)
        self._minimum = np.concatenate([menus.minimum, np.zeros((1, resources), dtype=np.int64)])

    # ------------------------------------------------------------------ the whole

    def make(self, obs: Any, advice: Advice) -> Inputs:
        """``obs``: sim.layout.Observations, or an observation.GraphObs with a leading batch axis."""
        place_mask = obs.task >= 0
        node = np.maximum(obs.node, 0)
        types, width = self._types, self._resources
        dummy = obs.pending_features[:, :, -1] == 1.0
        node_kind = np.where(dummy, types, obs.pending_features[:, :, width : width + types].argmax(axis=2))  # (B, M)
        rows = np.arange(len(node))[:, None, None]
        kind = np.where(place_mask, node_kind[rows, node], types)  # (B, N, K)
        free = obs.cluster_features[:, :, :-1].astype(np.int64)
        order = emptiest_first((free / self.menus.mean_capacity).sum(axis=2))
        menu, size, count = self._menu(free, kind, obs.startable, advice.place)
        seen = np.zeros(node_kind.shape, dtype=np.float32)
        np.add.at(seen, (np.broadcast_to(rows, node.shape)[place_mask], node[place_mask]), 1.0)
        copies = self._copies(free, kind) * place_mask
        running, running_mask, soon = self._running(obs)
        return Inputs(
            cluster=self._cluster(obs, free, order, node_kind, soon, advice.load),
            pending=self._pending(obs, node_kind, seen),
            pending_mask=~dummy,
            running=running,
            running_mask=running_mask,
            node=node,
            place_mask=place_mask,
            pair=self._pair(obs, order, node, place_mask, kind, menu, count, copies, advice.place),
            startable=obs.startable,
            minimum=np.zeros((*kind.shape, 1), dtype=np.int64),
            largest=np.maximum(count - 1, 0)[..., None] * obs.startable[..., None],
            copies=copies.astype(np.float32),
            menu=menu,
            size=size,
        )

    def allocations(self, inputs: Inputs, place: Ints, amounts: Ints) -> Ints:
        """Places on menus -> amounts of resources. ``place`` (B, N, ...), K for void; ``amounts`` (B, N, ..., 1)."""
        batch, clusters, places = inputs.startable.shape
        extra = place.ndim - 2
        rows = np.arange(batch).reshape(-1, *[1] * (extra + 1))
        agents = np.arange(clusters).reshape(1, -1, *[1] * extra)
        there = np.minimum(place, places - 1)
        size = inputs.size[rows, agents, there, amounts[..., 0]]
        return np.where((place < places)[..., None], self.flat[size], 0)

    # ------------------------------------------------------------------- the parts

    def _menu(self, free: Ints, kind: Ints, startable: Bools, advised: Ints) -> tuple[Floats, Ints, Ints]:
        """(B, N, K, C, F) features of the sizes that fit, (B, N, K, C) which these are, (B, N, K) how many."""
        offered, chosen = self._offered(free)
        rows, agents = np.arange(len(kind))[:, None, None], np.arange(kind.shape[1])[None, :, None]
        # What is offered comes first, in the menu's order.
        order = np.argsort(~offered, axis=3, kind="stable")[..., : self.menus.places]
        at = order[rows, agents, kind]  # (B, N, K, C): place on the whole menu
        count = offered.sum(axis=3)[rows, agents, kind] * startable
        real = np.arange(at.shape[3]) < count[..., None]
        inside = np.take_along_axis(chosen[rows, agents, kind], at, axis=3)
        size = (kind[..., None] * self._sizes + inside) * real
        menu = np.empty((*at.shape, _MENU_COLUMNS), dtype=np.float32)
        menu[..., :SIZE_COLUMNS] = self._static[size]
        amounts = self.flat[size]  # (B, N, K, C, R)
        of_free = (amounts / np.maximum(free, 1)[:, :, None, None, :]).clip(0.0, 2.0)
        of_all = (amounts / self._size[:, None, None, :]).clip(0.0, 2.0)
        here = menu[..., SIZE_COLUMNS:]
        here[..., 0] = of_free.max(axis=4)
        here[..., 1] = of_free[..., self._accelerator]
        here[..., 2] = of_all.max(axis=4)
        here[..., 3] = (
            np.floor(1.0 / here[..., 0].clip(1e-3)).clip(0.0, 8.0) / 8.0
        )  # how many such tasks the room takes
        here[..., 4] = (1.0 - of_free).clip(0.0).max(axis=4)
        here[..., 5] = np.arange(at.shape[3]) == 0  # fastest that fits
        here[..., 6] = np.arange(at.shape[3]) == (count - 1)[..., None]  # slowest
        cost = np.where(real, menu[..., 3], 9.0)
        here[..., 7] = cost == cost.min(axis=3, keepdims=True)
        here[..., 8:] = at[..., None] == advised[:, :, :, None, :]
        menu *= real[..., None]
        return menu, size, count

    def _offered(self, free: Ints) -> tuple[Bools, Ints]:
        """(B, N, T+1, PLACES) which places of each type's menu there are now, and the type's size in each of them."""
        # (B, N, T+1, BUCKETS, DEPTH)
        fits: Bools = np.all(self.allocation <= free[:, :, None, None, None, :], axis=5)
        one: Bools = np.any(fits, axis=4)
        best = fits.argmax(axis=4) + DEPTH * np.arange(BUCKETS)
        flat = fits.reshape(*fits.shape[:3], -1)
        sorted_fits = np.take_along_axis(flat, np.broadcast_to(self._fastest, flat.shape), axis=3)
        first = sorted_fits.argmax(axis=3)
        fastest = self._fastest[np.arange(self._types + 1), first]
        any_fits = one.any(axis=3) & self._several
        return (
            np.concatenate([any_fits[..., None], one], axis=3),
            np.concatenate([fastest[..., None], best], axis=3),
        )

    def _copies(self, free: Ints, kind: Ints) -> Ints:
        least = self._minimum  # (T+1, R)
        with np.errstate(divide="ignore"):
            each = np.where(least > 0, free[:, :, None, :] // np.maximum(least, 1), 1 << 20)
        rows, agents = np.arange(len(kind))[:, None, None], np.arange(kind.shape[1])[None, :, None]
        return np.asarray(each.min(axis=3)[rows, agents, kind])

    def _running(self, obs: Any) -> tuple[Floats, Bools, Floats]:
        """Features of running tasks, which are real, and (B, N, 3) the share of each cluster that is free soon."""
        raw = obs.running_features
        width, types, menus = self._resources, self._types, self.menus
        mask = np.arange(raw.shape[2]) < obs.running_count[:, :, None]
        kind = raw[..., width : width + types].argmax(axis=3)
        share = raw[..., :width] / self._size[None, :, None, :]
        elapsed = raw[..., -1]
        predicted = menus.predicted(kind, raw[..., :width].astype(np.int64), mask)
        left = menus.left(kind, predicted, elapsed, obs.running_progress)
        features = np.empty((*kind.shape, _RUNNING_COLUMNS), dtype=np.float32)
        features[..., 0] = share.max(axis=3)
        features[..., 1] = share[..., self._accelerator]
        features[..., 2] = np.log1p(left) / _LOG
        features[..., 3] = (left / menus.usual / 2.0).clip(0.0, 2.0)
        features[..., 4] = (elapsed / np.maximum(predicted, 1.0)).clip(0.0, 2.0)
        features[..., 5] = obs.running_progress >= 0.0
        features[..., 6] = np.maximum(obs.running_progress, 0.0)
        features[..., 7] = menus.mean_doubt[kind]
        features *= mask[..., None]
        largest = share.max(axis=3) * mask
        within = np.stack([(left <= 1.0 + 1e-6), left <= menus.usual / 2.0, left <= menus.usual], axis=3)
        return features, mask, np.asarray((largest[..., None] * within).sum(axis=2).clip(0.0, 2.0))

    def _cluster(self, obs: Any, free: Ints, order: Ints, node_kind: Ints, soon: Floats, load: Any) -> Floats:
        batch, clusters, _ = free.shape
        features = np.empty((batch, clusters, _CLUSTER_COLUMNS), dtype=np.float32)
        share = free / self._size
        waiting = obs.pending_features[:, :, -1] == 0.0
        features[..., 0] = share.min(axis=2)
        features[..., 1] = share.mean(axis=2)
        features[..., 2] = share.max(axis=2)
        features[..., 3] = share[..., self._accelerator]
        features[..., 4:8] = self._fixed
        features[..., 8] = np.log1p(obs.waiting) / _LOG
        features[..., 9] = np.log1p(obs.cluster_features[:, :, -1]) / _LOG
        features[..., 10] = np.log1p(obs.running_count) / _LOG
        features[..., 11:14] = soon
        features[..., 14] = ranks(order) / clusters
        features[..., 15] = np.minimum(np.asarray(load), 3.0)[:, None]
        overdue = ((obs.age > 0) & waiting).sum(axis=1) / clusters
        features[..., 16] = np.log1p(overdue)[:, None]
        features[..., 17] = np.log1p(waiting.sum(axis=1) / clusters)[:, None]
        work = (self._least[node_kind] * waiting).sum(axis=1) / clusters
        features[..., 18] = np.log1p(work)[:, None] / 2.0
        features[..., 19] = obs.startable.any(axis=2)
        return features

    def _pending(self, obs: Any, kind: Ints, seen: Floats) -> Floats:
        features = np.empty((*kind.shape, TYPE_COLUMNS + _AGE_COLUMNS), dtype=np.float32)
        features[..., :TYPE_COLUMNS] = self._rows[kind]
        age = features[..., TYPE_COLUMNS:]
        age[..., 0] = np.log1p(obs.age) / _LOG
        age[..., 1] = (obs.age / self._ideal[kind]).clip(0.0, 8.0) / 4.0
        age[..., 2] = seen / len(self._size)
        age[..., 3] = 1.0 / np.maximum(seen, 1.0)
        return features

    def _pair(
        self,
        obs: Any,
        order: Ints,
        node: Ints,
        place_mask: Bools,
        kind: Ints,
        menu: Floats,
        count: Ints,
        copies: Ints,
        advised: Ints,
    ) -> Floats:
        """Of every (cluster, pending task): the queue, rivals, what fits here, and what greedies would do."""
        nodes = obs.pending_features.shape[1]
        clusters, places = node.shape[1:]
        startable = obs.startable
        pair = np.empty((*node.shape, _PAIR_COLUMNS), dtype=np.float32)
        can = startable.astype(np.float32)
        everywhere, emptier = starters_of(order, node, startable, nodes)
        agents = np.arange(clusters)[None, :, None]
        pair[..., 0] = np.log1p(np.arange(places)) / _LOG
        pair[..., 1] = np.log1p(can.cumsum(axis=2) - can) / _LOG
        pair[..., 2] = can
        pair[..., 3] = everywhere - can == 0.0
        pair[..., 4] = (everywhere - can) / clusters
        pair[..., 5] = (emptier - can) / clusters
        pair[..., 6] = match(order, node, startable, nodes)
        pair[..., 7] = menu[..., 0, 0]  # of the fastest size that fits
        pair[..., 8] = np.take_along_axis(menu[..., 3], np.maximum(count - 1, 0)[..., None], axis=3)[..., 0]
        pair[..., 9] = count / PLACES
        pair[..., 10] = self._gap[kind, agents]
        pair[..., 11] = np.log1p(copies) / _LOG
        pair[..., 12:] = advised >= 0
        pair *= place_mask[..., None]
        return pair
