"""What a live scheduler sees of a site must be what it saw in training, number by number.

Kernels that are compared with what they mirror:

- `tapfinger.profiles.size_menus.Menus.place_of`
- `tapfinger.policy.encoding.by_profile.ProfileEncoder.encode`
"""

from __future__ import annotations

import numpy as np
import pytest
from strategies import spanning_world, stocked_world

from tapfinger.config import load_scenario
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Proposal
from tapfinger.core.model import Resources
from tapfinger.policy.encoding.by_profile import ProfileEncoder
from tapfinger.policy.encoding.inputs import Inputs, trim
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.schedulers.greedy_features import make_advisers
from tapfinger.sim.run import new_session
from tapfinger.training.adviser_policy import Follower
from tapfinger.training.simulators import make_encoder, make_sim
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import World, build_world, draw_workload

PENDING = 5


def compare(world: World, seed: int, turns: int = 150) -> int:
    """Play one workload in both simulators, half the clusters doing as advised, the others at random."""
    workload = draw_workload(world, seed)
    batched = make_encoder(world, "profiles", PENDING)
    sim = make_sim(world, batched, [workload])
    session = new_session(world, workload)
    encoder = ProfileEncoder(SiteTables(world.context(seed)), PENDING, make_advisers())
    rng = np.random.default_rng(seed)
    live, compared = np.zeros(1, dtype=np.int64), 0
    for _ in range(turns):
        if session.done:
            break
        snapshot = session.state.snapshot()
        encoder.observe(snapshot)
        encoded, batch = encoder.encode_startable(snapshot), batched.encode_batch(sim, live)
        assert (encoded is not None) == batch.startable.any()
        acts = Follower(0)(batch)
        choice = np.where(acts.choice == PENDING, -1, acts.choice)
        if encoded is not None:
            compared += 1
            equal(encoded.inputs, trim(batch))
            random = rng.random(choice.shape) < 0.5
            wanted = np.where(batch.startable, rng.random(batch.startable.shape), 0.0)
            place = np.where(wanted.any(axis=2), wanted.argmax(axis=2), PENDING)
            top = np.take_along_axis(batch.largest[..., 0], np.minimum(place, PENDING - 1)[..., None], axis=2)[..., 0]
            amounts = np.where(place < PENDING, rng.integers(0, top + 1), 0)[..., None]
            acts = acts._replace(
                choice=np.where(random, place, acts.choice), amounts=np.where(random[..., None], amounts, acts.amounts)
            )
            choice = np.where(acts.choice == PENDING, -1, acts.choice)
        allocation = batched.decode_batch(batch, acts.choice, acts.amounts)
        proposals = [
            Proposal(n, int(batch_task), Resources(allocation[0, n].tolist()), 1.0)
            for n, batch_task in enumerate(sim.observations.task[0, np.arange(choice.shape[1]), choice[0]].tolist())
            if choice[0, n] >= 0
        ]
        if encoded is not None:
            for p in proposals:
                n = p.cluster
                meant = encoder.decode(encoded.inputs, n, int(choice[0, n]), acts.amounts[0, n].tolist())
                assert meant == p.allocation
        sim.step(choice, allocation, np.ones(choice.shape))
        if session.turn(
            resolve(proposals, snapshot.free, {t.id: t.type.minimum for t in snapshot.queue}, snapshot.spans)
        ):
            session.end_slot()
    return compared


def equal(mine: Inputs, other: Inputs) -> None:
    for name, one, two in zip(Inputs._fields, mine, other, strict=True):
        assert one.shape == two.shape, name
        np.testing.assert_allclose(one, two, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["multi-3", "synthetic-3", "hetero-6", "testbed-3"])
def test_shipped_scenarios(name: str) -> None:
    assert compare(build_world(load_scenario(name, ["tasks=60"])), 3) > 20


@pytest.mark.parametrize("mode", ["single", "multi"])
def test_data_sets_and_unknown_memory(mode: str) -> None:
    assert compare(stocked_world(mode), 3) > 20


@pytest.mark.parametrize("mode", ["single", "multi"])
def test_tasks_that_span_nodes(mode: str) -> None:
    assert compare(spanning_world(mode), 3) > 20


@pytest.mark.parametrize("seed", range(8))
def test_random_sites(seed: int) -> None:
    world = build_world(draw_site(seed, tasks=50))
    assert compare(world, seed) > 10
