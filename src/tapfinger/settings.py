"""The meaning of a configuration field, stated once for its option, its reference page and the check of its value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from tapfinger.errors import ConfigError

#: A setting without a default.
REQUIRED = MISSING


@dataclass(frozen=True, slots=True)
class FieldHelp:
    """Metadata of a field: ``tasks: Annotated[int, FieldHelp("Number of tasks.", min=1)] = 500``."""

    #: One sentence; also the help of the option.
    help: str
    #: Placeholder for the value in help, such as SECONDS.
    metavar: str | None = None
    #: Smallest and largest value.
    min: float | None = None
    max: float | None = None
    #: The value must be greater than this.
    above: float | None = None
    #: Option names where they differ from the field's name, separated by spaces: "--minimum --min".
    option: str = ""
    #: Help of the option where it differs from ``help``: for a flag that stands for a value, for example.
    option_help: str = ""
    #: Text shown for special default values: ``{0: "no limit"}``.
    words: Mapping[Any, str] = field(default_factory=dict)

    @property
    def bounds(self) -> str:
        """The bounds in words; empty if there are none."""
        if self.min is not None and self.max is not None:
            return f"between {self.min:g} and {self.max:g}"
        limits = (("at least", self.min), ("at most", self.max), ("above", self.above))
        return " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)


@dataclass(frozen=True, slots=True)
class Described:
    """A field with its help."""

    name: str
    #: The field's type, without metadata.
    type: Any
    default: Any
    setting: FieldHelp

    @property
    def option(self) -> str:
        """The field's first name on the command line."""
        return self.setting.option.split()[0] if self.setting.option else f"--{self.name.replace('_', '-')}"

    def value_text(self, value: Any) -> str:
        """A value for people to read: ``8M``, ``1,2``, or its text in ``words``."""
        if not isinstance(value, Mapping | list) and value in self.setting.words:
            return self.setting.words[value]
        if isinstance(value, tuple | list):
            return ",".join(map(self.value_text, value))
        if isinstance(value, int) and value and value % 1_000_000 == 0:
            return f"{value // 1_000_000}M"
        return f"{value:g}" if isinstance(value, float) else str(value)


def described(config: type) -> dict[str, Described]:
    """The fields of a dataclass that have a FieldHelp, by name."""
    hints, plain = get_type_hints(config, include_extras=True), get_type_hints(config)
    found = {}
    for each in fields(config):
        if get_origin(hints[each.name]) is not Annotated:
            continue
        _, *metadata = get_args(hints[each.name])
        setting = next((item for item in metadata if isinstance(item, FieldHelp)), None)
        if setting is not None:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            found[each.name] = Described(each.name, plain[each.name], default, _bounded(setting, metadata))
    return found


def _bounded(setting: FieldHelp, metadata: list[Any]) -> FieldHelp:
    """Add the bounds that pydantic checks on the field, for values that come over the wire."""
    bounds = [bound for item in metadata for bound in getattr(item, "metadata", ())]
    least = next((bound.ge for bound in bounds if hasattr(bound, "ge")), setting.min)
    most = next((bound.le for bound in bounds if hasattr(bound, "le")), setting.max)
    above = next((bound.gt for bound in bounds if hasattr(bound, "gt")), setting.above)
    return replace(setting, min=least, max=most, above=above)


def check_settings(config: Any, options: bool = False) -> None:
    """Raise ConfigError for a number outside its bounds. ``options``: name options in the message, not fields."""
    for item in described(type(config)).values():
        value, setting = getattr(config, item.name), item.setting
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        holds = (
            math.isfinite(value)
            and (setting.min is None or value >= setting.min)
            and (setting.max is None or value <= setting.max)
            and (setting.above is None or value > setting.above)
        )
        if not holds:
            name = item.option if options else f"{item.name} ="
            raise ConfigError(f"{name} {value:g} must be {setting.bounds or 'a finite number'}")
