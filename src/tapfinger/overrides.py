"""Overrides: ``key=value`` texts, applied to the plain data of a scenario before it is checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from tapfinger.errors import ConfigError

#: Lists that a scenario may leave out, each with an example entry.
_OPTIONAL_LISTS = {"outages": "{cluster=0, start=3, end=5}"}


def parse_value(text: str) -> Any:
    """A value in TOML syntax; a bare word is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also numbers of thousands of digits
        return text


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Options of a backend, each written as ``key=value``."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--backend-option {text!r} must look like key=value, for example nice=10")
        if key in found:
            raise ConfigError(f"--backend-option {key!r} is given twice")
        found[key] = parse_value(value)
    return found


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set one value. The key is dotted; an entry of a list is given by its name or number."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {override!r} must look like key=value, for example arrivals.rate=3")
    value = parse_value(text)
    *path, last = key.split(".")
    place: Any = data
    for depth, part in enumerate(path):
        step = _step(place, part, ".".join(path[: depth + 1]))
        left_out: Any = [] if depth == 0 and part in _OPTIONAL_LISTS else {}
        place = place.setdefault(step, left_out) if isinstance(place, dict) else place[step]
    if not isinstance(place, dict | list):
        raise ConfigError(f"override {override!r}: {'.'.join(path)} has no keys inside")
    place[_step(place, last, key)] = value


def _step(place: Any, part: str, key: str) -> Any:
    """One step of a dotted key: a dict key, or a list position by number or by name."""
    if isinstance(place, dict):
        return part
    if isinstance(place, list):
        names = [str(item.get("name", i)) if isinstance(item, dict) else str(i) for i, item in enumerate(place)]
        if part in names:
            return names.index(part)
        if part.isdigit() and int(part) < len(place):
            return int(part)
        if not place:
            whole = key.rpartition(".")[0]
            example = _OPTIONAL_LISTS.get(whole, "...")
            raise ConfigError(
                f"override key {key!r}: {whole} is an empty list; give the whole list: --set '{whole}=[{example}]'"
            )
        known = f"{', '.join(names)} (or 0..{len(place) - 1})"
        raise ConfigError(f"override key {key!r}: no entry {part!r}; there are {known}")
    raise ConfigError(f"override key {key!r}: nothing inside")
