"""Six hundred starts at once on one cluster, under a lease that is shorter than they take one after the other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from live.starting import start_many


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_six_hundred_starts_at_once(tmp_path: Path) -> None:
    took = start_many(tmp_path, tasks=600, lease=15.0)
    sys.stderr.write(f"600 starts at a lease of 15 s: all ran after {took:.1f} s, none was lost\n")
