"""All figures by name."""

from __future__ import annotations

from collections.abc import Sequence

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.reproduce.beyond import BEYOND
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.paper import PAPER

#: In the order of the report.
FIGURES: dict[str, Figure] = {figure.name: figure for figure in (*PAPER, *BEYOND)}

#: Stands for all figures.
ALL = "all"


def choose(names: Sequence[str]) -> list[Figure]:
    """Figures by name, in the order of the report; each once."""
    if "list" in names:
        raise ConfigError("list stands alone: 'tapfinger reproduce list' shows what there is")
    for name in names:
        if name != ALL and name not in FIGURES:
            raise UnknownNameError("figure", name, [ALL, *FIGURES])
    if not names:
        raise ConfigError("no figure is given; write all, or names that 'tapfinger reproduce list' shows")
    return [figure for figure in FIGURES.values() if ALL in names or figure.name in names]
