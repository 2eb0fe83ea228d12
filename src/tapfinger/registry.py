"""Names to classes: a table of lazy ``package.module:Class`` strings, then entry points, then a given path.

Strings, so that looking up one scheduler imports only that one.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError, UnknownNameError

#: kind -> name -> where it is. A factory may be a class or a function; options become keyword arguments.
BUILT_IN: dict[str, dict[str, str]] = {
    "scheduler": {
        "random": "tapfinger.schedulers.naive:Random",
        "min": "tapfinger.schedulers.naive:Min",
        "optimus": "tapfinger.schedulers.optimus:Optimus",
        "optimus-central": "tapfinger.schedulers.optimus:central",
        "optimus-first-wins": "tapfinger.schedulers.optimus:first_wins",
        "optimus-static": "tapfinger.schedulers.optimus:static",
        "tiresias": "tapfinger.schedulers.tiresias:Tiresias",
        "tiresias-elastic": "tapfinger.schedulers.tiresias:elastic",
        "tiresias-nonpreemptive": "tapfinger.schedulers.tiresias:nonpreemptive",
        "fifo": "tapfinger.schedulers.fifo:Fifo",
        "shortest-first": "tapfinger.schedulers.shortest_first:ShortestFirst",
        "greedy": "tapfinger.schedulers.greedy:Greedy",
        "lookahead": "tapfinger.schedulers.lookahead:Lookahead",
        "tapfinger": "tapfinger.schedulers.tapfinger:TapFinger",
    },
    "arrivals": {
        "poisson": "tapfinger.workloads.arrivals:Poisson",
        "bursty": "tapfinger.workloads.arrivals:Bursty",
        "day-night": "tapfinger.workloads.arrivals:DayNight",
        "trace": "tapfinger.workloads.trace:Trace",
    },
}

#: Entry-point group of each kind.
GROUPS = {"scheduler": "tapfinger.schedulers", "arrivals": "tapfinger.workloads", "backend": "tapfinger.backends"}


def names(kind: str) -> list[str]:
    """All names known for a kind, built in and installed."""
    return sorted({*BUILT_IN.get(kind, {}), *(e.name for e in entry_points(group=GROUPS[kind]))})


@cache
def lookup(kind: str, name: str) -> Any:
    """The factory behind a name or a ``package.module:Class`` path."""
    target = BUILT_IN.get(kind, {}).get(name)
    if target is None:
        for entry in entry_points(group=GROUPS[kind], name=name):
            return entry.load()
        if ":" not in name:
            raise UnknownNameError(kind, name, names(kind))
        target = name
        # A class beside the user's own script must be found although we run as an installed program.
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
    module_name, _, attribute = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{kind} {name!r} must look like package.module:Class")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        # Only if that very module (or its package) is missing, not something that it imports itself.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{kind} {name!r}: there is no module {module_name!r} on the Python path") from None
        raise
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"{kind} {name!r}: module {module_name} has no {attribute!r}")
    return found


def module_of(kind: str, name: str) -> str:
    """The module that a name points into; its factory may have been written in another one."""
    target = BUILT_IN.get(kind, {}).get(name)
    if target is None:
        for entry in entry_points(group=GROUPS[kind], name=name):
            return entry.module
    return (target or name).partition(":")[0]


def create(kind: str, name: str, options: dict[str, Any]) -> Any:
    """Call the factory with options; an option it does not take is an error that lists the ones it does."""
    factory = lookup(kind, name)
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            close = difflib.get_close_matches(option, parameters, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"{kind} {name!r} has no option {option!r}.{hint} It takes: {', '.join(parameters) or 'none'}"
            )
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in options
    ]
    if missing:
        raise ConfigError(f"{kind} {name!r} needs {', '.join(missing)}")
    return factory(**options)
