"""Checks before any run that a declared figure can be made: everything it names exists."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.evaluation.stats import MEASURES, RESOURCE_MEASURES
from tapfinger.reproduce.declare import Bound, Claim, Figure, Less, Unjudged
from tapfinger.reproduce.drawings import CAPTIONS

#: Drawings that place settings on an axis by their ``x``.
_SWEEPS = ("sweep", "gaps", "cost")


def check_figure(figure: Figure) -> None:
    """Reject a figure that names settings, schedulers, measures or drawings that do not exist."""
    where = f"figure {figure.name!r}"
    keys = [setting.key for setting in figure.settings]
    if figure.source == "runs" and not (keys and figure.schedulers):
        raise ConfigError(f"{where} needs at least one setting and one scheduler")
    if len(set(keys)) < len(keys):
        raise ConfigError(f"{where} has settings of the same key; give each its own")
    _known(where, "drawing", figure.pictures, CAPTIONS)
    _measure(where, figure.measure)
    _known(where, "scheduler", figure.optional, figure.schedulers)
    for setting in figure.settings:
        _known(f"{where}, setting {setting.key!r}", "scheduler", setting.published, figure.schedulers)
        if setting.x is None and set(figure.pictures) & set(_SWEEPS):
            raise ConfigError(f"{where}, setting {setting.key!r}: give x, its place on the axis of the drawing")
    for claim in figure.claims:
        _check_claim(f"{where}, claim {claim.text!r}", figure, claim, keys)


def _check_claim(where: str, figure: Figure, claim: Claim, keys: Collection[str]) -> None:
    if isinstance(claim, Unjudged):
        return
    if isinstance(claim, Bound):
        if figure.source == "runs":
            raise ConfigError(f"{where}: a Bound is of measured values; of simulated runs, claim Less or Flat")
        return
    _measure(where, claim.measure)
    _known(where, "setting", claim.settings, keys)
    schedulers = [claim.one]
    if isinstance(claim, Less):
        schedulers += [*claim.others, *claim.published]
        _known(where, "setting", [claim.against] if claim.against else [], keys)
    _known(where, "scheduler", schedulers, figure.schedulers)


def _measure(where: str, measure: str) -> None:
    name, dot, _ = measure.partition(".")  # the scenario defines the resources
    _known(where, "measure", [name], RESOURCE_MEASURES if dot else MEASURES)


def _known(where: str, kind: str, wanted: Iterable[str], there: Collection[str]) -> None:
    for name in wanted:
        if name not in there:
            raise ConfigError(f"{where}: {UnknownNameError(kind, name, there)}")
