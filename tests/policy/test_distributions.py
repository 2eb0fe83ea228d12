from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from policy.states import random_inputs

from tapfinger.policy.ablations import NETWORKS, build
from tapfinger.policy.actor_critic import as_tensors, config_for
from tapfinger.policy.allocation import JointAllocation
from tapfinger.policy.distributions import Actions, amount_log_probs, draw, evaluate

HEADS = [("full", "factored"), ("full", "joint"), ("no-pointer", "factored"), ("vanilla", "factored")]


def make(seed, name="full", **changes):
    inputs = random_inputs(seed, **changes.pop("shape", {}))
    torch.manual_seed(seed)
    accelerator = changes.pop("accelerator", 1)
    net = build(name, config_for(inputs, accelerator, hidden=16, **changes))
    # Large scores, so that an action that is masked only softly would show.
    with torch.no_grad():
        for parameter in net.actor.parameters():
            parameter *= 2.0
    return net, as_tensors(inputs)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_amounts_and_places_drawn_are_always_legal():
    net, inputs = make(1, shape={"batch": 64})
    outputs = net(inputs)
    draws = generator()
    for turn in range(20):
        given = draws if turn else None
        actions, terms = draw(outputs, inputs, 1, given, given)
        placed = actions.place < 5
        at = actions.place.clamp(max=4).unsqueeze(2)
        assert inputs.startable.gather(2, at).squeeze(2)[placed].all()
        index = at.unsqueeze(3).expand(-1, -1, 1, 2)
        low, high = (bound.gather(2, index).squeeze(2) for bound in (inputs.minimum, inputs.largest))
        assert ((actions.amounts >= low) & (actions.amounts <= high))[placed].all()
        assert (actions.amounts[~placed] == 0).all()
        assert torch.isfinite(terms.log_prob(placed)).all()


@pytest.mark.parametrize(("name", "allocation"), HEADS)
def test_probabilities_of_all_actions_sum_to_one_and_illegal_ones_are_exactly_zero(name, allocation):
    shape = {"batch": 2, "clusters": 2, "places": 3, "units": 6}
    net, inputs = make(2, name, allocation=allocation, units=6, shape=shape)
    with torch.no_grad():
        outputs = net(inputs, columns=7)
    total = torch.zeros(2, 2, dtype=torch.float64)
    for place, cpu, gpu in itertools.product(range(4), range(8), range(8)):
        if place == 3 and (cpu or gpu):
            continue  # void has no amounts
        actions = Actions(torch.full((2, 2), place), torch.tensor([cpu, gpu]).expand(2, 2, 2))
        probability = evaluate(outputs, inputs, actions, 1).log_prob(torch.ones(2, 2)).exp().double()
        total += probability
        if place < 3:
            box = (actions.amounts >= inputs.minimum[:, :, place]) & (actions.amounts <= inputs.largest[:, :, place])
            legal = box.all(dim=2) & inputs.startable[:, :, place]
            assert (probability[~legal] == 0.0).all()
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_stored_and_recomputed_log_probabilities_agree(name):
    net, inputs = make(3, name, shape={"batch": 32})
    with torch.no_grad():
        actions, stored = draw(net(inputs), inputs, 1, generator(), generator(1))
    again = evaluate(net(inputs, columns=30), inputs, actions, 1)
    granted = torch.rand(actions.place.shape, generator=generator(2)) < 0.5
    torch.testing.assert_close(again.log_prob(granted), stored.log_prob(granted), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again.entropy(granted), stored.entropy(granted), atol=1e-5, rtol=1e-5)


def test_sampling_follows_the_probabilities_and_the_generator():
    net, inputs = make(4, shape={"batch": 1, "clusters": 2, "units": 5})
    outputs = net(inputs)
    one = draw(outputs, inputs, 1, generator(5), generator(5))[0]
    two = draw(outputs, inputs, 1, generator(5), generator(5))[0]
    assert torch.equal(one.place, two.place)
    assert torch.equal(one.amounts, two.amounts)
    many = type(inputs)(*(t.expand(8000, *t.shape[1:]) for t in inputs))
    wide = type(outputs)(*(t.detach().expand(8000, *t.shape[1:]) for t in outputs))
    places = draw(wide, many, 1, generator(6), generator(7))[0].place
    seen = torch.stack([(places == k).float().mean(dim=0) for k in range(6)], dim=1)
    torch.testing.assert_close(seen, torch.softmax(outputs.task_logits[0], 1).detach(), atol=0.02, rtol=0)


def test_the_best_choice_is_the_most_likely_task_and_then_chain():
    net, inputs = make(5, shape={"batch": 16})
    with torch.no_grad():
        outputs = net(inputs)
        actions, _ = draw(outputs, inputs, 1)
        assert torch.equal(actions.place, outputs.task_logits.argmax(dim=2))
        first = amount_log_probs(outputs, inputs, actions.place, {}, 1)
        second = amount_log_probs(outputs, inputs, actions.place, {1: actions.amounts[..., 1]}, 0)
    placed = actions.place < 5
    assert torch.equal(first.argmax(2)[placed], actions.amounts[..., 1][placed])
    assert torch.equal(second.argmax(2)[placed], actions.amounts[..., 0][placed])


def test_later_amounts_depend_on_earlier_ones():
    net, inputs = make(6, shape={"batch": 16})
    with torch.no_grad():
        outputs = net(inputs)
        place = draw(outputs, inputs, 1)[0].place
        few, many = (amount_log_probs(outputs, inputs, place, {1: torch.full_like(place, n)}, 0).exp() for n in (1, 4))
    assert (few - many).abs().max() > 0.01


@pytest.mark.parametrize("accelerator", [0, 1])
def test_the_joint_head_is_one_softmax_over_the_box(accelerator):
    shape = {"batch": 1, "clusters": 1, "places": 1, "nodes": 1, "units": 6}
    _, inputs = make(7, shape=shape)
    on = torch.ones_like(inputs.startable)
    corner = torch.tensor([1, 2]).expand_as(inputs.minimum), torch.tensor([5, 4]).expand_as(inputs.minimum)
    inputs = inputs._replace(startable=on, place_mask=on, minimum=corner[0], largest=corner[1])
    torch.manual_seed(1)
    net = build("full", config_for(inputs, accelerator, hidden=16, allocation="joint", units=6))
    with torch.no_grad():
        head = net.actor.allocation
        assert isinstance(head, JointAllocation)
        encoded = net.encoder(inputs)
        _, tasks = net.actor.chooser(encoded.places, encoded.clusters, inputs)
        scores = head.task(tasks).reshape(7, 7)  # (second, first)
        box = scores.T if accelerator == 0 else scores  # (resource 0, resource 1)
        expected = torch.softmax(box[1:6, 2:5].flatten(), 0).reshape(5, 3)
        outputs = net(inputs)
        for a, b in itertools.product(range(1, 6), range(2, 5)):
            actions = Actions(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[[a, b]]]))
            got = evaluate(outputs, inputs, actions, accelerator).amounts.exp()
            torch.testing.assert_close(got[0, 0], expected[a - 1, b - 2], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("allocation", ["factored", "joint"])
def test_an_agent_that_lost_does_not_touch_the_allocation_head(allocation):
    net, inputs = make(8, allocation=allocation, shape={"batch": 8})
    outputs = net(inputs)
    actions, _ = draw(outputs, inputs, 1, generator(), generator())
    assert (actions.place < 5).any()
    head = list(net.actor.allocation.parameters())

    def gradient(granted):
        net.zero_grad()
        loss = evaluate(net(inputs), inputs, actions, 1).log_prob(granted).sum()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
        return sum(0.0 if p.grad is None else p.grad.abs().sum().item() for p in head)

    assert gradient(torch.zeros_like(actions.place)) == 0.0
    assert gradient((actions.place < 5).long()) > 0.0


def test_entropy_is_that_of_the_distribution():
    net, inputs = make(9, shape={"resources": 1}, accelerator=0)
    with torch.no_grad():
        outputs = net(inputs)
        actions, terms = draw(outputs, inputs, 0, generator(), generator())
        probabilities = torch.softmax(outputs.task_logits, 2).double().numpy()
        amounts = amount_log_probs(outputs, inputs, actions.place, {}, 0).exp().double().numpy()
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    np.testing.assert_allclose(terms.task_entropy, -(probabilities * logs).sum(2), atol=1e-5)
    logs = np.log(np.where(amounts > 0, amounts, 1.0))
    expected = np.where(actions.place < 5, -(amounts * logs).sum(2), 0.0)
    np.testing.assert_allclose(terms.amounts_entropy, expected, atol=1e-5)


def test_no_pointer_is_uniform_over_what_can_start():
    net, inputs = make(10, "no-pointer", shape={"batch": 16})
    probabilities = torch.softmax(net(inputs).task_logits, 2)[:, :, :-1].detach()
    for row, startable in zip(probabilities.flatten(0, 1), inputs.startable.flatten(0, 1), strict=True):
        assert (row[~startable] == 0.0).all()
        if startable.any():
            torch.testing.assert_close(row[startable], row[startable][:1].expand(int(startable.sum())))


def test_vanilla_takes_the_first_that_can_start():
    net, inputs = make(11, "vanilla", shape={"batch": 16})
    possible = torch.softmax(net(inputs).task_logits, 2)[:, :, :-1] > 0
    first = inputs.startable.long().argmax(dim=2)
    assert torch.equal(possible.any(2), inputs.startable.any(2))
    assert torch.equal(possible.long().argmax(2)[possible.any(2)], first[possible.any(2)])
    assert possible.sum(2).max() == 1
