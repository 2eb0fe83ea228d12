"""The paper's network: its inputs, its actors, where void is, and what its critic sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy.models import small_network
from policy.states import random_inputs
from torch import nn

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.policy.ablations import PAPER_NETWORKS, build
from tapfinger.policy.actor_critic import as_tensors, config_for
from tapfinger.policy.distributions import Actions, evaluate
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.paper_form import PaperActors
from tapfinger.training.config import preset_config
from tapfinger.training.publish import card_for
from tapfinger.training.simulators import make_encoder, make_sim
from tapfinger.workloads.world import build_world, draw_workload

SCENARIO = "multi-3"


def seen(features: str = "paper") -> Inputs:
    """What the network is told after a few slots in which nothing was started."""
    world = build_world(load_scenario(SCENARIO))
    encoder = make_encoder(world, features)
    sim = make_sim(world, encoder, [draw_workload(world, seed) for seed in range(2)])
    agents = 2, len(world.clusters)
    for _ in range(6):
        sim.step(np.full(agents, -1), np.zeros((*agents, 2), dtype=np.int64), np.ones(agents))
    return encoder.encode_batch(sim, np.arange(2))


def network(name: str = "full", seed: int = 0, inputs: Inputs | None = None):
    torch.manual_seed(seed)
    return build(name, config_for(inputs or seen(), 1, "paper-small", hidden=16))


def test_its_inputs_are_the_papers_and_nothing_else() -> None:
    inputs = seen()
    # Free amounts and backlog; minimum and type; allocation, type and time; nothing about pairs.
    assert [inputs.cluster.shape[-1], inputs.pending.shape[-1], inputs.running.shape[-1]] == [3, 4, 5]
    assert inputs.pair.shape[-1] == 0
    assert inputs.pending_mask.any()
    world = build_world(load_scenario(SCENARIO))
    features = card_for(world.scenario, preset_config("paper", SCENARIO, world.mode), "any").features
    assert [f.split(" ")[0] for f in features["cluster"]] == ["free", "waiting_unseen"]
    assert [f.split(" ")[0] for f in features["pending"]] == ["minimum", "type"]
    assert [f.split(" ")[0] for f in features["running"]] == ["allocation", "type", "elapsed"]
    assert features["pair"] == []


@pytest.mark.parametrize(("preset", "hidden", "layers"), [("paper", 256, 6), ("paper-small", 32, 2)])
def test_its_presets_are_the_paper_in_every_part(preset, hidden, layers) -> None:
    sizes = config_for(seen(), 1, preset)
    assert (sizes.hidden, sizes.layers, sizes.heads, sizes.transformer_layers) == (hidden, layers, 4, 2)
    assert (sizes.pending, sizes.rounds, sizes.allocation, sizes.separate_actors) == (10, 0, "joint", 3)
    made = build("full", sizes)
    actors = made.actor.actors
    assert isinstance(made.actor, PaperActors)
    assert len(actors) == 3
    weights = [id(weight) for actor in actors for weight in actor.parameters()]
    assert len(weights) == len(set(weights)), "clusters share a weight"
    assert len(made.encoder.layers) == layers
    assert [len(actor.chooser.blocks) for actor in actors] == [2, 2, 2]
    assert made.critic[0].in_features == 3 * 10 * hidden  # every pending task of the system, side by side
    assert [type(part) for part in made.critic] == [nn.Linear, nn.ReLU, nn.Linear]
    run = preset_config(preset, SCENARIO, Mode.MULTI)
    assert (run.algorithm, run.teacher, run.start, run.refinements) == ("mappo", "none", "", 0)
    assert (run.features, run.pending, run.max_steps) == ("paper", 10, 8_000_000)


def test_the_card_says_that_there_was_no_teacher() -> None:
    world = build_world(load_scenario(SCENARIO))
    card = card_for(world.scenario, preset_config("paper-small", SCENARIO, world.mode), "any")
    assert (card.training["teacher"], card.training["refinements"], card.training["start"]) == ("none", 0, "")
    assert (card.training["preset"], card.training["features"]) == ("paper-small", "paper")


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_what_it_may_do_has_probability_one_in_all(name) -> None:
    inputs = random_inputs(3)
    made = network(name, inputs=inputs)
    tensors = as_tensors(inputs)
    with torch.no_grad():
        chances = made(tensors).task_logits.exp()
    torch.testing.assert_close(chances.sum(dim=2), torch.ones(4, 3))
    assert (chances[..., :-1][~tensors.startable] == 0.0).all()
    idle = ~tensors.startable.any(dim=2)
    assert idle.any()
    assert (chances[idle][:, -1] == 1.0).all()


def test_void_is_one_choice_beside_the_legal_allocations_of_the_chosen_task() -> None:
    # By hand, from the actor's own two answers: Pr(j) of the pointer, and one softmax over the legal box and void.
    made, inputs = network(), as_tensors(seen())
    b, n, chosen = 1, 2, 0
    actor = made.actor.actors[n]
    with torch.no_grad():
        places = made.encoder(inputs).places[:, n : n + 1]
        one = inputs._replace(place_mask=inputs.place_mask[:, n : n + 1], startable=inputs.startable[:, n : n + 1])
        able = inputs.startable[b, n]
        pointed = torch.softmax(actor.chooser(places, one)[b, 0].masked_fill(~able, -torch.inf), dim=0)
        table = actor.allocation.table(places)[b, 0]  # (K, cpu, gpu)
        stay, start = torch.zeros(len(able)), {}
        for place in torch.nonzero(able).flatten().tolist():
            (c0, g0), (c1, g1) = inputs.minimum[b, n, place].tolist(), inputs.largest[b, n, place].tolist()
            legal = {(c, g): table[place, c, g].exp() for c in range(c0, c1 + 1) for g in range(g0, g1 + 1)}
            whole = sum(legal.values()) + table[place, 0, 0].exp()
            stay[place] = table[place, 0, 0].exp() / whole
            start |= {(place, *amounts): pointed[place] * odds / whole for amounts, odds in legal.items()}
        outputs = made(inputs)
        assert float(outputs.task_logits[b, n, -1].exp()) == pytest.approx(float((pointed * stay).sum()), rel=1e-4)
        for amounts in ((2, 1), (5, 10), (16, 16)):
            place = torch.full((2, 3), chosen)
            terms = evaluate(outputs, inputs, Actions(place, torch.tensor(amounts).expand(2, 3, 2)), 1)
            said = terms.log_prob(torch.ones(2, 3, dtype=torch.bool))[b, n].exp()
            assert float(said) == pytest.approx(float(start[(chosen, *amounts)]), rel=1e-4)


def test_an_actor_changes_its_own_cluster_only() -> None:
    made, inputs = network(), as_tensors(seen())
    with torch.no_grad():
        before = made(inputs)
        for weight in made.actor.actors[1].parameters():
            weight.add_(torch.randn_like(weight))
        after = made(inputs)
    same = (before.task_logits == after.task_logits).all(dim=2)
    assert same[:, [0, 2]].all()
    assert not same[:, 1].any()
    torch.testing.assert_close(before.value, after.value)


def test_shared_gradients_are_the_actors_own_plus_the_sum_of_all() -> None:
    made, inputs = network(), as_tensors(seen())
    made(inputs).task_logits[..., -1].mul(torch.tensor([1.0, 2.0, -4.0])).sum().backward()
    weights = [actor.allocation.task[0].weight for actor in made.actor.actors]
    own = [weight.grad.clone() for weight in weights]
    made.actor.share_gradients(0.5)
    for mine, weight in zip(own, weights, strict=True):
        torch.testing.assert_close(weight.grad, mine + 0.5 * sum(own))


def test_the_critic_sees_each_pending_task_in_a_place_of_its_own() -> None:
    made, inputs = network(), as_tensors(seen())
    with torch.no_grad():
        summary = made.encoder(inputs).summary.reshape(2, 30, 16)
    used = inputs.pending_mask.sum(dim=1)
    for b, count in enumerate(used.tolist()):
        assert summary[b, :count].abs().sum(dim=1).gt(0).all()
        assert (summary[b, count:] == 0.0).all()


def test_ablations_replace_one_part() -> None:
    full, plain, random, stacked = (network(name) for name in PAPER_NETWORKS)
    assert type(full.encoder) is type(random.encoder) is not type(plain.encoder)
    assert type(full.actor.actors[0].chooser) is type(plain.actor.actors[0].chooser)
    # No-HAN: other clusters do not matter. Vanilla: only the oldest task that can start, or void.
    inputs = as_tensors(seen())
    other = inputs._replace(cluster=inputs.cluster + torch.tensor([0.0, 0.0, 1.0])[:, None])
    with torch.no_grad():
        assert torch.equal(plain(inputs).task_logits[:, :2], plain(other).task_logits[:, :2])
        assert not torch.equal(full(inputs).task_logits[:, :2], full(other).task_logits[:, :2])
        chances = stacked(inputs).task_logits.exp()
        torch.testing.assert_close(chances[..., 0] + chances[..., -1], torch.ones(2, 3))
        equal = random(inputs).task_logits[..., :-1].exp()
    startable = inputs.startable
    assert startable.sum() > 3
    assert torch.isfinite(equal).all()


def test_hints_can_be_added_for_comparison() -> None:
    told = seen("types")
    assert told.pair.shape[-1] > 0
    made = network(inputs=told)
    with torch.no_grad():
        assert torch.isfinite(made(as_tensors(told)).value).all()


def test_forms_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs allocation = 'joint', not 'factored'"):
        config_for(seen(), 1, "paper", allocation="factored")
    with pytest.raises(UnknownNameError, match="form"):
        config_for(seen(), 1, "paper", form="papper")
    with pytest.raises(UnknownNameError, match="no network 'hints-only'"):
        network("hints-only")


def test_it_plays_as_an_exported_model(tmp_path) -> None:
    from tapfinger.policy.export import export
    from tapfinger.schedulers.tapfinger import TapFinger
    from tapfinger.sim.run import run_scheduler

    made, config, card = small_network(
        void=0.0, form="paper", allocation="joint", separate_actors=3, transformer_layers=2
    )
    path = export(made, config, card, tmp_path / "paper.onnx")
    world = build_world(load_scenario(SCENARIO, ["tasks=12"]))
    run = run_scheduler(world, TapFinger(str(path), max_wait=5.0), 1)
    assert run.tasks == 12
