"""Thousands of random histories of the protocol; tests/live/test_protocol.py plays the first ones."""

from __future__ import annotations

from typing import Any

import pytest
from live.histories import check_histories

#: Histories of a block. In a hundred there may be too few late results by chance, and the block would prove less.
BLOCK = 200


@pytest.mark.parametrize("changes", [{}, {"replicas": True}, {"older": True}], ids=["one", "replicas", "older"])
@pytest.mark.parametrize("block", range(1, 10))
def test_nothing_is_lost_and_nothing_runs_twice(block: int, changes: dict[str, Any]) -> None:
    check_histories(range(block * BLOCK, block * BLOCK + BLOCK), **changes)
