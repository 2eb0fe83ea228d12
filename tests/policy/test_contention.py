"""What clusters foresee of a contest must be what Bayes' rule will say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policy.states import random_inputs

from tapfinger.core.conflict import resolve
from tapfinger.core.contract import Proposal
from tapfinger.core.model import Resources
from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import as_tensors, config_for
from tapfinger.policy.contention import rivalry


@pytest.mark.parametrize("seed", range(8))
def test_the_last_column_is_one_for_who_would_win(seed):
    inputs = random_inputs(seed, batch=1, clusters=4)
    free = np.random.default_rng(seed).integers(3, 17, size=(1, 4, 2))
    room = [Resources(row.tolist()) for row in free[0]]
    inputs.minimum[:] = (1 + inputs.node % 3)[..., None]  # a task has one minimum, wherever it may run
    inputs.copies[:] = (free[:, :, None, :] // inputs.minimum).min(axis=3)
    tensors = as_tensors(inputs)
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, 4, inputs.node.shape[2] + 1)).astype("f4"))
    noise[:, :, :-1] = noise[:, :, :-1].masked_fill(~tensors.startable, float("-inf"))
    seen = rivalry(noise, tensors)
    wish = torch.softmax(noise, dim=2)
    contests = 0
    for node in range(inputs.pending.shape[1]):
        rivals = np.argwhere((inputs.node[0] == node) & inputs.startable[0])
        if not len(rivals):
            continue
        contests += len(rivals) > 1
        n, k = rivals[0]
        minimum = Resources(inputs.minimum[0, n, k].tolist())
        proposals = [Proposal(int(n), node, minimum, float(wish[0, n, k])) for n, k in rivals]
        (won,) = resolve(proposals, room, {node: minimum}).placements
        for n, k in rivals:
            own, others, share = seen[0, n, k].tolist()
            assert own == pytest.approx(float(wish[0, n, k]))
            assert others == pytest.approx(sum(p.score for p in proposals if p.cluster != n), abs=1e-5)
            assert (share == pytest.approx(1.0)) == (n == won.cluster)
    assert contests


def test_rounds_change_what_is_wanted_and_nothing_illegal_becomes_likely():
    inputs = random_inputs(3, batch=4)
    torch.manual_seed(0)
    net = build("full", config_for(inputs, 1, hidden=16, rounds=2))
    tensors = as_tensors(inputs)
    after = net(tensors).task_logits
    with torch.no_grad():
        for thought in net.actor.chooser.rounds:
            thought.weight.zero_()
    before = net(tensors).task_logits
    legal = torch.isfinite(before)
    assert torch.equal(legal, torch.isfinite(after))
    assert not torch.allclose(before[legal], after[legal])
