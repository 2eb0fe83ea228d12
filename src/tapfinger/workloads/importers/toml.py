"""A writer for scenario files: plain data of tables, lists of tables and inline values as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def to_toml(data: Mapping[str, Any]) -> str:
    """TOML text of nested plain data; the standard library can only read it."""
    scalars = {k: v for k, v in data.items() if not isinstance(v, Mapping) and not _is_tables(v)}
    lines = _assignments(scalars)
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *_assignments(value)]
        elif _is_tables(value):
            for table in value:
                lines += ["", f"[[{_key(key)}]]", *_assignments(table)]
    return "\n".join(lines) + "\n"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_assignments(value)) + " }"
    return "[" + ", ".join(_value(item) for item in value) + "]"
