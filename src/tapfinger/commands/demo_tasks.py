"""The tasks of ``tapfinger demo``: short test-bed tasks if PyTorch is installed, otherwise programs that sleep."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NamedTuple

from tapfinger.errors import ConfigError


class Kind(NamedTuple):
    """A small program, and the least and most cpus it may get."""

    name: str
    argv: tuple[str, ...]
    least: int
    most: int
    retries: int = 0


class Batch(NamedTuple):
    """Tasks for the demo, and a site that knows their speed."""

    about: str
    kinds: tuple[Kind, ...]
    #: Default number of tasks.
    many: int
    site: str


def choose(testbed: bool | None, local: bool) -> Batch:
    """The batch that was asked for, or that can run. ``local``: tasks run on this machine, with what is installed."""
    installed = find_spec("torch") is not None
    if testbed and not installed:
        raise ConfigError("--testbed needs PyTorch: pip install 'tapfinger[train]'")
    return TESTBED if (installed and local if testbed is None else testbed) else SLEEPERS


_HEAD = "import os, sys, time; cpus = float(os.environ['TAPFINGER_CPUS']); "


def _sleeper(name: str, code: str, least: int, most: int, retries: int = 0) -> Kind:
    return Kind(name, ("python3", "-c", _HEAD + code), least, most, retries)


SLEEPERS = Batch(
    about="Tasks: small programs that sleep or count (for real ones: pip install 'tapfinger[train]').",
    kinds=(
        _sleeper("short", "time.sleep(1)", 1, 1),
        _sleeper("burn", "end = time.process_time() + 3 / cpus\nwhile time.process_time() < end: pass", 1, 4),
        _sleeper("wide", "time.sleep(6 / cpus)", 2, 4),
        _sleeper("long", "time.sleep(2 + 6 / cpus)", 1, 8),
        _sleeper("flaky", "time.sleep(0.5); sys.exit(os.environ['TAPFINGER_ATTEMPT'] == '1')", 1, 1, retries=1),
    ),
    many=20,
    site="""
name = "demo"
[[clusters]]
name = "edge-1"
capacity = {cpu = 4, gpu = 0}
[[clusters]]
name = "edge-2"
capacity = {cpu = 2, gpu = 0}
[[task_types]]
name = "short"
minimum = {cpu = 1, gpu = 0}
speed = {kind = "constant", seconds = 1}
[[task_types]]
name = "burn"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "amdahl", seconds = 3, parallel = {cpu = 1.0}}
[[task_types]]
name = "wide"
minimum = {cpu = 2, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "amdahl", seconds = 3, parallel = {cpu = 1.0}}
[[task_types]]
name = "long"
minimum = {cpu = 1, gpu = 0}
maximum = {cpu = 4}
speed = {kind = "amdahl", seconds = 8, parallel = {cpu = 0.75}}
[[task_types]]
name = "flaky"
minimum = {cpu = 1, gpu = 0}
speed = {kind = "constant", seconds = 1}
""",
)


def _real(name: str, module: str) -> Kind:
    # With this interpreter: it has PyTorch, another python3 may not.
    return Kind(name, (sys.executable, "-m", f"tapfinger.testbed.{module}", "--scale", "0.1"), 1, 2)


TESTBED = Batch(
    about="Tasks: image classification, language modelling and speech recognition of the test-bed (docs/testbed.md), "
    "shortened.",
    kinds=(
        _real("image-classification", "image_classification"),
        _real("language-modeling", "language_modeling"),
        _real("speech-recognition", "speech_recognition"),
    ),
    many=9,
    site="""
name = "demo"
[[clusters]]
name = "edge-1"
capacity = {cpu = 2, gpu = 2}
[[clusters]]
name = "edge-2"
capacity = {cpu = 1, gpu = 1}
[[task_types]]
name = "image-classification"
minimum = {cpu = 1, gpu = 1}
maximum = {cpu = 2, gpu = 2}
speed = {kind = "rebound", fixed = 2, compute = 3, feeding = 1}
[[task_types]]
name = "language-modeling"
minimum = {cpu = 1, gpu = 1}
maximum = {cpu = 2, gpu = 2}
speed = {kind = "rebound", fixed = 2, compute = 2, feeding = 1}
[[task_types]]
name = "speech-recognition"
minimum = {cpu = 1, gpu = 1}
maximum = {cpu = 2, gpu = 2}
speed = {kind = "rebound", fixed = 3, compute = 1, feeding = 1}
""",
)
