"""How fast GPU models are relative to each other, for traces that name models but not speeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tapfinger.errors import ConfigError

#: Training speed relative to a V100. Rounded figures for typical deep-learning training in mixed precision where the
#: GPU has it: single models differ by a factor of two either way, so measured ones belong in --gpu-speed.
SPEEDS: dict[str, float] = {
    "K80": 0.15,
    "M40": 0.2,
    "M60": 0.15,
    "P4": 0.2,
    "P40": 0.4,
    "P100": 0.5,
    "T4": 0.3,
    "V100": 1.0,
    "L4": 0.6,
    "A10": 0.8,
    "A16": 0.3,
    "A30": 1.3,
    "A40": 1.2,
    "L40": 1.6,
    "L40S": 2.0,
    "A100": 2.5,
    "A800": 2.5,
    "H20": 2.0,
    "H100": 5.0,
    "H800": 5.0,
    "H200": 6.0,
    "B200": 12.0,
    # Models of the openb trace that its authors do not disclose; a V100's speed is assumed.
    "G1": 1.0,
    "G2": 1.0,
    "G3": 1.0,
}

#: Most characters of a name that a message shows.
LONGEST = 60

#: Words before the model in names such as ``NVIDIA Tesla V100-SXM2-16GB``.
_MAKERS = re.compile(r"^(?:(?:NVIDIA|TESLA|GPU)[\s_-]*)+")


def speeds(kinds: Iterable[str], given: Mapping[str, float], source: str = "the trace") -> dict[str, float]:
    """Speed of every kind of GPU; ``given`` replaces the default by the name of the kind in ``source``, a file."""
    kinds = list(kinds)
    for name in given:
        if name not in kinds:
            known = f"{source} names {', '.join(sorted(kinds))}" if kinds else "this import has no kinds of GPUs"
            raise ConfigError(f"--gpu-speed names {name!r}, but {known}; correct the name, or leave it out")
    return {kind: given[kind] if kind in given else _usual(kind, source) for kind in kinds}


def _usual(kind: str, source: str) -> float:
    """The speed of the model that the name begins with: V100M16 and A100-SXM4-80GB are known, A1000 is not."""
    name = _MAKERS.sub("", kind.upper())
    fitting = [model for model in SPEEDS if re.match(rf"{model}(?!\d)", name)]
    if not fitting:
        raise ConfigError(
            f"{source} names GPU model {kind[:LONGEST]!r}, whose speed is not known; give it, relative to a V100, with "
            f"--gpu-speed {kind[:LONGEST]}=1. Known: {', '.join(SPEEDS)}"
        )
    return SPEEDS[max(fitting, key=len)]  # L40S begins with L40
