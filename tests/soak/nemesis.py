"""What nemesis tests have in common: a load whose tasks keep a diary, with bad tasks beside them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from live.sites import python

from tapfinger.errors import CoordinatorError
from tapfinger.live.http.client import Client, make_spec
from tapfinger.live.protocol.records import TaskSpec

SECONDS = float(os.environ.get("TAPFINGER_NEMESIS_SECONDS", "20"))
SEED = int(os.environ.get("TAPFINGER_NEMESIS_SEED", "7"))
CLUSTERS = ("left", "right")
#: Of the site's configuration: how long agents may act on their own, with the grace.
LEASE = 4.0

#: Writes one line when it begins, one every 50 ms while it is alive, and one when it ends by itself: the truth.
DIARY = """
import os, sys, time
who = f"{os.environ['TAPFINGER_TASK']}.{os.environ['TAPFINGER_ATTEMPT']}"
with open(who, "a", buffering=1) as diary:
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        diary.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
        time.sleep(0.05)
    diary.write(f"exit {sys.argv[2]}\\n")
sys.exit(int(sys.argv[2]))
"""

#: Tasks that come to nothing however often they are tried: no such program; one that kills what watches over it.
BAD = (["/there/is/no/such/program"], ["sh", "-c", "kill -9 $PPID; sleep 5"])


def bad_task(argv: Sequence[str], key: str) -> TaskSpec:
    """A task of ``BAD``, to be tried for as long as the site does."""
    return make_spec(argv=argv, type="demo", maximum={"cpu": 1}, retries=100, key=key)


class Load(threading.Thread):
    """Someone who submits and cancels all the while, and asks again with the same key where no answer comes."""

    def __init__(self, url: str, token: str, work: Path) -> None:
        super().__init__(daemon=True)
        self._url, self._token, self._work = url, token, work
        self._rng = np.random.default_rng(SEED + 1)
        self.over = threading.Event()
        #: Acknowledged; cancelled for certain; asked to be cancelled, perhaps in vain.
        self.tasks: list[int] = []
        self.cancelled: set[int] = set()
        self.doubtful: set[int] = set()
        #: Tasks of ``BAD``.
        self.bad: list[int] = []

    def run(self) -> None:
        with Client(self._url, self._token, timeout=3.0) as client:
            for argv in BAD:
                self.bad += self._submitted(client, bad_task(argv, f"bad {argv[0]}"))
            while not self.over.wait(self._rng.uniform(0.1, 0.6)):
                self._submit(client)
                if self._rng.random() < 0.2:
                    self._cancel(client)

    def end(self) -> None:
        self.over.set()
        self.join(30)

    def _submit(self, client: Client) -> None:
        seconds, code = f"{self._rng.uniform(0.2, 3.0):.2f}", str(self._rng.choice([0, 0, 3]))
        argv = [sys.executable, "-c", DIARY, seconds, code, str(self._work)]
        spec = python(DIARY, argv=argv, cwd=str(self._work), retries=1, key=f"key {len(self.tasks)}")
        self.tasks += self._submitted(client, spec)

    def _submitted(self, client: Client, spec: TaskSpec) -> list[int]:
        while not self.over.is_set():
            try:
                return client.submit(spec)
            except CoordinatorError:
                time.sleep(0.2)
        return []

    def _cancel(self, client: Client) -> None:
        chosen = int(self._rng.choice(self.tasks))
        try:
            if client.cancel(chosen).cancelled:
                self.cancelled.add(chosen)
        except CoordinatorError:
            self.doubtful.add(chosen)
