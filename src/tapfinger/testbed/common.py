"""Shared by the test-bed's tasks, without torch: their options, and the resources they were given."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from tapfinger.errors import ConfigError, TapfingerError

#: Exit codes: done; the goal was not reached; the task could not start.
DONE, MISSED, REFUSED = 0, 1, 2

#: Largest scale: beyond it, targets lie below what the tasks can reach.
MOST_SCALE = 1.5


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options from the command line."""

    #: 1 for the whole task, less for a shorter one of the same kind.
    scale: float = 1.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Allotment:
    """The resources that a task may use, according to its environment."""

    cpus: int
    #: None if the environment does not say, as outside TapFinger.
    gpus: int | None

    @property
    def workers(self) -> int:
        """One worker per gpu, and one if there is none."""
        return max(1, self.gpus or 0)

    def threads(self, workers: int) -> int:
        """Threads of each worker: the cpus are shared evenly."""
        return max(1, self.cpus // workers)


def allotment(environ: Mapping[str, str]) -> Allotment:
    """Read ``TAPFINGER_CPUS`` and ``TAPFINGER_GPUS``; without the first, all cores that this process may use."""
    here = len(os.sched_getaffinity(0))
    cpus, gpus = _amount(environ, "TAPFINGER_CPUS"), _amount(environ, "TAPFINGER_GPUS")
    return Allotment(here if cpus is None else max(1, cpus), gpus)


def _amount(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        amount = float(text)
        if not 0.0 <= amount < 10_000:
            raise ValueError
    except ValueError:
        raise ConfigError(f"{name} = {text!r} must be a number from 0 to 9999") from None
    return int(amount)


def read_options(about: str, argv: Sequence[str] | None) -> RunOptions:
    """The same options for every task."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="1 for the whole task, 0.1 for a much shorter one")
    parser.add_argument("--seed", type=int, default=1, help="of data and weights; the same one, the same losses")
    given = parser.parse_args(argv)
    if not 0.0 < given.scale <= MOST_SCALE:
        raise ConfigError(f"--scale {given.scale:g} must be above 0 and at most {MOST_SCALE:g}")
    if not 0 <= given.seed < 2**31:
        raise ConfigError(f"--seed {given.seed} must be from 0 to {2**31 - 1}")
    return RunOptions(given.scale, given.seed)


def run_task(about: str, module: str, argv: Sequence[str] | None = None) -> int:
    """Run the ``work`` function of a module with as many workers as were allotted; return its exit code."""
    try:
        options = read_options(about, argv)
        granted = allotment(os.environ)
        if find_spec("torch") is None:
            raise ConfigError("the test-bed's tasks need PyTorch: pip install 'tapfinger[train]'")
        # Waiting threads yield instead of spinning: simulated clusters share real cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        parallel = import_module("tapfinger.testbed.parallel")
        code: int = parallel.run_workers(import_module(module).work, options, granted)
    except TapfingerError as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    return code


def say(text: str) -> None:
    """Print a line for whoever follows the task's output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
