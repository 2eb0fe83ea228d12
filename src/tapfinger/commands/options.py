"""Options of commands: options made from the fields of typed configurations, and options that many commands share."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from tapfinger.errors import ConfigError
from tapfinger.settings import REQUIRED, Described, described

if TYPE_CHECKING:
    from tapfinger.live.http.client import Client

# --------------------------------------------------------------------------- shared by many commands

ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A shipped scenario (see 'tapfinger scenarios') or a TOML file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override any key of the scenario, e.g. arrivals.rate=4. May be repeated."
    ),
]
JobsOption = Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Processes. Results do not depend on it.")]
RayOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster: HOST:PORT, auto (the one this machine belongs to) or local (start one here). "
        "Results do not depend on it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]

StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="State directory of the site. Without it: $TAPFINGER_STATE."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL[,URL]", help="Addresses of coordinators. Without it: $TAPFINGER_URL."),
]


def open_client(state: Path | None, url: str | None) -> Client:
    """A client for the site that the options name."""
    from tapfinger.live.http.client import Client
    from tapfinger.live.state_dir import find_coordinator, find_trust

    ca, server_name = find_trust(state, url)
    return Client(*find_coordinator(state, url), ca=ca, server_name=server_name)


# --------------------------------------------------------------------------- texts as values


def name_values(option: str, given: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts of an option."""
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"{option} {text!r} must look like NAME=VALUE")
        pairs[name] = value
    return pairs


def amounts(option: str, given: list[str] | None) -> dict[str, float]:
    """``NAME=AMOUNT`` texts of an option."""
    try:
        return {name: float(value) for name, value in name_values(option, given).items()}
    except ValueError as error:
        raise ConfigError(f"{option}: {error}; an amount is a number, such as cpu=2") from None


def numbers(option: str, text: str | None, zero: bool = False) -> dict[str, float] | None:
    """``cpu=64,gpu=8`` -> numbers by name."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"{option} {text}: {part!r} must look like name=number") from None
        if not (math.isfinite(number) and number >= 0 and (zero or number > 0)):
            raise ConfigError(f"{option} {text}: {part!r} must be {'0 or more' if zero else 'above 0'}")
        found[name.strip()] = number
    return found


# --------------------------------------------------------------------------- made from configurations


@dataclass(frozen=True)
class Fields:
    """Metadata of a command's parameter: which fields of a configuration become options for it.

    ``run: Annotated[TrainConfig, Fields(TrainConfig)]`` receives the object; with ``make=dict``, a dict of the values.
    """

    config: type
    #: Names of fields, separated by blanks, in the order of ``--help``. Empty: all fields with a ``FieldHelp``.
    names: str = ""
    #: Presets by name, with values for options that are left out. Help shows these values as defaults, those of the
    #: first preset without its name. With presets, the parameter receives only the options that were given.
    presets: Mapping[str, Mapping[str, Any]] | None = None
    #: With presets: fields that no preset sets, separated by blanks; the parameter always receives them.
    always: str = ""
    #: Defaults of the command, instead of those of the configuration.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Called with the values; None: the configuration class itself.
    make: Callable[..., Any] | None = None
    #: Field -> type of the option, and a function of the option's name and value that returns the field's value.
    parsers: Mapping[str, tuple[Any, Callable[[str, Any], Any]]] = field(default_factory=dict)

    def chosen(self) -> dict[str, Described]:
        """The fields, in order."""
        known = described(self.config)
        return {name: known[name] for name in self.names.split()} if self.names else known

    def parameters(self) -> list[inspect.Parameter]:
        """The options as parameters of a function."""
        return [self._parameter(item) for item in self.chosen().values()]

    def _parameter(self, item: Described) -> inspect.Parameter:
        kind, default = item.type, self.defaults.get(item.name, item.default)
        if item.name in self.parsers:
            kind = self.parsers[item.name][0]
            default = False if kind is bool else None
        text = item.setting.option_help or item.setting.help
        if self._optional(item):
            kind, text, default = kind | None, f"{text}{self._hint(item)}", None
        option = typer.Option(
            *item.setting.option.split(),
            help=text,
            metavar=item.setting.metavar,
            min=item.setting.min,
            max=item.setting.max,
        )
        return inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[kind, option],
            default=inspect.Parameter.empty if default is REQUIRED else default,
        )

    def _optional(self, item: Described) -> bool:
        return self.presets is not None and item.name not in self.always.split()

    def _hint(self, item: Described) -> str:
        """``[default: 60; paper: 0]``: the value of the first preset, and values of others where they differ."""
        values = {preset: given.get(item.name, item.default) for preset, given in (self.presets or {}).items()}
        first, *others = values
        words = [f"default: {item.value_text(values[first])}"]
        words += [f"{other}: {item.value_text(values[other])}" for other in others if values[other] != values[first]]
        return f" [{'; '.join(words)}]" if item.value_text(values[first]) else ""

    def gather(self, values: dict[str, Any]) -> Any:
        """Remove the options' values from ``values``, and return what the parameter receives."""
        given = {}
        for name, item in self.chosen().items():
            value = values.pop(name)
            if value is None and self._optional(item):
                continue
            given[name] = self.parsers[name][1](item.option, value) if name in self.parsers else value
        return (self.make or self.config)(**given)


def expand_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: replace each parameter annotated with ``Fields`` by one option per field."""
    signature = inspect.signature(command, eval_str=True)
    expanded: list[inspect.Parameter] = []
    groups: dict[str, Fields] = {}
    for name, parameter in signature.parameters.items():
        parts = get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else ()
        group = next((part for part in parts if isinstance(part, Fields)), None)
        if group is None:
            expanded.append(parameter)
        else:
            groups[name] = group
            expanded += group.parameters()
    options = signature.replace(parameters=expanded)

    @functools.wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        bound = options.bind(*arguments, **named)
        bound.apply_defaults()
        values = dict(bound.arguments)
        command(**{name: group.gather(values) for name, group in groups.items()}, **values)

    run.__signature__ = options  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return run
