"""Nothing decides, records or answers otherwise than it did when digests.json was recorded.

One seed of each run and some of the histories; tests/soak/test_digests.py has the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import digests

RECORDED = digests.recorded()


@pytest.mark.parametrize("seed", digests.SEEDS[:1], ids="seed{}".format)
@pytest.mark.parametrize(("scenario", "spec", "override"), digests.runs())
def test_event_logs(scenario: str, spec: str, override: str, seed: int) -> None:
    wanted = digests.expected(digests.name_of(scenario, spec, override, seed))
    assert digests.run_digest(scenario, spec, override, seed) == wanted


@pytest.mark.parametrize("replicas", [False, True], ids=["single", "replicas"])
def test_protocol_histories(replicas: bool) -> None:
    found = {seed: digests.history_digest(seed, replicas) for seed in digests.HISTORIES[:30]}
    kind = "replicas" if replicas else "single"
    assert [seed for seed, value in found.items() if value != RECORDED[f"history {kind} {seed}"]] == []


def test_results_of_a_comparison(tmp_path: Path) -> None:
    assert digests.comparison_digest(tmp_path / "out") == RECORDED["comparison"]


def test_http_interface(tmp_path: Path) -> None:
    assert digests.openapi_digest(tmp_path) == RECORDED["openapi"]
