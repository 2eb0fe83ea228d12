"""Schedulers and seeds in command-line notation. The only module that parses these notations."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tapfinger.core.contract import Scheduler
from tapfinger.errors import ConfigError
from tapfinger.overrides import parse_value
from tapfinger.registry import create_scheduler

#: Largest number of seeds; more are taken for a typing error.
MAX_SEEDS = 100_000

#: Schedulers compared by default.
USUAL_SCHEDULERS = ("min", "random", "tiresias", "optimus", "greedy", "lookahead", "tapfinger")


@dataclass(frozen=True)
class SchedulerSpec:
    """A scheduler by name or ``package.module:Class``, with its options."""

    #: The text as written; the name in tables and results.
    text: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def create(self) -> Scheduler:
        """Create the scheduler; raises an error if it cannot be made with these options."""
        scheduler: Scheduler = create_scheduler(self.text, self.name, dict(self.options))
        return scheduler


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside quotes and brackets."""
    parts, depth, quote, begin = [], 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]


def parse_spec(text: str) -> SchedulerSpec:
    """One scheduler: ``name@option=value@option=value``."""
    text = text.strip()
    name, *given = _split(text, "@")
    if not name:
        raise ConfigError(f"scheduler {text!r} has no name; write for example greedy, or greedy@patience=2")
    options: dict[str, Any] = {}
    for item in given:
        option, equals, value = item.partition("=")
        if not equals or not option.isidentifier():
            raise ConfigError(f"scheduler {text!r}: {item!r} must look like option=value, for example min@pending=5")
        if option in options:
            raise ConfigError(f"scheduler {text!r}: option {option!r} is given twice")
        options[option] = parse_value(value)
    return SchedulerSpec(text, name, tuple(options.items()))


def parse_specs(text: str) -> tuple[SchedulerSpec, ...]:
    """Schedulers separated by commas, each once."""
    specs = [parse_spec(part) for part in _split(text, ",") if part.strip()]
    if not specs:
        raise ConfigError("no scheduler is given; write for example --schedulers min,random")
    texts = [spec.text for spec in specs]
    for text_ in texts:
        if texts.count(text_) > 1:
            raise ConfigError(f"scheduler {text_!r} is given twice")
    return tuple(specs)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds: ``7``, ``1,2,3``, ``0:30`` (without 30), or a mixture like ``0:5,100:105``."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*:\s*(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"seeds {text!r}: {part!r} is no seed; write 7, or 1,2,3, or 0:30 for 0 to 29")
        if len(part) > 60:
            raise ConfigError(f"seeds: {part[:60]!r}... is too large a number; write for example 0:30")
        first = int(match[1])
        end = int(match[2]) if match[2] else first + 1
        if end <= first:
            raise ConfigError(f"seeds {text!r}: {part!r} is empty; the end must come after the beginning, as in 0:30")
        if end - first + len(seeds) > MAX_SEEDS:
            raise ConfigError(f"seeds {text!r}: more than {MAX_SEEDS:,} seeds")
        seeds += range(first, end)
    if len(set(seeds)) < len(seeds):
        twice = Counter(seeds).most_common(1)[0][0]
        raise ConfigError(f"seeds {text!r}: {twice} is given twice")
    return tuple(seeds)


def describe_seeds(seeds: tuple[int, ...]) -> str:
    """The shortest notation that ``parse_seeds`` reads as these seeds."""
    parts: list[str] = []
    begin = 0
    for i in range(1, len(seeds) + 1):
        if i == len(seeds) or seeds[i] != seeds[i - 1] + 1:
            run = seeds[begin:i]
            parts.append(f"{run[0]}:{run[-1] + 1}" if len(run) > 1 else str(run[0]))
            begin = i
    return ",".join(parts)
