"""Waiting for a condition, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds a test waits for what normally takes milliseconds. Only a test that fails waits that long.
PATIENCE = 240.0


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first value of ``condition`` that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.02)
    return value
