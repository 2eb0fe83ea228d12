"""All figures by name: those of this package, of installed packages, and of a user's own module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.registry import find, names
from tapfinger.reproduce.beyond import BEYOND
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.paper import PAPER

#: Figures of this package, in the order of the report.
FIGURES: dict[str, Figure] = {figure.name: figure for figure in (*PAPER, *BEYOND)}

#: Word that stands for all figures.
ALL = "all"


def available(given: Sequence[str] = ()) -> dict[str, Figure]:
    """Name -> figure, in the order of the report.

    The package's own figures come first, then those of entry points in the group ``tapfinger.figures``, then those of
    ``given``: ``package.module:NAME``, where NAME is one figure or several.
    """
    found = dict(FIGURES)
    for word in (*names("figure"), *given):
        for figure in _declared(word):
            if figure.name in found and found[figure.name] != figure:
                raise ConfigError(f"{word}: there is a figure {figure.name!r} already; give yours another name")
            found[figure.name] = figure
    return found


def _declared(word: str) -> list[Figure]:
    """The figures behind a path or an entry point, each marked with the word that names it."""
    value = find("figure", word)
    figures = [value] if isinstance(value, Figure) else list(value) if isinstance(value, list | tuple) else []
    if not figures or not all(isinstance(figure, Figure) for figure in figures):
        raise ConfigError(f"{word} is neither a Figure of tapfinger.reproduce.declare nor a list of them")
    return [replace(figure, given=word) for figure in figures]


def choose(words: Sequence[str]) -> list[Figure]:
    """Figures by name or by ``package.module:NAME``, in the order of the report, each once."""
    if "list" in words:
        raise ConfigError("list takes no figures but your own: 'tapfinger reproduce list [package.module:NAME ...]'")
    if not words:
        raise ConfigError("no figure is given; write all, or names that 'tapfinger reproduce list' shows")
    figures = available([word for word in words if ":" in word])
    for word in words:
        if word != ALL and ":" not in word and word not in figures:
            raise UnknownNameError("figure", word, [ALL, *figures])
    return [f for f in figures.values() if f.name in words or f.given in words or (ALL in words and ":" not in f.given)]
