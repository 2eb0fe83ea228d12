"""Every shipped scenario that has real clusters and task types works as a site, with the line that ``up`` prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from live.up_sites import UpSite

from tapfinger.config import scenario_names


@pytest.mark.parametrize("name", scenario_names())
def test_the_line_to_try_works_on_every_shipped_scenario(tmp_path: Path, name: str) -> None:
    site = UpSite(tmp_path)
    try:
        site.try_line("--config", name)
    finally:
        site.close()
