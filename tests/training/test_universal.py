"""Training on random sites: small runs of every stage, and what comes out of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import config_for
from tapfinger.policy.export import graph_of
from tapfinger.profiles.greedy_options import ADVISERS
from tapfinger.schedulers.greedy import Greedy
from tapfinger.schedulers.tapfinger import TapFinger
from tapfinger.sim.layout import GreedyPlan
from tapfinger.sim.run import run_scheduler
from tapfinger.training.adviser_policy import Follower
from tapfinger.training.average import Average
from tapfinger.training.config import DeviationConfig, GroupConfig, finetune_config, universal_config
from tapfinger.training.deviations import Effort
from tapfinger.training.network_policy import FastNetwork, NetworkPolicy
from tapfinger.training.publish import publish_universal
from tapfinger.training.rollout import play
from tapfinger.training.seeds import DEVIATION_SEEDS, SELECTION_SEEDS
from tapfinger.training.shards import patience, roll
from tapfinger.training.trainer import Trainer
from tapfinger.training.universal import UniversalTrainer, greedy_means, open_site, site_shard
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import build_world

TINY = universal_config(
    teacher_runs=2,
    imitation_epochs=1,
    refinements=1,
    selection_runs=2,
    evaluate_every=1,
    deviation=DeviationConfig(workloads=2, actions=3),
)


@pytest.fixture(autouse=True)
def small_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tasks, so that a run takes seconds."""
    import tapfinger.training.universal as module

    def small(seed: int):
        return build_world(draw_site(seed % 1000 + 1, tasks=16))

    monkeypatch.setattr(module, "site_world", small)
    monkeypatch.setattr(module, "worlds_of", lambda world: 2)
    monkeypatch.setattr(module, "_LAPS", 2)
    monkeypatch.setattr(module, "patience", lambda sim: 60)
    monkeypatch.setattr("tapfinger.training.publish.site_world", small)


@pytest.mark.parametrize("seed", [1, 2, 5, 8])
def test_who_follows_the_advisers_does_what_they_do(seed: int) -> None:
    # Where every waiting task is seen and every size of the adviser is on the menu, nothing is lost on the way.
    world = build_world(draw_site(seed, tasks=40))
    encoder, sim = open_site(world, [7], 40)
    exact = not encoder.menus.several.any()
    mean = play(sim, encoder, Follower(0), max_slots=patience(sim)).mean[0]
    greedy = greedy_means(sim, GreedyPlan(**ADVISERS[0]))[0]
    run = run_scheduler(world, Greedy(), 7)
    assert greedy == pytest.approx(run.total_completion_time / run.tasks)
    assert mean == pytest.approx(greedy, rel=1e-9 if exact else 0.2)


@pytest.mark.parametrize("seed", [1, 2, 5, 8])
def test_passing_over_idle_slots_changes_nothing(seed: int) -> None:
    world = build_world(draw_site(seed, tasks=40))
    encoder, sim = open_site(world, [7, 8, 9], 10)
    slowly = play(sim, encoder, Follower(0), max_slots=patience(sim))
    slots = sim.worlds.slot.copy()
    sim.restart(np.ones(3, dtype=np.bool_))
    fast = play(sim, encoder, Follower(0), max_slots=patience(sim), costs=False)
    np.testing.assert_array_equal(slowly.mean, fast.mean)
    np.testing.assert_array_equal(slots, sim.worlds.slot)
    assert fast.steps < slowly.steps


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_a_greedy_that_plays_on_does_what_it_does_alone(seed: int) -> None:
    world, plan = build_world(draw_site(seed, tasks=40)), GreedyPlan(**ADVISERS[0])
    _, sim = open_site(world, [7, 8], 10)
    alone = greedy_means(sim, plan)
    halfway = sim.draws.arrival[:, 20]
    sim.play_on(plan, halfway, most=10_000)
    np.testing.assert_array_equal(sim.worlds.slot, halfway)
    sim.play_on(plan, np.full(2, 100_000), most=10_000)
    assert sim.done.all()
    np.testing.assert_allclose(sim.worlds.total / sim.draws.tasks, alone)
    sim.restart(np.ones(2, dtype=np.bool_))
    sim.play_on(plan, np.full(2, 100_000), most=0)
    assert not sim.done.any()  # somebody had to wait at last
    assert (sim.worlds.queue_length > 0).all()


def test_a_window_opens_anywhere_and_ends_when_its_tasks_have_come(tmp_path: Path) -> None:
    trainer = UniversalTrainer(TINY, tmp_path)
    torch.manual_seed(0)
    world = build_world(draw_site(12, tasks=60))
    shard = site_shard(trainer._deviating(build("full", trainer.sizes), 0, np.random.default_rng(0))[0])
    shard = shard._replace(worlds=(world,), workloads=tuple(range(6)), effort=Effort())
    _, sim = open_site(world, shard.workloads, 10)
    turns = roll(shard._replace(window=10)).turns
    first = np.array([turns.slot[turns.world == b].min() for b in range(6)])
    last = np.array([turns.slot[turns.world == b].max() for b in range(6)])
    arrived = np.array([np.searchsorted(sim.draws.arrival[b], [first[b], last[b]], side="right") for b in range(6)])
    assert len(set(arrived[:, 0].tolist())) > 3
    before_the_end = arrived[:, 1] < 60
    assert before_the_end.any()
    assert (np.diff(arrived, axis=1)[before_the_end] <= 10).all()


def test_what_the_advisers_would_do_is_always_tried() -> None:
    world = build_world(draw_site(2, tasks=40))
    encoder, sim = open_site(world, range(3), 10)
    inputs = encoder.encode_batch(sim, np.arange(3))
    torch.manual_seed(0)
    network = build("full", config_for(inputs, 0, hidden=16)).eval()
    followers = [Follower(a) for a in range(len(ADVISERS))]
    acts = NetworkPolicy(network, 0, seed=1, deviations=8, suggest=followers)(inputs)
    chances = NetworkPolicy(network, 0)(inputs)
    for column, follower in enumerate(followers, start=1):
        told = follower(inputs)
        np.testing.assert_array_equal(acts.others.choice[..., column], told.choice)
        np.testing.assert_array_equal(acts.others.amounts[..., column, :], told.amounts)
        same = told.choice == chances.choice
        np.testing.assert_allclose(acts.others.score[..., column][same], chances.score[same], rtol=1e-5)


def _stop_after_one(stage: str, share: float, known: dict[str, float]) -> None:
    if stage == "learning from deviations" and share < 1.0:
        raise KeyboardInterrupt


def test_a_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    longer = replace(TINY, refinements=2, average_from=0.3)
    once, sizes, _ = UniversalTrainer(longer, tmp_path / "once").run()
    with pytest.raises(KeyboardInterrupt):
        UniversalTrainer(longer, tmp_path / "again", _stop_after_one).run()
    again, _, _ = UniversalTrainer(longer, tmp_path / "again").run()
    for name, value in once.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    path, evaluation = publish_universal(once, sizes, longer, tmp_path / "model", sites=2)
    assert len(evaluation["per_site"]) == 2
    world = build_world(draw_site(77, tasks=20))
    scheduler = TapFinger(model=str(path))
    assert run_scheduler(world, scheduler, 3).tasks == 20
    assert scheduler.card.schema == "profiles"
    # And it can be adapted to one site.
    few = finetune_config(
        "site", start=str(tmp_path / "model" / "checkpoint"), refinements=1, iterations=1, selection_runs=2, workloads=2
    )
    few = replace(few, deviation=DeviationConfig(workloads=2, actions=3), group=GroupConfig(group=2))
    trainer = Trainer(world, few, tmp_path / "adapted")
    _, sizes, found = trainer.run()
    assert sizes.allocation == "menu"
    assert len(found) == 2


def test_runs_with_other_seeds_see_other_sites_and_never_those_of_selection(tmp_path: Path) -> None:
    seen = {}
    for seed in (0, 1, 9, 10):
        trainer = UniversalTrainer(replace(TINY, seed=seed), tmp_path / str(seed))
        network = build("full", trainer.sizes)
        parts = [p for i in (0, 600) for p in trainer._deviating(network, i, np.random.default_rng(0))]
        seen[seed] = {part.seed for part in parts}
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[9]
    assert all(DEVIATION_SEEDS <= seed < SELECTION_SEEDS for seeds in seen.values() for seed in seeds)


def test_going_on_takes_smaller_steps() -> None:
    fresh, further = universal_config(), universal_config(start="universal")
    assert further.deviation == replace(fresh.deviation, learning_rate=fresh.deviation.learning_rate / 2)


def test_the_average_is_that_of_all_networks_added_and_goes_on(tmp_path: Path) -> None:
    networks = [nn.Linear(2, 3) for _ in range(4)]
    average = Average(nn.Linear(2, 3))
    average.save(tmp_path / "average")
    assert not (tmp_path / "average").exists()
    for network in networks[:3]:
        average.add(network)
    average.save(tmp_path / "average")
    average = Average(nn.Linear(2, 3), tmp_path / "average")
    average.add(networks[3])
    mean = torch.stack([network.weight for network in networks]).mean(dim=0)
    torch.testing.assert_close(average.network.weight, mean)


def test_an_exported_graph_acts_as_the_network_does() -> None:
    world = build_world(draw_site(3, tasks=30))
    encoder, sim = open_site(world, range(3), 10)
    inputs = encoder.encode_batch(sim, np.arange(3))
    torch.manual_seed(0)
    sizes = config_for(inputs, 0, hidden=16)
    network = build("full", sizes).eval()
    slow, fast = NetworkPolicy(network, 0)(inputs), NetworkPolicy(FastNetwork(graph_of(network, sizes)), 0)(inputs)
    np.testing.assert_array_equal(slow.choice, fast.choice)
    np.testing.assert_array_equal(slow.amounts, fast.amounts)
    np.testing.assert_allclose(slow.score, fast.score, atol=1e-4)


def test_less_effort_tries_less_and_never_changes_what_is_done(tmp_path: Path) -> None:
    trainer = UniversalTrainer(TINY, tmp_path)
    torch.manual_seed(0)
    network = build("full", trainer.sizes)
    world = build_world(draw_site(12, tasks=40))
    assert len(world.clusters) > 1
    shard = site_shard(trainer._deviating(network, 0, np.random.default_rng(0))[0])
    shard = shard._replace(worlds=(world,), workloads=(1, 2), explore=False)
    everything = roll(shard._replace(effort=Effort()))
    little = roll(shard._replace(effort=Effort(states=0.3, agents=1)))
    np.testing.assert_array_equal(everything.mean, little.mean)
    assert 0 < len(little.turns.choice) < 0.7 * len(everything.turns.choice)
    others = little.turns.others
    same = (others.choice == others.choice[..., :1]) & (others.amounts[..., 0] == others.amounts[..., :1, 0])
    assert ((~same).any(axis=2).sum(axis=1) <= 1).all()
