"""Seconds of a task under every allocation, with a doubt, from a few measured allocations (docs/profiler.md).

The logarithm of the seconds is a Gaussian process over the logarithm of the amounts:

    log seconds(x) = level + formulas(x) + similar(x) + smooth(x) + own(x)

``formulas``: sums of 1, 1/x, x and x/y with unknown weights: fixed time, divided work, overhead, one resource that
feeds another. ``similar``: the surfaces of other types. ``smooth``: anything else that changes little between
neighbours. ``own``: independent for each allocation. The amount of each part is found by how well it explains the
measurements; explanations with and without each part are averaged by the same measure. Nothing is forced to be
monotone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import permutations, product
from typing import Final

import numpy as np
import numpy.typing as npt

from tapfinger.errors import DataError
from tapfinger.profiles.repeats import summarise

Floats = npt.NDArray[np.float64]
Cell = tuple[float, ...]
_Cost = Callable[[Floats], float]

#: Standard deviation of the level before anything is measured: a factor of seven either way.
LEVEL: Final = 2.0

#: Standard deviation of a resource's exponent in the seconds, if only one amount of the resource was measured.
SLOPE: Final = 0.5

#: Number of drawn formulas; how even their weights are (smaller: fewer terms matter); relative weight of overheads.
DRAWS: Final = 256
UNEVEN: Final = 0.4
OVERHEAD: Final = 0.3

#: Priors, each as a median and a spread (of the logarithm): of the standard deviation of each part, and of the
#: correlation length of the smooth part in log amounts.
OWN, SMOOTH, FORMULAS, SIMILAR, LENGTH = (0.02, 1.0), (0.5, 2.0), (2.0, 2.0), (1.0, 2.0), (1.5, 0.7)

#: Minimum number of cells to tell odd ones; degrees of freedom of Student's t for the own part of odd cells.
LEAST_ODD, TAIL = 6, 3.0

#: Minimum variance of a prediction, whatever the arithmetic says.
LEAST_VARIANCE: Final = 1e-8

#: Maximum number of cells from which the amount of each part is found: the cost grows with their cube.
MOST_SEARCHED: Final = 64

#: First and last step of that search, in logarithms.
FIRST_STEP, LAST_STEP = 0.8, 0.05


class Surface:
    """Seconds of one task type under any allocation; made by ``fit_surface``."""

    def __init__(self, resources: Sequence[str], scale: _Scale, parts: Sequence[_Posterior], noise: float) -> None:
        """``parts``: explanations with their weights; ``noise``: standard deviation of log seconds of one run."""
        self.resources = tuple(resources)
        self.noise = noise
        self._scale = scale
        self._parts = tuple(parts)

    def seconds(self, amounts: Mapping[str, float]) -> float:
        """Seconds of a run under natural quantities by name; resources that were not measured do not matter."""
        return float(np.exp(self.predict([self._cell(amounts)])[0][0]))

    def doubt(self, amounts: Mapping[str, float]) -> float:
        """Standard deviation of the logarithm of these seconds; the noise of a single run comes on top."""
        return float(self.predict([self._cell(amounts)])[1][0])

    def predict(self, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
        """Log seconds and doubt of many allocations: amounts in the order of ``resources``."""
        at = self._scale.logs(cells)
        means, variances = zip(*(part.at(at) for part in self._parts), strict=True)
        weights = np.array([part.weight for part in self._parts])
        mean = weights @ np.stack(means)
        variance = weights @ (np.stack(variances) + (np.stack(means) - mean) ** 2)
        return mean, np.sqrt(variance)

    def _cell(self, amounts: Mapping[str, float]) -> Cell:
        missing = [name for name in self.resources if name not in amounts]
        if missing:
            raise DataError(
                f"the speed was measured over {', '.join(self.resources)}, but no amount of {missing[0]!r} is given; "
                f"give one (got {', '.join(amounts) or 'nothing'})"
            )
        return tuple(float(amounts[name]) for name in self.resources)


def fit_surface(
    resources: Sequence[str], cells: Mapping[Cell, Sequence[float]], prior: Sequence[Surface] = ()
) -> Surface:
    """Learn from measured cells: natural amounts of ``resources``, in that order -> seconds of each repeat.

    One cell is enough, or none with a ``prior``: surfaces of similar types, which this one may resemble.
    """
    _check(resources, cells, prior)
    repeats = summarise(list(cells.values()))
    scale = _Scale.of(len(resources), cells)
    at = scale.logs(list(cells))  # (cells, resources)
    similar = _Similar(tuple(p for p in prior if set(p.resources) == set(resources)), tuple(resources), scale)
    level = float(np.mean(repeats.log_seconds)) if cells else similar.level
    measured = _Measured(at, repeats.log_seconds - level, repeats.variance)
    choices = list(product((False, True), (False, True), (False, True) if similar.known else (False,)))
    explanations = [_explain(measured, similar, *choice) for choice in choices]
    if len(cells) >= LEAST_ODD:
        _, kernel = min(explanations, key=lambda explanation: explanation[0])
        measured = _allow_odd(measured, kernel)
        explanations = [_explain(measured, similar, *choice) for choice in choices]
    best = min(cost for cost, _ in explanations)
    weights = np.exp([best - cost for cost, _ in explanations])
    weights /= weights.sum()
    parts = [
        _Posterior(kernel, measured, level, float(weight))
        for (_, kernel), weight in zip(explanations, weights, strict=True)
        if weight > 1e-3
    ]
    total = sum(part.weight for part in parts)
    for part in parts:
        part.weight /= total
    return Surface(resources, scale, parts, math.sqrt(repeats.noise))


def _check(resources: Sequence[str], cells: Mapping[Cell, Sequence[float]], prior: Sequence[Surface]) -> None:
    if not resources or len(set(resources)) < len(resources):
        raise DataError(f"a speed model needs one name per resource, got {', '.join(resources) or 'none'}")
    if not cells and not prior:
        raise DataError("nothing was measured and no similar type is known: measure at least one allocation")
    for cell, seconds in cells.items():
        if len(cell) != len(resources) or any(not math.isfinite(a) or a < 0.0 for a in cell):
            raise DataError(f"allocation {cell} must have an amount of 0 or more for each of {', '.join(resources)}")
        if not len(seconds) or any(not math.isfinite(s) or s <= 0.0 for s in seconds):
            raise DataError(f"seconds {list(seconds)} at {cell} must be numbers above 0, one for each repeat")


@dataclass(frozen=True)
class _Scale:
    """Amounts -> coordinates."""

    #: By resource: half of the least amount measured above 0; stands for 0, which has no logarithm.
    floors: tuple[float, ...]
    #: Middle of what was measured, in logarithms.
    centre: tuple[float, ...]

    @classmethod
    def of(cls, resources: int, cells: Iterable[Cell]) -> _Scale:
        columns = list(zip(*cells, strict=True)) or [()] * resources
        floors = tuple(0.5 * min((a for a in column if a > 0.0), default=1.0) for column in columns)
        logs = [[math.log(max(a, low)) for a in column] for column, low in zip(columns, floors, strict=True)]
        return cls(floors, tuple(0.5 * (min(log) + max(log)) if log else 0.0 for log in logs))

    def logs(self, cells: Sequence[Cell]) -> Floats:
        """(cells, resources), relative to the centre."""
        amounts = np.maximum(np.asarray(cells, dtype=np.float64).reshape(-1, len(self.floors)), self.floors)
        return np.asarray(np.log(amounts) - np.array(self.centre), dtype=np.float64)

    def amounts(self, at: Floats) -> Floats:
        """Coordinates -> amounts."""
        return np.asarray(np.exp(at + np.array(self.centre)), dtype=np.float64)


class _Similar:
    """Log seconds of other types, relative to the centre."""

    def __init__(self, surfaces: tuple[Surface, ...], resources: tuple[str, ...], scale: _Scale) -> None:
        self._surfaces = surfaces
        self._order = [[resources.index(name) for name in s.resources] for s in surfaces]
        self._scale = scale
        self._middle = self._raw(np.zeros((1, len(resources))))
        #: Mean log seconds of the other types at the centre.
        self.level = float(self._middle.mean()) if surfaces else 0.0

    @property
    def known(self) -> bool:
        return bool(self._surfaces)

    def at(self, at: Floats) -> Floats:
        """(cells, types)"""
        return self._raw(at) - self._middle

    def _raw(self, at: Floats) -> Floats:
        amounts = self._scale.amounts(at)
        columns = [
            s.predict([tuple(row) for row in amounts[:, order]])[0]
            for s, order in zip(self._surfaces, self._order, strict=True)
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(at), 0))


@cache
def _drawn_weights(resources: int) -> Floats:
    """(terms, draws) weights of the terms in each drawn formula; they sum to 1. The same on every call."""
    overheads = np.ones(1 + 2 * resources + resources * (resources - 1))
    overheads[1 + resources : 1 + 2 * resources] = OVERHEAD
    drawn = np.random.default_rng(0).gamma(UNEVEN, size=(DRAWS, len(overheads))) * overheads
    return np.asarray((drawn / drawn.sum(axis=1, keepdims=True)).T, dtype=np.float64)


def _formulas(at: Floats) -> Floats:
    """(cells, draws) log seconds of each drawn formula: 0 at the centre."""
    resources = at.shape[1]
    ratios = [at[:, i] - at[:, j] for i, j in permutations(range(resources), 2)]
    terms = np.exp(np.stack([np.zeros(len(at)), *(-at.T), *at.T, *ratios], axis=1))
    return np.asarray(np.log(terms @ _drawn_weights(resources)), dtype=np.float64)


def _always(at: Floats, unseen: Sequence[int]) -> Floats:
    """Features of every explanation: the level, and the slopes of resources with one measured amount."""
    return np.column_stack([np.full(len(at), LEVEL), *(SLOPE * at[:, r] for r in unseen)])


@dataclass(frozen=True)
class _Kernel:
    """Covariance of log seconds; parts with a standard deviation of 0 are absent."""

    own: float
    smooth: float
    formulas: float
    similar: float
    #: Correlation lengths of the smooth part, by resource.
    lengths: Floats
    alike: _Similar
    #: Resources of which only one amount was measured, by position.
    unseen: tuple[int, ...] = ()

    def features(self, at: Floats) -> Floats:
        """(cells, features) whose products are the covariance of all parts but ``smooth`` and ``own``."""
        columns = [_always(at, self.unseen)]
        if self.formulas:
            columns.append(_formulas(at) * (self.formulas / math.sqrt(DRAWS)))
        if self.similar:
            columns.append(self.alike.at(at) * self.similar)
        return np.concatenate(columns, axis=1)

    def variance(self, features: Floats) -> Floats:
        """Variance of each cell."""
        return np.asarray(np.square(features).sum(axis=1) + self.smooth**2 + self.own**2, dtype=np.float64)

    def between(self, one: Floats, other: Floats, features: Floats, others: Floats) -> Floats:
        """Covariance of cells with other cells, without the ``own`` part."""
        covariance = features @ others.T
        if self.smooth:
            apart = (one[:, None] - other[None]) / self.lengths
            distance = math.sqrt(3.0) * np.sqrt(np.square(apart).sum(axis=-1))
            covariance = covariance + self.smooth**2 * (1.0 + distance) * np.exp(-distance)  # Matern 3/2
        return np.asarray(covariance, dtype=np.float64)


@dataclass(frozen=True)
class _Measured:
    """Cells as the process sees them."""

    #: (cells, resources)
    at: Floats
    #: (cells,) log seconds less the level.
    values: Floats
    #: (cells,) variance of these values due to noise.
    noise: Floats
    #: (cells,) variance of the ``own`` part of odd cells, beyond that of usual cells.
    odd: Floats | float = 0.0

    @cached_property
    def unseen(self) -> tuple[int, ...]:
        """Resources that are the same in every cell, by position."""
        return tuple(r for r, column in enumerate(self.at.T) if len(set(column.tolist())) < 2)

    def some(self, most: int) -> _Measured:
        """At most ``most`` cells, evenly chosen."""
        if len(self.at) <= most:
            return self
        few = np.linspace(0, len(self.at) - 1, most).astype(int)
        odd = self.odd if isinstance(self.odd, float) else self.odd[few]
        return _Measured(self.at[few], self.values[few], self.noise[few], odd)


def _allow_odd(measured: _Measured, kernel: _Kernel) -> _Measured:
    """Give cells that the others cannot explain a larger ``own`` part, as if it were drawn from Student's t.

    Otherwise one odd corner would make all other cells look just as uneven, and would be smoothed away.
    """
    for _ in range(3):
        posterior = _Posterior(kernel, measured, 0.0, 1.0)
        stretch = np.maximum(1.0, (TAIL + posterior.surprise()) / (TAIL + 1.0))
        measured = replace(measured, odd=kernel.own**2 * (stretch - 1.0))
    return measured


def _explain(
    measured: _Measured, similar: _Similar, formulas: bool, smooth: bool, alike: bool
) -> tuple[float, _Kernel]:
    """The kernel with these parts that explains the measurements best, and what it costs (minus log evidence)."""
    resources = measured.at.shape[1]
    names = ["own", *["formulas"] * formulas, *["similar"] * alike, *["smooth"] * smooth]
    beliefs = {"own": OWN, "formulas": FORMULAS, "similar": SIMILAR, "smooth": SMOOTH}
    median, spread = np.array([*(beliefs[n] for n in names), *[LENGTH] * (resources * smooth)]).T
    usual = np.log(median)

    def kernel(logs: Floats) -> _Kernel:
        deviation = dict(zip(names, np.exp(logs[: len(names)]).tolist(), strict=True))
        lengths = np.exp(logs[len(names) :]) if smooth else np.ones(resources)
        return _Kernel(
            deviation["own"],
            deviation.get("smooth", 0.0),
            deviation.get("formulas", 0.0),
            deviation.get("similar", 0.0),
            lengths,
            similar,
            measured.unseen,
        )

    if not len(measured.at):
        return 0.0, kernel(usual)
    some = measured.some(MOST_SEARCHED)
    x, by_itself = some.at, some.noise + some.odd
    unit = [_Kernel(0.0, 0.0, float(f), float(s), np.ones(resources), similar) for f, s in ((1, 0), (0, 1))]
    drawn = [u.features(x)[:, 1:] if wanted else None for u, wanted in zip(unit, (formulas, alike), strict=True)]

    def cost(logs: Floats) -> float:
        k = kernel(logs)
        columns = [_always(x, k.unseen)]
        columns += [f * s for f, s in zip(drawn, (k.formulas, k.similar), strict=True) if f is not None]
        features = np.concatenate(columns, axis=1)
        covariance = k.between(x, x, features, features) + np.diag(k.own**2 + by_itself)
        root = np.linalg.cholesky(covariance)
        z = np.linalg.solve(root, some.values)
        surprise = np.square((logs - usual) / spread).sum()
        return float(0.5 * z @ z + np.log(np.diag(root)).sum() + 0.5 * surprise)

    found, least = _descend(cost, usual)
    # Each deviation, about which next to nothing was known, costs half the logarithm of the number of cells.
    return least + 0.5 * len(names) * math.log(len(x)), kernel(found)


def _descend(cost: _Cost, start: Floats) -> tuple[Floats, float]:
    """Take a step in each direction in turn while that helps, then halve the step."""
    here, least, step = start, cost(start), FIRST_STEP
    while step >= LAST_STEP:
        before = least
        for i, sign in product(range(len(here)), (1.0, -1.0)):
            there = here.copy()
            there[i] += sign * step
            if (value := cost(there)) < least - 1e-6:
                here, least = there, value
        if least == before:
            step /= 2.0
    return here, least


class _Posterior:
    """One explanation, given all measurements."""

    def __init__(self, kernel: _Kernel, measured: _Measured, level: float, weight: float) -> None:
        self._kernel = kernel
        self._at = measured.at
        self._level = level
        #: Share in the average.
        self.weight = weight
        self._features = kernel.features(measured.at)
        covariance = kernel.between(measured.at, measured.at, self._features, self._features)
        self._own = kernel.own**2 + measured.odd + np.zeros(len(measured.at))
        self._root = np.linalg.cholesky(covariance + np.diag(self._own + measured.noise))
        self._seen = np.linalg.solve(self._root, measured.values)
        self._index = {tuple(row): i for i, row in enumerate(measured.at.tolist())}

    def at(self, at: Floats) -> tuple[Floats, Floats]:
        """Log seconds and their variance."""
        kernel = self._kernel
        features = kernel.features(at)
        covariance = kernel.between(self._at, at, self._features, features)  # (measured, asked)
        variance = kernel.variance(features)
        for column, row in enumerate(at.tolist()):
            measured = self._index.get(tuple(row))
            if measured is not None:  # the measurement and the prediction share the own part
                covariance[measured, column] += self._own[measured]
                variance[column] += self._own[measured] - kernel.own**2
        known = np.linalg.solve(self._root, covariance)
        variance = np.maximum(variance - np.square(known).sum(axis=0), LEAST_VARIANCE)
        return self._level + known.T @ self._seen, np.asarray(variance, dtype=np.float64)

    def surprise(self) -> Floats:
        """(cells,) squared distance of each measurement from its prediction by all others, over its variance."""
        inverse = np.linalg.inv(self._root)
        pull = inverse.T @ self._seen
        return np.asarray(np.square(pull) / np.square(inverse).sum(axis=0), dtype=np.float64)
