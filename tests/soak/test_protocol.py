"""Thousands of random histories of the protocol; tests/live/test_protocol.py plays the first ones."""

from __future__ import annotations

from typing import Any

import pytest
from live.histories import check_histories

BLOCK = 100


@pytest.mark.parametrize("changes", [{}, {"replicas": True}, {"older": True}], ids=["one", "replicas", "older"])
@pytest.mark.parametrize("block", range(1, 20))
def test_nothing_is_lost_and_nothing_runs_twice(block: int, changes: dict[str, Any]) -> None:
    check_histories(range(block * BLOCK, block * BLOCK + BLOCK), **changes)
