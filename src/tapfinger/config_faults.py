"""What is wrong with a scenario: pydantic's faults as messages that say what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel

#: Expected shape of a value, by the type of pydantic's error.
_SHAPES = {
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "string_type": "text",
}

#: Example keys for each kind of speed.
_SPEEDS = {
    "constant": "slots=4",
    "tanh": 'resource="gpu", scale=16',
    "amdahl": "seconds=60, parallel={gpu=0.9}",
    "power": "seconds=60, exponent={gpu=0.7}",
    "rebound": "compute=60, feeding=2",
    "grid": "amounts={gpu=[1, 2, 4]}, seconds=[60, 35, 25]",
    "table": 'file="profiles.csv"',
    "testbed": 'type="language-modeling"',
}


def explain(item: Any, models: Sequence[type[BaseModel]], hidden: Iterable[str]) -> str:
    """Explain one fault that pydantic found. ``models``: all sections; ``hidden``: fields that are not keys."""
    location, kind = _without_kind(item["loc"])
    key = ".".join(str(part) for part in location)
    fault, context = item["type"], item.get("ctx", {})
    if fault == "extra_forbidden":
        return f"unknown key {key!r}.{_closest_field(str(location[-1]), kind, models, hidden)}"
    if fault == "missing":
        return f"{key} is missing; add it"
    if fault == "union_tag_invalid":
        return f"{key}.kind = {context['tag']!r} must be one of {', '.join(_SPEEDS)}"
    if fault == "union_tag_not_found":
        return f"{key}.kind is missing; add one of {', '.join(_SPEEDS)}"
    if fault == "too_short":
        return f"{key} is empty; give at least {context['min_length']} entry"
    if fault == "too_long":
        return f"{key} has {context['actual_length']:,} entries, at most {context['max_length']:,} are possible"
    if fault in _SHAPES:
        return f"{key} = {item['input']!r} must be {_SHAPES[fault]}"
    given = "" if isinstance(item["input"], dict | list) else f" (got {item['input']!r})"
    text = item["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
    return f"{key or 'the whole'}: {text}{given}"


def _without_kind(location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], str | None]:
    """Location of a fault, and the kind of speed it is in, which pydantic lists as if it were a key."""
    if location[2:3] == ("speed",) and len(location) > 3:
        return (*location[:3], *location[4:]), str(location[3])
    return location, None


def switching(item: Any, models: Sequence[type[BaseModel]], hidden: Iterable[str]) -> str:
    """Advice for the keys of a speed: each kind has its own keys, so switching the kind needs a new table."""
    location, kind = _without_kind(item["loc"])
    if (
        kind is None
        or item["type"] not in ("extra_forbidden", "missing")
        or ("Did you mean" in explain(item, models, hidden))
    ):
        return ""
    table = ".".join(str(part) for part in location[:3])
    return f"To switch the kind, replace the whole table: --set '{table}={{kind=\"{kind}\", {_SPEEDS[kind]}}}'"


def _closest_field(key: str, kind: str | None, models: Sequence[type[BaseModel]], hidden: Iterable[str]) -> str:
    """A hint for a misspelt key, from the keys of this kind of speed, or from the keys of all sections."""
    if kind is not None:
        models = [
            m for m in models if "kind" in m.model_fields and get_args(m.model_fields["kind"].annotation) == (kind,)
        ]
    known = {name for model in models for name in model.model_fields} - set(hidden) - {key}
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    if close:
        return f" Did you mean {close[0]!r}?"
    if kind is not None:
        return f" Kind {kind!r} has the keys {', '.join(sorted(known - {'kind'}))}."
    return " Remove it, or see docs/config.md for the keys there are."
