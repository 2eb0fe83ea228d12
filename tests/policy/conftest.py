"""These tests need torch; where it is missing they are left out, never where something else is wrong."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
