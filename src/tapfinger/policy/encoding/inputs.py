"""The arrays that a network takes, for any feature schema. numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Inputs(NamedTuple):
    """A batch of B states: N clusters, K pending places, M pending nodes, S running per cluster, R resources."""

    cluster: Any  # float32 (B, N, Fc)
    pending: Any  # float32 (B, M, Fp): one node per waiting task, shared by its clusters
    pending_mask: Any  # bool (B, M): real tasks
    running: Any  # float32 (B, N, S, Fr)
    running_mask: Any  # bool (B, N, S)
    node: Any  # int64 (B, N, K): index into M, 0 where there is none
    place_mask: Any  # bool (B, N, K): places with a task
    pair: Any  # float32 (B, N, K, Fq): features of (cluster, task)
    startable: Any  # bool (B, N, K)
    minimum: Any  # int64 (B, N, K, R): lower corner of the legal allocations
    largest: Any  # int64 (B, N, K, R): upper corner, 0 where not startable
    copies: Any  # float32 (B, N, K): number of copies of the task's minimum that fit, the prior of Bayes' rule
    # With a menu there is one amount (R = 1), the place on the menu; without one, these are empty.
    menu: Any  # float32 (B, N, K, C, Fm): features of the sizes that fit, fastest first
    size: Any  # int64 (B, N, K, C): indices of these sizes, to decode them into allocations


def batch_of_one(obs: Any) -> Any:
    """A single GraphObs with a leading batch axis."""
    return type(obs)(**{name: getattr(obs, name)[None] for name in obs.__dataclass_fields__})


def rows_of(obs: Any, which: Ints) -> Any:
    """The observations of some worlds of a batch."""
    return type(obs)(*(array[which] for array in obs))


def trim(inputs: Inputs) -> Inputs:
    """Keep only as many nodes, places and running rows as the fullest state has: padding costs as much as tasks do."""
    nodes = _used(inputs.pending_mask.any(axis=0))
    places = _used(inputs.place_mask.any(axis=(0, 1)))
    running = _used(inputs.running_mask.any(axis=(0, 1)))
    return inputs._replace(
        pending=inputs.pending[:, :nodes],
        pending_mask=inputs.pending_mask[:, :nodes],
        running=inputs.running[:, :, :running],
        running_mask=inputs.running_mask[:, :, :running],
        node=inputs.node[:, :, :places],
        place_mask=inputs.place_mask[:, :, :places],
        pair=inputs.pair[:, :, :places],
        startable=inputs.startable[:, :, :places],
        minimum=inputs.minimum[:, :, :places],
        largest=inputs.largest[:, :, :places],
        copies=inputs.copies[:, :, :places],
        menu=inputs.menu[:, :, :places],
        size=inputs.size[:, :, :places],
    )


def _used(column: Bools) -> int:
    """Number of elements up to and including the last true one; at least one, which some operations require."""
    return max(1, int(np.flatnonzero(column)[-1]) + 1 if column.any() else 1)
