"""Thousands of random histories of the protocol; tests/live/test_protocol.py plays the first ones."""

from __future__ import annotations

import pytest
from live.histories import check_histories

BLOCK = 100


@pytest.mark.parametrize("replicas", [False, True])
@pytest.mark.parametrize("block", range(1, 20))
def test_nothing_is_lost_and_nothing_runs_twice(block: int, replicas: bool) -> None:
    check_histories(range(block * BLOCK, block * BLOCK + BLOCK), replicas)
