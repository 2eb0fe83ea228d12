"""The features of schema ``types``: tasks are known by their type, amounts are absolute, as in the paper.

A network of this schema works for the task types and resources it was trained on, with any number of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapfinger.policy.encoding.features import Feature, FeatureTable, Schema
from tapfinger.policy.encoding.inputs import Bools, Floats, Ints

#: Amounts, counts and slots are divided by these, so that features are close to one.
AMOUNT_UNIT = 16.0
_COUNT = 10.0
_SLOTS = 10.0
#: Upper bound of counts and slots, after the division.
_MOST = 3.0


@dataclass(slots=True)
class TypeState:
    """What the features of this schema are made of. B states, N clusters, K places, M nodes, S running, R resources."""

    obs: Any  # arrays with the fields of observation.GraphObs and a leading axis B
    resources: int
    capacity: Floats  # (N, R) divided by AMOUNT_UNIT
    size: Floats  # (N, R) capacity, at least one
    free: Floats  # (B, N, R)
    rank: Ints  # (B, N) 0 for the emptiest cluster
    eligible: Ints  # (B, M) number of pending sets that hold each node
    can: Floats  # (B, N, K) 1 where the task can start
    others: Floats  # (B, N, K) other clusters that could start the task
    emptier: Floats  # (B, N, K) number of ``others`` with a lower rank
    matched: Bools  # (B, N, K)


def _capped(numbers: Any, unit: float) -> Any:
    return np.minimum(numbers / unit, _MOST)


CLUSTER = FeatureTable(
    Feature("free", "units / 16", "Free amount.", lambda s: s.free / AMOUNT_UNIT, per="resource"),
    Feature("capacity", "units / 16", "Amount of the empty cluster.", lambda s: s.capacity, per="resource"),
    Feature("free_share", "share", "Free amount as a share of the capacity.",
            lambda s: s.free / s.size, per="resource"),
    Feature("waiting", "tasks / 10, at most 3", "Length of the cluster's queue.",
            lambda s: _capped(s.obs.waiting, _COUNT)),
    Feature("waiting_unseen", "tasks / 10, at most 3", "Waiting tasks beyond the pending set.",
            lambda s: _capped(s.obs.cluster_features[..., -1], _COUNT)),
    Feature("running", "tasks / 10, at most 3", "Running tasks.", lambda s: _capped(s.obs.running_count, _COUNT)),
    Feature("rank", "rank / clusters", "Rank among the clusters by free accelerators, 0 for the emptiest.",
            lambda s: s.rank / s.rank.shape[1], of_others=True),
)

PENDING = FeatureTable(
    Feature("minimum", "units / 16", "Least amount the task can run with.",
            lambda s: s.obs.pending_features[..., : s.resources] / AMOUNT_UNIT, per="resource"),
    Feature("type", "0 or 1", "Whether the task is of this type.",
            lambda s: s.obs.pending_features[..., s.resources : -1], per="task type"),
    Feature("waited", "slots / 10, at most 3", "Slots since the task arrived.", lambda s: _capped(s.obs.age, _SLOTS)),
    Feature("seen_by", "share of the clusters", "Clusters that have the task in their pending set.",
            lambda s: s.eligible / len(s.size), of_others=True),
)

RUNNING = FeatureTable(
    Feature("allocation", "units / 16", "Amount the task runs with.",
            lambda s: s.obs.running_features[..., : s.resources] / AMOUNT_UNIT, per="resource"),
    Feature("type", "0 or 1", "Whether the task is of this type.",
            lambda s: s.obs.running_features[..., s.resources : -1], per="task type"),
    Feature("elapsed", "slots / 10, at most 3", "Slots since the task was started.",
            lambda s: _capped(s.obs.running_features[..., -1], _SLOTS)),
)

#: What a cluster must know to avoid wanting a task that another cluster will get.
PAIR = FeatureTable(
    Feature("place", "tasks / 10", "Tasks before it in the pending set.", lambda s: np.arange(s.can.shape[2]) / _COUNT),
    Feature("startable_before", "tasks / 10", "Tasks before it that can start on the cluster.",
            lambda s: (s.can.cumsum(axis=2) - s.can) / _COUNT),
    Feature("startable", "0 or 1", "Whether the task can start on the cluster now.", lambda s: s.can),
    Feature("only_here", "0 or 1", "Whether no other cluster could start the task.",
            lambda s: s.others == 0.0, of_others=True),
    Feature("other_starters", "share of the clusters", "Other clusters that could start the task.",
            lambda s: s.others / len(s.size), of_others=True),
    Feature("emptier_starters", "share of the clusters", "Emptier clusters that could start the task.",
            lambda s: s.emptier / len(s.size), of_others=True),
    Feature("largest", "units / 16", "Most the task could be given here now.",
            lambda s: s.obs.largest / AMOUNT_UNIT, per="resource"),
    Feature("matched", "0 or 1",
            "Whether a simple division, oldest task to the emptiest cluster, gives the task to this one.",
            lambda s: s.matched, of_others=True),
)

TYPES = Schema(
    "types",
    "Tasks are known by their type and amounts are absolute, as in the paper: for one set of task types and resources.",
    {"cluster": CLUSTER, "pending": PENDING, "running": RUNNING, "pair": PAIR},
)

#: What the paper's agents are told, and nothing more; its dummy bit is not needed, since dummies are masked.
PAPER_FEATURES: dict[str, list[str]] = {
    kind: [feature.identity for feature in TYPES.tables[kind].features if feature.name in names]
    for kind, names in {
        "cluster": ("free", "waiting_unseen"),
        "pending": ("minimum", "type"),
        "running": ("allocation", "type", "elapsed"),
        "pair": (),
    }.items()
}
