"""Ray heads on this machine, started as an administrator would and ended by their own pid."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: Ray gives its own parts half a minute, which no option changes, and the first time on a fresh checkout, with another
#: test beside it, they may need longer: their modules are compiled then. The next time they are quick.
TRIES = 4
PATIENCE = 100.0

#: In seconds, for tests that may be the first to start a head.
LONGEST = TRIES * PATIENCE


def with_token() -> dict[str, str]:
    """Environment of a head that asks for a token, and of who has it."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def started(
    options: Callable[[], tuple[T, list[str]]], env: Mapping[str, str], ready: Callable[[T, str], bool]
) -> Iterator[T]:
    """A head that runs; ``options`` says what it is to be called and draws its ports, anew for every try.

    ``ready`` is asked with what the head has printed so far.
    """
    for left in reversed(range(TRIES)):
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: the names of Ray's sockets have 107 characters
        name, words = options()
        words += [f"--temp-dir={folder}", f"--object-store-memory={100 << 20}", "--disable-usage-stats"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *words]
        log = Path(folder, "head.log")
        with log.open("w") as file:
            head = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env={**os.environ, **env}
            )
        try:
            if _comes_up(head, lambda name=name, log=log: ready(name, log.read_text())):
                yield name
                return
            assert left, log.read_text()
        finally:
            _end(head)
            shutil.rmtree(folder, ignore_errors=True)


def _comes_up(head: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while head.poll() is None and time.monotonic() < end:
        if ready():
            return True
        time.sleep(0.2)
    return False


def _end(head: subprocess.Popen[bytes]) -> None:
    head.terminate()  # it ends its own processes
    with suppress(subprocess.TimeoutExpired):
        head.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)  # those that it left, if it gave up: they are of its group
    head.wait()
