"""A site outside what a model was trained on: said once, in words, with by how much."""

from __future__ import annotations

import logging

import pytest

from tapfinger.config import load_scenario
from tapfinger.policy.card import Card
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers import model_domain
from tapfinger.workloads.sites import draw_site, ranges
from tapfinger.workloads.world import build_world


def site(*changes: str) -> SiteTables:
    return SiteTables(build_world(load_scenario("multi-3", changes)).context(0))


@pytest.mark.parametrize("seed", range(20))
def test_drawn_sites_are_inside(seed: int) -> None:
    found = model_domain.measures(SiteTables(build_world(draw_site(seed)).context(0)))
    assert found.keys() == ranges().keys()
    # Durations are whole slots: the fastest run of a drawn type may be rounded up past the longest.
    faults = [fault for fault in model_domain.outside(found, ranges()) if "slots" not in fault]
    assert not faults


def test_each_fault_is_named_with_its_size() -> None:
    found = model_domain.measures(site("clusters.edge.count=40", "clusters.edge.capacity={cpu=300, gpu=96}"))
    faults = model_domain.outside(found, ranges())
    assert "40 clusters, it knows up to 24" in faults
    assert "96 accelerators of a cluster, it knows up to 64" in faults
    assert "300 units of another resource of a cluster, it knows up to 128" in faults
    assert not model_domain.outside(model_domain.measures(site()), ranges())
    assert not model_domain.outside(found, {})  # a model that does not say


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    card = Card("far", "full", "profiles", (), (), {}, training={"ranges": ranges()})
    model_domain._say.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            model_domain.warn_outside(card, site("clusters.edge.count=30"))
    assert [r.getMessage() for r in caplog.records] == [
        "model 'far' was trained on other sites: 30 clusters, it knows up to 24; compare it with greedy, or finetune it"
    ]
