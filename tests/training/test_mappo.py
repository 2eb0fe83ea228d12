"""MAPPO: advantages by hand, costs of each agent, and what may and may not touch the gradient."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from strategies import stocked_world

from tapfinger.config import load_scenario
from tapfinger.core.contract import Mode
from tapfinger.core.events import TaskArrived, TaskFinished, TaskOutOfMemory, TaskStaging, TaskStarted
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.policy.actor_critic import as_tensors, config_for, make_network
from tapfinger.policy.distributions import Actions, evaluate
from tapfinger.sim.batch import BatchSim
from tapfinger.training.config import MappoConfig, paper_config
from tapfinger.training.gae import ReturnScale, agent_costs, estimate, normalised, relative_costs
from tapfinger.training.mappo import finish, update
from tapfinger.training.network_policy import AMOUNTS, TASK, VALUE, NetworkPolicy
from tapfinger.training.rollout import RolloutResult, Turns, play
from tapfinger.training.simulators import make_encoder
from tapfinger.workloads.world import build_world, draw_workload


def turns_at(*places: tuple[int, int]) -> Turns:
    """Turns at (world, slot); nothing else of them matters to GAE."""
    world, slot = np.array(places).T
    return Turns(None, None, None, None, None, world, slot, None)


def gae(turns, cost, value, ended=(True, True), discount=1.0, trace=1.0):
    table = np.array(cost, dtype=float)[:, :, None]
    found = estimate(turns, table, np.array(value, dtype=float)[:, None], np.array(ended), discount, trace)
    return found.advantage[:, 0].tolist(), found.usable.tolist()


def test_advantages_by_hand() -> None:
    # World 0 has two turns in slot 0, one in slot 3 (nobody could decide in slots 1 and 2), and ends with slot 4.
    # Costs 5 4 3 2 1. World 1 has one turn, in slot 1; what slot 0 cost is nothing it could change.
    turns = turns_at((0, 0), (1, 1), (0, 0), (0, 3))
    cost = [[5, 4, 3, 2, 1], [9, 2, 2, 0, 0]]
    value = [-10, -3, -12, -2]
    # Errors: reward up to the next turn, plus its value, minus this one's.
    errors = [0 - 12 + 10, -4 + 0 + 3, -12 - 2 + 12, -3 + 0 + 2]
    # No trace: a turn's error and those of the later turns of its slot.
    assert gae(turns, cost, value, trace=0.0)[0] == [errors[0] + errors[2], *errors[1:]]
    # Full trace: the return, minus this turn's value.
    assert gae(turns, cost, value)[0] == [-15 + 10, -4 + 3, -15 + 12, -3 + 2]
    # Half: an error counts half per slot that it is away, so the turns of one slot count the same.
    assert gae(turns, cost, value, trace=0.5)[0] == [-2 - 2 - 0.125, -1, -2 - 0.125, -1]


def test_discount_goes_by_slots() -> None:
    turns = turns_at((0, 0), (0, 0), (0, 3))
    # The two turns of slot 0 are worth the same; slot 3 is three slots off: 5 + 4/2 + 3/4 + (2 + 1/2)/8.
    found, _ = gae(turns, [[5, 4, 3, 2, 1]], [0, 0, 0], ended=[True], discount=0.5)
    assert found == [-8.0625, -8.0625, -2.5]
    found, _ = gae(turns, [[5, 4, 3, 2, 1]], [0, 0, -8], ended=[True], discount=0.5, trace=0.0)
    assert found == [0.0 - 7.75 - 1.0, -7.75 - 1.0, -2.5 + 8.0]


def test_a_rollout_is_judged_by_what_the_others_of_its_workload_do_not_pay() -> None:
    cost = np.array([[[4.0], [2.0]], [[1.0], [2.0]], [[1.0], [8.0]], [[9.0], [0.0]], [[5.0], [1.0]], [[1.0], [1.0]]])
    assert relative_costs(cost, 1) is cost
    assert relative_costs(cost, 3)[:, :, 0].tolist() == [[3, -3], [-1.5, -3], [-1.5, 6], [6, -1], [0, 0.5], [-6, 0.5]]


def test_a_world_that_was_cut_ends_in_the_critics_value() -> None:
    found, usable = gae(turns_at((0, 0), (0, 1), (0, 2)), [[5, 4, 3]], [0, 0, -50], ended=[False])
    assert usable == [True, True, False]
    assert found == [-59.0, -54.0, 0.0]


def site(name: str = "multi-3", tasks: int = 24):
    if name.startswith("stocked"):
        return stocked_world(name.split("-")[1], tasks=tasks)
    return build_world(load_scenario(name, [f"tasks={tasks}"]))


def played(name: str = "multi-3", seed: int = 2, max_slots: int = 1000):
    """A small network and what it did on three workloads."""
    world = site(name)
    sim = BatchSim(world, [draw_workload(world, s) for s in range(3)])
    encoder = make_encoder(world)
    torch.manual_seed(seed)
    network = make_network(config_for(encoder.make(sim.observations), 1, hidden=16))
    return network, sim, play(sim, encoder, NetworkPolicy(network, 1, seed=3), keep=True, max_slots=max_slots)


@pytest.mark.parametrize(
    ("name", "max_slots"),
    [("multi-3", 1000), ("synthetic-3", 1000), ("synthetic-3", 9), ("stocked-multi", 1000), ("stocked-single", 30)],
)
def test_costs_of_each_agent_are_those_of_the_event_log(name: str, max_slots: int) -> None:
    _, sim, episode = played(name, max_slots=max_slots)
    slots = episode.cost.shape[1]
    expected = np.zeros((3, slots, len(sim.world.clusters)))
    for b in range(3):
        # Where each task is, as of the last event about it: on a cluster, or in the queues of all it may run on.
        where: dict[int, list[int]] = {}
        eligible, log = {}, sim.events(b)
        for t in range(int(sim.worlds.slot[b])):
            now = [event for event in log if event.slot == t]
            for event in now:
                if isinstance(event, TaskArrived):
                    where[event.task.id] = eligible[event.task.id] = list(event.task.eligible)
                elif isinstance(event, TaskStaging | TaskStarted):
                    where[event.task] = [event.cluster]
            for clusters in where.values():
                expected[b, t, clusters] += 1
            for event in now:
                if isinstance(event, TaskOutOfMemory):
                    where[event.task] = eligible[event.task]
                elif isinstance(event, TaskFinished):
                    del where[event.task]
    assert not sim.world.ladders or (sim.worlds.attempts > 0).any()
    np.testing.assert_array_equal(agent_costs(sim, slots), expected)


def test_worlds_that_were_cut_have_no_mean() -> None:
    _, sim, episode = played(max_slots=9)
    assert not sim.done.any()
    assert np.isinf(finish(episode, sim, "system").mean).all()
    _, sim, episode = played()
    np.testing.assert_array_equal(finish(episode, sim, "system").mean, episode.mean)


def step(network, episode: RolloutResult, scale: ReturnScale | None = None, **changes):
    """One update that leaves the weights as they are; what was logged, and the gradients."""
    config = MappoConfig(**{"epochs": 1, "batch": 10_000, "max_grad_norm": 1e9, **changes})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    logged = update(network, optimizer, episode, config, 1, np.random.default_rng(0), scale or ReturnScale())
    return logged, {name: p.grad for name, p in network.named_parameters()}


@pytest.mark.parametrize("reward", ["system", "own"])
def test_stored_log_probs_are_those_of_the_network(reward: str) -> None:
    network, sim, episode = played()
    logged, _ = step(network, finish(episode, sim, reward), reward=reward)
    assert logged["clipped"] == 0.0
    assert logged["kl"] == pytest.approx(0.0, abs=1e-6)
    # With a ratio of one the loss is minus the mean of normalised advantages.
    assert logged["policy_loss"] == pytest.approx(0.0, abs=1e-5)
    assert all(np.isfinite(value) for value in logged.values())
    costs = agent_costs(sim, episode.cost.shape[1]).mean(axis=2) if reward == "own" else episode.cost
    assert logged["return"] == pytest.approx(-costs.sum(axis=1).mean())


def test_losing_a_conflict_does_not_touch_the_allocation_head() -> None:
    network, sim, episode = played()
    episode = finish(episode, sim, "system")
    assert episode.turns.granted.any()

    def head(chosen: RolloutResult) -> float:
        _, gradients = step(network, chosen)
        return sum(float(g.abs().sum()) for name, g in gradients.items() if "allocation" in name and g is not None)

    lost = episode._replace(turns=episode.turns._replace(granted=np.zeros_like(episode.turns.granted)))
    assert head(lost) == 0.0
    assert head(episode) > 0.0


def test_agents_without_a_choice_are_left_out() -> None:
    network, sim, episode = played()
    episode = finish(episode, sim, "own")
    without = ~episode.turns.decidable
    assert without.any()
    extra = episode.turns.extra.copy()
    extra[without, TASK] = -5.0
    extra[without, AMOUNTS] = -7.0
    other = episode._replace(turns=episode.turns._replace(extra=extra))
    copy = deepcopy(network)  # an update moves the critic's units
    (one, first), (two, second) = step(network, episode, reward="own"), step(copy, other, reward="own")
    assert one == two
    assert all(first[name] is second[name] or torch.equal(first[name], second[name]) for name in first)


def test_what_turned_out_cheap_becomes_more_likely() -> None:
    # Three worlds of one slot: what was done in the cheapest must gain, what was done in the dearest must lose.
    network, _, episode = played(max_slots=1)
    episode = episode._replace(mean=np.ones(3), cost=np.array([[1.0, 0.0], [100.0, 0.0], [50.0, 0.0]]))
    turns = episode.turns
    inputs = as_tensors(turns.inputs)
    actions = Actions(torch.from_numpy(turns.choice), torch.from_numpy(turns.amounts))

    def likely() -> list[float]:
        with torch.no_grad():
            logs = evaluate(network(inputs), inputs, actions, 1).log_prob(torch.from_numpy(turns.granted)).numpy()
        return [float(logs[turns.world == b][turns.decidable[turns.world == b]].sum()) for b in range(3)]

    before = likely()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    config = MappoConfig(epochs=1, trace=1.0, entropy=0.0, value_weight=0.0)
    update(network, optimizer, episode, config, 1, np.random.default_rng(0), ReturnScale())
    after = likely()
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_the_critic_learns_returns_of_thousands_and_keeps_them_when_the_scale_moves() -> None:
    network, sim, episode = played()
    scale = ReturnScale()
    big = finish(episode, sim, "system")._replace(cost=episode.cost * 50.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    config = MappoConfig(epochs=30, batch=10_000, trace=1.0)
    inputs = as_tensors(episode.turns.inputs)

    def values():
        with torch.no_grad():
            return scale.restore(network(inputs).value.squeeze(1).numpy())

    update(network, optimizer, big, config, 1, np.random.default_rng(0), scale)
    returns = -np.array([big.cost[b, t:].sum() for b, t in zip(episode.turns.world, episode.turns.slot, strict=True)])
    assert returns.mean() < -1000.0
    said = values()
    assert said.mean() == pytest.approx(returns.mean(), rel=0.2)
    assert np.corrcoef(said, returns)[0, 1] > 0.7
    # The costs become fifty times smaller: without a lesson the critic says the same as before, in new units.
    extra = episode.turns.extra.copy()
    extra[..., VALUE] = scale.normalise(said)[:, None]
    small = finish(episode, sim, "system")._replace(turns=episode.turns._replace(extra=extra))
    before = scale.mean, scale.spread
    step(network, small, scale, trace=1.0, scale_rate=1.0)
    assert abs(scale.mean) < 0.1 * abs(before[0])
    np.testing.assert_allclose(values(), said, rtol=1e-3, atol=1.0)


def test_each_agent_has_its_own_mean_where_it_has_its_own_reward() -> None:
    # Agent 1 pays a thousand more whatever it does: no reason to do anything less often. Its last turn was no choice.
    mask = np.array([[True, True], [True, True], [True, False]])
    apart = normalised(np.array([[1.0, -1001.0], [-1.0, -999.0], [0.0, 5.0]]), mask)
    np.testing.assert_allclose(apart, np.sqrt(5 / 4) * np.array([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0]]))
    # One reward for all: one mean, over agents that had a choice (2, 2, 0, 0, -1 here).
    shared = normalised(np.array([[2.0], [0.0], [-1.0]]), mask)
    expected = np.array([[1.4, 1.4], [-0.6, -0.6], [-1.6, 0.0]])
    np.testing.assert_allclose(shared, expected / np.sqrt((2 * 1.96 + 2 * 0.36 + 2.56) / 5))


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no reward 'sytem'.*Did you mean 'system'"):
        MappoConfig(reward="sytem")
    with pytest.raises(ConfigError, match=r"discount = 1\.5 must be between 0 and 1"):
        MappoConfig(discount=1.5)


def test_the_papers_settings() -> None:
    assert paper_config(Mode.MULTI) == MappoConfig(discount=1.0, reward="own")
    assert paper_config(Mode.SINGLE).discount < 1.0
