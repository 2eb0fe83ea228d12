"""A scheduler that does what a file says, for tests of what a coordinator makes of it. Uses nothing of the tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tapfinger.core.contract import Decision, Placement, SchedulerContext, Snapshot
from tapfinger.registry import create


class Rude(Exception):  # noqa: N818 - it is no error of ours
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Sly(Decision):
    """Raises when it is looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name == "placements":
            raise LookupError("do not look")
        return super().__getattribute__(name)


class Naughty:
    """Decides as ``min``, unless the file asks for something else."""

    one_shot = True
    name = "naughty"

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._good = create("scheduler", "min", {})
        self.one_shot = self._good.one_shot

    def reset(self, context: SchedulerContext) -> None:
        self._good.reset(context)

    def decide(self, snapshot: Snapshot) -> Any:
        how = self._file.read_text().strip()
        if how == "good" or not snapshot.queue:
            return self._good.decide(snapshot)
        return getattr(self, f"_{how}")(snapshot)

    def _raises(self, snapshot: Snapshot) -> Any:
        raise ValueError("\x1b]0;boo\x07" + "x" * 1_000_000)

    def _rude(self, snapshot: Snapshot) -> Any:
        raise Rude

    def _leaves(self, snapshot: Snapshot) -> Any:
        sys.exit(3)

    def _interrupts(self, snapshot: Snapshot) -> Any:
        raise KeyboardInterrupt

    def _dies(self, snapshot: Snapshot) -> Any:
        os._exit(7)

    def _abandons(self, snapshot: Snapshot) -> Any:
        """Ends, but not what it has started, which has the connection too."""
        self._starts(snapshot)
        os._exit(7)

    def _starts(self, snapshot: Snapshot) -> Any:
        """Starts a process that does not end by itself."""
        begun, begin = os.pipe()
        if (child := os.fork()) == 0:
            os.write(begin, b"x")
            while True:
                time.sleep(600.0)
        os.read(begun, 1)
        self._file.with_name("child").write_text(str(child))
        return self._good.decide(snapshot)

    def _hangs(self, snapshot: Snapshot) -> Any:
        while True:
            pass

    def _eats(self, snapshot: Snapshot) -> Any:
        heap = []
        while True:
            heap.append(bytearray(50_000_000))

    def _nothing(self, snapshot: Snapshot) -> Any:
        return None

    def _fractions(self, snapshot: Snapshot) -> Any:
        return Decision((Placement(snapshot.queue[0].id, 0, (float("nan"), 0)),))  # type: ignore[arg-type]

    def _unknown(self, snapshot: Snapshot) -> Any:
        return Decision((Placement(10**9, 0, (1, 0)),))

    def _too_large(self, snapshot: Snapshot) -> Any:
        return Decision((Placement(snapshot.queue[0].id, 0, (10**30, 0)),))

    def _nowhere(self, snapshot: Snapshot) -> Any:
        return Decision((Placement(snapshot.queue[0].id, "left", (1, 0)),))  # type: ignore[arg-type]

    def _many(self, snapshot: Snapshot) -> Any:
        return Decision((Placement(snapshot.queue[0].id, 0, (1, 0)),) * 3_000_000)

    def _sly(self, snapshot: Snapshot) -> Any:
        return Sly()

    def _babbles(self, snapshot: Snapshot) -> Any:
        for fd in map(int, os.listdir("/proc/self/fd")):  # the line to the coordinator has any number
            if fd < 3:
                continue
            try:
                os.write(fd, b"\xff" * 64)
            except OSError:
                continue
        return self._good.decide(snapshot)
