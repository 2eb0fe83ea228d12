"""Names to classes: a table of lazy ``package.module:Class`` strings, then entry points, then an explicit path.

The table holds strings so that looking up one scheduler imports only that one.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
import sysconfig
import traceback
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError, TapfingerError, UnknownNameError

#: kind -> name -> location. A factory may be a class or a function; options become keyword arguments.
BUILT_IN: dict[str, dict[str, str]] = {
    "scheduler": {
        "random": "tapfinger.schedulers.naive:Random",
        "min": "tapfinger.schedulers.naive:Min",
        "optimus": "tapfinger.schedulers.optimus:Optimus",
        "optimus-central": "tapfinger.schedulers.optimus:central",
        "optimus-first-wins": "tapfinger.schedulers.optimus:first_wins",
        "optimus-published": "tapfinger.schedulers.optimus:published",
        "optimus-static": "tapfinger.schedulers.optimus:static",
        "tiresias": "tapfinger.schedulers.tiresias:Tiresias",
        "tiresias-elastic": "tapfinger.schedulers.tiresias:elastic",
        "tiresias-nonpreemptive": "tapfinger.schedulers.tiresias:nonpreemptive",
        "fifo": "tapfinger.schedulers.fifo:Fifo",
        "shortest-first": "tapfinger.schedulers.shortest_first:ShortestFirst",
        "greedy": "tapfinger.schedulers.greedy:Greedy",
        "fluid": "tapfinger.schedulers.fluid:Fluid",
        "exploring": "tapfinger.schedulers.exploring:exploring",
        "unaware": "tapfinger.schedulers.unaware:unaware",
        "lookahead": "tapfinger.schedulers.lookahead:Lookahead",
        "tapfinger": "tapfinger.schedulers.tapfinger:TapFinger",
        "tapfinger+lookahead": "tapfinger.schedulers.learned_lookahead:learned",
    },
    "arrivals": {
        "poisson": "tapfinger.workloads.arrivals:Poisson",
        "bursty": "tapfinger.workloads.arrivals:Bursty",
        "day-night": "tapfinger.workloads.arrivals:DayNight",
        "trace": "tapfinger.workloads.trace:Trace",
    },
    "backend": {
        "process": "tapfinger.live.backends.process:Process",
        "ray": "tapfinger.live.backends.ray:Ray",
        "fake": "tapfinger.live.backends.fake:Fake",
    },
    # What agents compute their own proposals with: one function, which live finds here because it imports no networks.
    "inference": {"network": "tapfinger.schedulers.own_choice:choose"},
}

#: Entry-point group of each kind.
GROUPS = {
    "scheduler": "tapfinger.schedulers",
    "arrivals": "tapfinger.workloads",
    "backend": "tapfinger.backends",
    "figure": "tapfinger.figures",
}

#: The expected value for a plain annotation, in words.
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def names(kind: str) -> list[str]:
    """All names known for a kind, both built in and installed."""
    return sorted({*BUILT_IN.get(kind, {}), *(e.name for e in entry_points(group=GROUPS[kind]))})


@cache
def lookup(kind: str, name: str) -> Any:
    """The factory behind a name or a ``package.module:Class`` path."""
    found = find(kind, name)
    if not callable(found):
        raise ConfigError(f"{kind} {name!r} is a {type(found).__name__}; name a class, or a function that makes one")
    return found


def find(kind: str, name: str) -> Any:
    """The object behind a name or a ``package.module:NAME`` path: a factory, or declared data."""
    target = BUILT_IN.get(kind, {}).get(name)
    if target is None:
        for entry in entry_points(group=GROUPS[kind], name=name):
            try:
                return entry.load()
            except TapfingerError:
                raise
            except (Exception, SystemExit) as error:
                raise _blame(f"{kind} {name!r}: its entry point {entry.value} cannot be loaded", error) from error
        if ":" not in name:
            raise UnknownNameError(kind, name, names(kind))
        target = name
        # A class next to the user's own script must be found even though we run as an installed program.
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
    module_name, _, attribute = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{kind} {name!r} must look like package.module:Class")
    try:
        module = import_module(module_name)
    except TapfingerError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # Only if the module itself (or its package) is missing, not something that it imports.
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{kind} {name!r}: there is no module {module_name!r} on the Python path or below {Path.cwd()}"
            ) from None
        raise _blame(f"{kind} {name!r}: module {module_name} cannot be imported", error) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"{kind} {name!r}: module {module_name} has no {attribute!r}")
    return found


def _blame(what: str, error: BaseException) -> ConfigError:
    """An exception in code that is not ours, as one error that says where it was raised."""
    place = _user_line(error)
    return ConfigError(f"{what}: {f'{place}: ' if place else ''}{type(error).__name__}: {error}; correct it there")


def _user_line(error: BaseException) -> str:
    """``file:line`` of the last frame in the user's own code, or of the last frame if all code is installed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    frame = users_frame(error) or next((f for f in reversed(frames) if Path(f.filename).is_file()), None)
    return f"{frame.filename}:{frame.lineno}" if frame else ""


def users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame of a traceback in a file that is neither ours nor installed."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = (*installed, Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        # Frames of the import machinery and of compiled functions have names like <frozen ...>.
        if path.is_file() and not any(path.is_relative_to(folder) for folder in others):
            return frame
    return None


def module_of(kind: str, name: str) -> str:
    """The module that a name points into; its factory may be defined in another module."""
    target = BUILT_IN.get(kind, {}).get(name)
    if target is None:
        for entry in entry_points(group=GROUPS[kind], name=name):
            return entry.module
    return (target or name).partition(":")[0]


def create(kind: str, name: str, options: dict[str, Any]) -> Any:
    """Call the factory with options. A wrong option raises an error that lists the valid ones and their types."""
    factory = lookup(kind, name)
    parameters = _parameters(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option, value in options.items():
        if option not in parameters and not takes_any:
            close = difflib.get_close_matches(option, parameters, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"{kind} {name!r} has no option {option!r}.{hint} It takes: {', '.join(parameters) or 'none'}"
                f"{'' if close else _whole_table(kind, name, parameters)}"
            )
        wanted = _wanted(parameters[option].annotation, value) if option in parameters else None
        if wanted is not None:
            where = f"arrivals.{option}" if kind == "arrivals" else f"{kind} {name!r}: option {option}"
            raise ConfigError(f"{where} = {value!r} must be {wanted}")
    missing = [option for option in _required(parameters) if option not in options]
    if missing:
        raise ConfigError(f"{kind} {name!r} needs {', '.join(missing)}{_whole_table(kind, name, parameters)}")
    try:
        return factory(**options)
    except TapfingerError:
        raise
    except Exception as error:
        raise _blame(f"{kind} {name!r} cannot be made", error) from error


def create_scheduler(text: str, name: str, options: dict[str, Any]) -> Any:
    """A scheduler with these options; raises an error if it is none. ``text``: the scheduler as people wrote it."""
    made = create("scheduler", name, options)
    lacking = [part for part in ("one_shot", "reset", "decide") if not hasattr(made, part)]
    if lacking:
        raise ConfigError(
            f"scheduler {text!r} is a {type(made).__name__} without {', '.join(lacking)}; a scheduler needs "
            "one_shot, reset(context) and decide(snapshot)"
        )
    return made


def is_built_in(kind: str, name: str, options: Mapping[str, Any]) -> bool:
    """Whether only code of this package is called; the option ``of`` names another of the same kind."""
    inner = options.get("of")
    return name in BUILT_IN[kind] and (inner is None or inner in BUILT_IN[kind])


def _parameters(factory: Any) -> Mapping[str, inspect.Parameter]:
    """Parameters with their annotations as types, where the annotations can be resolved."""
    with suppress(Exception):  # an annotation that only a type checker understands may raise anything
        return inspect.signature(factory, eval_str=True).parameters
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # some built-in types have no signature
        return {}


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters.values() if p.default is p.empty and p.kind in by_name]


def _wanted(annotation: Any, value: Any) -> str | None:
    """The expected value in words if ``value`` is wrong; None if it is right, or if the annotation is not plain."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if union else (annotation,)
    plain = [member for member in members if member not in (None, type(None))]
    if not plain or any(member not in _WORDS for member in plain):
        return None
    if (value is None and len(plain) < len(members)) or any(_is(value, member) for member in plain):
        return None
    return " or ".join(_WORDS[member] for member in plain)


def _is(value: Any, wanted: type) -> bool:
    """Whether a value is acceptable for the type: an integer is accepted as a float, but a bool is not a number."""
    if wanted in (int, float):
        return isinstance(value, Integral if wanted is int else Real) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _whole_table(kind: str, name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """Advice for arrivals: options of one kind seldom suit another, so the whole table must be replaced."""
    if kind != "arrivals":
        return ""
    samples = {str: "FILE" if "file" in parameters else "..."}
    given = {
        "kind": name,
        **{option: samples.get(parameters[option].annotation, 1) for option in _required(parameters)},
    }
    table = ", ".join(f"{option}={json.dumps(value)}" for option, value in given.items())
    return f". To switch the kind, replace the whole table: --set 'arrivals={{{table}}}'"
