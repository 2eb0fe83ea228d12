"""The features of schema ``profiles``: tasks are known by their speed, not by their name.

Everything is relative, so one set of weights serves any clusters, resources and task types. Sizes are chosen from a
menu (profiles.size_menus): for each size that fits, the network gets its duration and its cost. For running tasks it
gets the expected end, by their profile and their reported progress, never what only a simulator knows.
Several greedy schedulers give advice, which is given as features too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tapfinger.policy.encoding.features import Feature, FeatureTable, Schema
from tapfinger.policy.encoding.inputs import Bools, Floats, Ints
from tapfinger.profiles.greedy_options import ADVISERS
from tapfinger.profiles.size_menus import PLACES

#: Logarithms of counts and durations are divided by this.
_LOG = 3.0


# --------------------------------------------------------------------------------------------- task types, once a site


@dataclass(slots=True)
class TypeFacts:
    """What the features of one task type are computed from."""

    ideal: float  # slots of the fastest run at this site
    usual: float  # slots of the site's usual run
    least: Any  # (R,) minimum, as shares of a mean cluster
    most: Any  # (R,) largest useful amounts, as shares of a mean cluster
    accelerator: int
    costs: tuple[float, float, float]  # of the slowest, the cheapest and the fastest efficient size
    slots: Mapping[str, float]  # at some allocations between minimum and maximum, by name
    doubt: float

    def slowdown(self, where: str) -> float:
        """Logarithm of the slots at an allocation over the ideal duration, divided by 3."""
        return math.log(self.slots[where] / self.ideal) / 3.0


TYPE = FeatureTable(
    Feature("ideal", "log(1 + slots) / 3", "Shortest duration at this site.", lambda t: math.log1p(t.ideal) / 3.0),
    Feature("ideal_to_usual", "log(ratio) / 2",
            "Shortest duration, relative to the usual duration of a task at this site.",
            lambda t: math.log(t.ideal / t.usual) / 2.0),
    Feature("minimum", "share of a mean cluster",
            "Least size the task can run with: its largest share of any resource.",
            lambda t: float(t.least.max())),
    Feature("minimum_accelerator", "share of a mean cluster", "Least amount of the accelerator.",
            lambda t: float(t.least[t.accelerator])),
    Feature("maximum", "log(1 + share of a mean cluster)", "Largest useful size: its largest share of any resource.",
            lambda t: math.log1p(float(t.most.max()))),
    Feature("slowest_cost", "log(ratio) / 3",
            "Cost (slots x share of a cluster) of the slowest efficient size, relative to the usual duration.",
            lambda t: math.log(t.costs[0] / t.usual) / 3.0),
    Feature("least_cost", "log(ratio) / 3", "Cost of the cheapest size, relative to the usual duration.",
            lambda t: math.log(t.costs[1] / t.usual) / 3.0),
    Feature("fastest_cost", "log(ratio) / 3", "Cost of the fastest size, relative to the usual duration.",
            lambda t: math.log(t.costs[2] / t.usual) / 3.0),
    Feature("slowdown_minimum", "log(ratio) / 3", "Slots at the minimum over the shortest.",
            lambda t: t.slowdown("minimum")),
    Feature("slowdown_eighth", "log(ratio) / 3",
            "The same an eighth of the way from the minimum to the largest useful size.",
            lambda t: t.slowdown("eighth")),
    Feature("slowdown_quarter", "log(ratio) / 3", "The same a quarter of the way.", lambda t: t.slowdown("quarter")),
    Feature("slowdown_half", "log(ratio) / 3", "The same half of the way.", lambda t: t.slowdown("half")),
    Feature("slowdown_largest", "log(ratio) / 3", "The same at the largest useful size.",
            lambda t: t.slowdown("largest")),
    Feature("slowdown_accelerator_only", "log(ratio) / 3",
            "The same with the largest useful amount of the accelerator and the minimum of all else.",
            lambda t: t.slowdown("accelerator only")),
    Feature("slowdown_others_only", "log(ratio) / 3",
            "The same with the minimum of the accelerator and the largest useful amounts of all else.",
            lambda t: t.slowdown("others only")),
    Feature("doubt", "deviation of log(speed)", "How uncertain the type's speeds are, on average.", lambda t: t.doubt),
)


# ----------------------------------------------------------------------------------------- sizes of types, once a site


@dataclass(slots=True)
class SizeFacts:
    """What the features of the sizes of S speeds are made of; (S, BUCKETS, DEPTH) each, 1 where there is no size."""

    slots: Any
    cost: Any
    ideal: Any  # (S, 1, 1) of the type on the best hardware
    least_cost: Any  # (S, 1, 1) of the type
    usual: float
    doubt: Any


SIZE = FeatureTable(
    Feature("slowdown", "log(ratio) / 2", "Slots of this size over the type's shortest.",
            lambda s: np.log(s.slots / s.ideal) / 2.0),
    Feature("duration", "log(ratio) / 3", "Slots, relative to the usual duration.",
            lambda s: np.log(s.slots / s.usual) / 3.0),
    Feature("speed", "1 / slots", "Share of the task done in a slot.", lambda s: 1.0 / s.slots),
    Feature("cost", "log(ratio) / 3", "Cost, relative to the usual duration.",
            lambda s: np.log(s.cost / s.usual) / 3.0),
    Feature("cost_over_least", "log(ratio) / 2", "Cost over that of the type's cheapest size.",
            lambda s: np.log(s.cost / s.least_cost) / 2.0),
    Feature("extra_slots", "usual durations / 4", "Slots more than at the fastest size.",
            lambda s: (s.slots - s.ideal) / s.usual / 4.0),
    Feature("doubt", "deviation of log(speed)", "How uncertain the speed at this size is.", lambda s: s.doubt),
)


# -------------------------------------------------------------------------------------------------- states, every turn


@dataclass(slots=True)
class SiteFacts:
    """What does not change from turn to turn. T types, N clusters; the last of T+1 rows is for no task."""

    accelerator: int
    single: float  # 1 if a cluster starts at most one task per slot
    usual: float  # slots of the site's usual run
    relative_accelerator: Any  # (N,) half the log of the capacity relative to a mean cluster's
    relative_least: Any  # (N,) the same for the resource in which it is smallest
    ideal: Floats  # (T+1,) slots of the fastest run
    gap: Floats  # (T+1, N) log of the same on this cluster, relative to ``ideal``
    least_cost: Floats  # (T+1,) in usual durations
    types: Floats  # (T+1, features of a type)
    sizes: Floats  # (sizes of all speeds and of no task, features of a size)


@dataclass(slots=True)
class ProfileState:
    """What the features of states are made of. B states, N clusters, K places, M nodes, S running, R resources."""

    obs: Any  # arrays with the fields of observation.GraphObs and a leading axis B
    site: SiteFacts
    clusters: int
    share: Any  # (B, N, R) free share of each resource
    used_by_others: Any  # (B, N, R) share that other people use
    others_change: Any  # (B, N, R) the same minus what they used lately
    rank: Ints  # (B, N) 0 for the emptiest cluster
    load: Any  # (B,) work that recently arrived per slot, as a share of what all clusters together can do
    real: Bools  # (B, M) nodes with a task
    node_kind: Ints  # (B, M) type of each node, T for none
    seen: Floats  # (B, M) clusters that have the task in their pending set
    kind: Ints  # (B, N, K) type of each place, T for none
    copies: Ints  # (B, N, K) number of copies of the task's minimum that fit
    advised: Ints  # (B, N, K, advisers) place on the whole menu of the adviser's size, -1 where it starts nothing
    can: Floats  # (B, N, K) 1 where the task can start
    others: Floats  # (B, N, K) other clusters that could start the task
    emptier: Floats  # (B, N, K) number of ``others`` with a lower rank
    matched: Bools  # (B, N, K)
    running: RunningState
    menu: MenuState


@dataclass(slots=True)
class RunningState:
    """Running tasks; (B, N, S) each."""

    mask: Bools  # real tasks
    most: Any  # largest share of the cluster's resources
    accelerator: Any  # share of the cluster's accelerator
    left: Any  # slots until the task ends, including this one
    predicted: Any  # slots of the whole task at its size
    elapsed: Any
    progress: Any  # as reported, -1 where unreported
    doubt: Any
    usual: float
    # (B, N) each: share of the cluster held by tasks that end in this slot, within half the usual duration, within it
    freed_next: Any
    freed_soon: Any
    freed_later: Any


@dataclass(slots=True)
class MenuState:
    """Sizes on the menus; (B, N, K, C) each unless stated otherwise."""

    at: Ints  # place on the type's whole menu
    real: Bools  # sizes that fit
    count: Ints  # (B, N, K) number of sizes that fit
    size: Ints  # index of the size among those of all speeds
    rows: Floats  # (B, N, K, C, features of a size)
    of_free: Any  # (B, N, K, C, R) share of what is free
    of_free_most: Floats  # largest of ``of_free``
    of_cluster: Any  # largest share of the cluster
    cost: Floats  # as in the feature, 9 where there is no size
    advised: Ints  # (B, N, K, advisers)
    accelerator: int

    def of_fastest(self, feature: str) -> Floats:
        """(B, N, K) a feature of the fastest size that fits; 0 where none does."""
        return np.asarray(self.rows[..., 0, SIZE_COLUMNS[feature]] * self.real[..., 0])

    def of_slowest(self, feature: str) -> Floats:
        """(B, N, K) a feature of the slowest size that fits; 0 where none does."""
        table = self.rows[..., SIZE_COLUMNS[feature]]
        ends = np.arange(0, table.size, table.shape[-1]).reshape(self.count.shape) + np.maximum(self.count - 1, 0)
        return np.asarray(table.reshape(-1)[ends] * (self.count > 0))


def _log(count: Any) -> Any:
    return np.log1p(count) / _LOG


CLUSTER = FeatureTable(
    Feature("free_least", "share", "Free share of the scarcest resource.", lambda s: s.share.min(axis=2)),
    Feature("free_mean", "share", "Free share, mean of the resources.", lambda s: s.share.mean(axis=2)),
    Feature("free_most", "share", "Free share of the most plentiful resource.", lambda s: s.share.max(axis=2)),
    Feature("free_accelerator", "share", "Free share of the accelerator.", lambda s: s.share[..., s.site.accelerator]),
    Feature("capacity_accelerator", "log(ratio) / 2", "Accelerators, relative to a mean cluster's.",
            lambda s: s.site.relative_accelerator),
    Feature("capacity_least", "log(ratio) / 2",
            "Capacity relative to a mean cluster's, of the resource in which it is smallest.",
            lambda s: s.site.relative_least),
    Feature("clusters", "log(count) / 3", "Clusters of the site.", lambda s: np.log(s.clusters) / _LOG),
    Feature("single", "0 or 1", "Whether a cluster starts at most one task per slot.", lambda s: s.site.single),
    Feature("waiting", "log(1 + tasks) / 3", "Length of the cluster's queue.", lambda s: _log(s.obs.waiting)),
    Feature("waiting_unseen", "log(1 + tasks) / 3", "Waiting tasks beyond the pending set.",
            lambda s: _log(s.obs.cluster_features[:, :, -1])),
    Feature("running", "log(1 + tasks) / 3", "Running tasks.", lambda s: _log(s.obs.running_count)),
    Feature("freed_next", "share", "Share of the cluster whose tasks should end in this slot.",
            lambda s: s.running.freed_next),
    Feature("freed_soon", "share", "The same within half of the usual duration.", lambda s: s.running.freed_soon),
    Feature("freed_later", "share", "The same within the usual duration.", lambda s: s.running.freed_later),
    Feature("rank", "rank / clusters", "Rank among the clusters by free resources, 0 for the emptiest.",
            lambda s: s.rank / s.clusters, of_others=True),
    Feature("load", "share of the site, at most 3",
            "Work that arrived per slot over the last 100 slots, of what all clusters together can do.",
            lambda s: np.minimum(np.asarray(s.load), 3.0)[:, None], of_others=True),
    Feature("site_waiting_before", "log(1 + tasks per cluster)",
            "Tasks shown at the site that arrived before this slot.",
            lambda s: np.log1p(((s.obs.age > 0) & s.real).sum(axis=1) / s.clusters)[:, None], of_others=True),
    Feature("site_waiting", "log(1 + tasks per cluster)", "Tasks shown at the site.",
            lambda s: np.log1p(s.real.sum(axis=1) / s.clusters)[:, None], of_others=True),
    Feature("site_work", "log(1 + usual durations per cluster) / 2", "Least cost of all tasks shown at the site.",
            lambda s: np.log1p((s.site.least_cost[s.node_kind] * s.real).sum(axis=1) / s.clusters)[:, None] / 2.0,
            of_others=True),
    Feature("can_start", "0 or 1", "Whether any task can start on the cluster.", lambda s: s.obs.startable.any(axis=2)),
    Feature("others", "share", "Largest share of a resource that other people use.",
            lambda s: s.used_by_others.max(axis=2)),
    Feature("others_change", "share", "How much more they use now than lately, of the resource in which that is most.",
            lambda s: s.others_change.max(axis=2)),
)

#: Features of a waiting task besides those of its type.
WAITING = FeatureTable(
    Feature("waited", "log(1 + slots) / 3", "Slots since the task arrived.", lambda s: _log(s.obs.age)),
    Feature("waited_to_ideal", "ideal durations / 4, at most 2",
            "Slots since the task arrived, relative to its shortest duration.",
            lambda s: (s.obs.age / s.site.ideal[s.node_kind]).clip(0.0, 8.0) / 4.0),
    Feature("seen_by", "share of the clusters", "Clusters that have the task in their pending set.",
            lambda s: s.seen / s.clusters, of_others=True),
    Feature("seen_by_inverse", "1 / clusters",
            "One over the number of clusters that have the task in their pending set.",
            lambda s: 1.0 / np.maximum(s.seen, 1.0), of_others=True),
)

RUNNING = FeatureTable(
    Feature("share", "share", "Largest share of the cluster's resources that the task has.", lambda r: r.most),
    Feature("share_accelerator", "share", "Its share of the cluster's accelerator.", lambda r: r.accelerator),
    Feature("left", "log(1 + slots) / 3", "Slots until the task should end.", lambda r: _log(r.left)),
    Feature("left_to_usual", "usual durations / 2, at most 2", "The same, relative to the usual duration.",
            lambda r: (r.left / r.usual / 2.0).clip(0.0, 2.0)),
    Feature("elapsed", "share, at most 2", "Slots since the start, of those the task should take.",
            lambda r: (r.elapsed / np.maximum(r.predicted, 1.0)).clip(0.0, 2.0)),
    Feature("reports", "0 or 1", "Whether the task reports its progress.", lambda r: r.progress >= 0.0),
    Feature("progress", "share", "Progress as reported, else 0.", lambda r: np.maximum(r.progress, 0.0)),
    Feature("doubt", "deviation of log(speed)", "How uncertain the type's speeds are, on average.", lambda r: r.doubt),
)

#: Features of a size on the menu besides those it has everywhere.
FIT = FeatureTable(
    Feature("of_free", "share, at most 2", "Largest share of what is free here.", lambda m: m.of_free_most),
    Feature("of_free_accelerator", "share, at most 2", "Share of the free accelerators here.",
            lambda m: m.of_free[..., m.accelerator]),
    Feature("of_cluster", "share, at most 2", "Largest share of the cluster.", lambda m: m.of_cluster),
    Feature("copies", "tasks / 8, at most 1", "How many tasks of this size fit here now.",
            lambda m: np.floor(1.0 / m.of_free_most.clip(1e-3)).clip(0.0, 8.0) / 8.0),
    Feature("leaves", "share", "Largest share of what is free that it leaves.",
            lambda m: (1.0 - m.of_free).clip(0.0).max(axis=4)),
    Feature("fastest", "0 or 1", "Whether it is the fastest that fits.", lambda m: np.arange(m.at.shape[3]) == 0),
    Feature("slowest", "0 or 1", "Whether it is the slowest that fits.",
            lambda m: np.arange(m.at.shape[3]) == (m.count - 1)[..., None]),
    Feature("cheapest", "0 or 1", "Whether none that fits costs less.",
            lambda m: m.cost == m.cost.min(axis=3, keepdims=True)),
    Feature("advised", "0 or 1", "Whether the adviser would start the task at this size.",
            lambda m: m.at[..., None] == m.advised[:, :, :, None, :], per="adviser"),
)

PAIR = FeatureTable(
    Feature("place", "log(1 + tasks) / 3", "Tasks before it in the pending set.",
            lambda s: _log(np.arange(s.can.shape[2]))),
    Feature("startable_before", "log(1 + tasks) / 3", "Tasks before it that can start on the cluster.",
            lambda s: _log(s.can.cumsum(axis=2) - s.can)),
    Feature("startable", "0 or 1", "Whether the task can start on the cluster now.", lambda s: s.can),
    Feature("only_here", "0 or 1", "Whether no other cluster could start the task.",
            lambda s: s.others == 0.0, of_others=True),
    Feature("other_starters", "share of the clusters", "Other clusters that could start the task.",
            lambda s: s.others / s.clusters, of_others=True),
    Feature("emptier_starters", "share of the clusters", "Emptier clusters that could start the task.",
            lambda s: s.emptier / s.clusters, of_others=True),
    Feature("matched", "0 or 1",
            "Whether a simple division, oldest task to the emptiest cluster, gives the task to this one.",
            lambda s: s.matched, of_others=True),
    Feature("fastest_slowdown", "log(ratio) / 2", "Slots of the fastest size that fits here over the type's shortest.",
            lambda s: s.menu.of_fastest("slowdown")),
    Feature("slowest_cost", "log(ratio) / 3",
            "Cost of the slowest size that fits here, relative to the usual duration.",
            lambda s: s.menu.of_slowest("cost")),
    Feature("sizes", "share of the menu", "Sizes that fit here.", lambda s: s.menu.count / PLACES),
    Feature("ideal_gap", "log(ratio), at most 4",
            "Shortest duration on this very cluster over the shortest at the site.",
            lambda s: s.site.gap[s.kind, np.arange(s.clusters)[None, :, None]]),
    Feature("copies", "log(1 + tasks) / 3", "How many tasks of the minimum size fit here.", lambda s: _log(s.copies)),
    Feature("advised", "0 or 1", "Whether the adviser would start the task here.",
            lambda s: s.advised >= 0, per="adviser", of_others=True),
    Feature("staging", "log(1 + slots) / 3", "Slots until the task would have its data here.",
            lambda s: _log(s.obs.staging)),
    Feature("staging_to_ideal", "log(ratio), at most 4", "The same and the task's shortest duration, over the latter.",
            lambda s: np.log1p(s.obs.staging / s.site.ideal[s.kind]).clip(0.0, 4.0)),
)

PROFILES = Schema(
    "profiles",
    "Tasks are known by their speed profile and everything is relative: for any clusters, resources and task types.",
    {"cluster": CLUSTER, "pending": TYPE + WAITING, "running": RUNNING, "pair": PAIR, "menu": SIZE + FIT},
)

#: Number of columns of a feature that has one per adviser.
COLUMN_COUNTS: Final = {"adviser": len(ADVISERS)}

SIZE_COLUMNS: Final = {name: at.start for name, at in SIZE.columns().items()}


def adviser_columns(kind: str) -> range:
    """Columns that hold the advisers' choices, one per adviser, of a kind of node: ``pair`` or ``menu``."""
    return PROFILES.tables[kind].columns(COLUMN_COUNTS)["advised"]
