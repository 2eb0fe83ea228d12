from __future__ import annotations

import numpy as np
import pytest
import torch
from policy.states import random_inputs

from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import as_tensors, config_for
from tapfinger.policy.distributions import Actions, draw, evaluate
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.fast_forward import answer

#: The paper's own form for the three clusters of these states.
PAPER = {"form": "paper", "allocation": "joint", "separate_actors": 3, "transformer_layers": 2}

VARIANTS = [
    ("full", {"layers": 3, "transformer_layers": 2}),
    ("full", {"rounds": 2}),
    ("full", {"allocation": "joint"}),
    ("full", {"separate_actors": 3}),
    ("no-han", {}),
    ("hints-only", {}),
    ("no-pointer", {}),
    ("vanilla", {}),
    ("no-self", {}),
    ("joint-head", {}),
    ("full", PAPER),
    ("no-han", PAPER),
    ("no-pointer", PAPER),
    ("vanilla", PAPER),
]


def make(name="full", seed=0, batch=8, **changes):
    """In double precision: forms that only round differently agree to the last digits, others do not."""
    inputs = random_inputs(seed, batch=batch)
    # Every third agent has no choice, and in the second state there is nothing at all.
    busy = np.add.outer(np.arange(batch), np.arange(3)) % 3 == 0
    for mask in (inputs.pending_mask, inputs.running_mask, inputs.place_mask, inputs.startable):
        mask[1] = False
    inputs.startable[busy] = False
    inputs.largest[~inputs.startable] = 0
    torch.manual_seed(seed)
    network = build(name, config_for(inputs, 1, **{"hidden": 16, "rounds": 0, **changes})).double()
    floats = [field.double() if field.is_floating_point() else field for field in as_tensors(inputs)]
    return network, Inputs(*floats)


def generator():
    return torch.Generator().manual_seed(5)


def learn(network, answers, inputs, actions):
    """Terms, value, and gradients of something that needs all of them."""
    terms = evaluate(answers, inputs, actions, 1)
    network.zero_grad()
    parts = torch.stack(terms).flatten()
    weights = torch.linspace(-1.0, 1.0, len(parts), dtype=parts.dtype)
    (parts @ weights + (answers.value**2).sum()).backward()
    return terms, answers.value, {name: weight.grad for name, weight in network.named_parameters()}


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_less_work_gives_the_same_terms_values_and_gradients(name, changes, seed):
    network, inputs = make(name, seed, **changes)
    actions, _ = draw(network(inputs), inputs, 1, generator(), generator())
    assert (actions.place < 5).any()
    terms, value, gradients = learn(network, network(inputs), inputs, actions)
    others, same, found = learn(network, answer(network, inputs), inputs, actions)
    for left, right in zip((*terms, value), (*others, same), strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-10)
    for weight, gradient in gradients.items():
        known = gradient if gradient is not None else found[weight]
        if known is None:  # the paper's actors do not read the last layer's clusters
            continue
        left, right = (torch.zeros_like(known) if g is None else g for g in (gradient, found[weight]))
        torch.testing.assert_close(left, right, atol=1e-9, rtol=1e-9, msg=lambda text, w=weight: f"{w}: {text}")


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_the_same_actions_are_drawn(name, changes):
    network, inputs = make(name, 1, **changes)
    with torch.no_grad():
        mine, terms = draw(answer(network, inputs), inputs, 1, generator(), generator())
        other, wanted = draw(network(inputs), inputs, 1, generator(), generator())
    assert torch.equal(mine.place, other.place)
    assert torch.equal(mine.amounts, other.amounts)
    torch.testing.assert_close(torch.stack(terms), torch.stack(wanted), atol=1e-10, rtol=1e-10)


def test_nobody_can_start_anything_and_nobody_wants_to():
    network, inputs = make()
    idle = inputs._replace(startable=torch.zeros_like(inputs.startable), largest=torch.zeros_like(inputs.largest))
    void = Actions(torch.full((8, 3), 5), torch.zeros(8, 3, 2, dtype=torch.int64))
    for states in (idle, inputs):
        terms, wanted = (evaluate(said, states, void, 1) for said in (answer(network, states), network(states)))
        torch.testing.assert_close(torch.stack(terms), torch.stack(wanted), atol=1e-10, rtol=1e-10)
        assert (terms.amounts == 0).all()


def test_padding_agents_without_a_choice_and_tasks_not_chosen_cost_nothing():
    network, inputs = make(layers=2)
    seen = {}

    def watch(name):
        module = network.get_submodule(name)
        module.register_forward_hook(lambda _, given, __: seen.update({name: given[0][..., 0].numel()}))

    for name in ("encoder.layers.0.own.pending", "encoder.layers.0.own.running", "actor.chooser.task"):
        watch(name)
    watch("actor.allocation")
    actions, _ = draw(answer(network, inputs), inputs, 1, generator(), generator())
    assert seen == {
        "encoder.layers.0.own.pending": inputs.pending_mask.sum(),
        "encoder.layers.0.own.running": inputs.running_mask.sum(),
        "actor.chooser.task": 5 * inputs.startable.any(dim=2).sum(),
        "actor.allocation": (actions.place < 5).sum(),
    }
