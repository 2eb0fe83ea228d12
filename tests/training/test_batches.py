"""Gradients of a minibatch in chunks, on one thread or several."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from policy.states import random_inputs
from waiting import PATIENCE

from tapfinger.policy.ablations import build
from tapfinger.policy.actor_critic import as_tensors, config_for
from tapfinger.training import batches
from tapfinger.training.batches import Chunk, add_gradients, chunks, evaluate_rows

STATES = 40


def make():
    """A network, states, and a loss of the oldest startable tasks with their least amounts."""
    inputs = random_inputs(0, batch=STATES)
    torch.manual_seed(0)
    network = build("full", config_for(inputs, 1, hidden=16))
    place = np.where(inputs.startable.any(axis=2), inputs.startable.argmax(axis=2), 5)
    least = np.take_along_axis(inputs.minimum, np.minimum(place, 4)[..., None, None], axis=2)[:, :, 0]
    amounts = np.where((place < 5)[..., None], least, 0)

    def lose(chunk):
        answers, terms = evaluate_rows(network, chunk, place, amounts, 5, 1)
        loss = (terms.task + terms.amounts).sum() + answers.value.sum()
        return loss, {"loss": float(loss.detach()), "states": float(len(chunk.rows))}

    return network, inputs, lose


def gradients(network):
    return {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_gradients_of_chunks_are_that_of_the_whole(threads):
    network, inputs, lose = make()
    rows = np.arange(STATES)
    loss, _ = lose(Chunk(rows, as_tensors(inputs)))
    loss.backward()
    wanted = {name: gradient.clone() for name, gradient in gradients(network).items()}
    network.zero_grad()
    sums = add_gradients(network, chunks(network, inputs, rows, size=7), lose, threads)
    assert sums["states"] == STATES
    assert sums["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, gradient in gradients(network).items():
        torch.testing.assert_close(gradient, wanted.pop(name), atol=1e-3, rtol=1e-3, msg=lambda t, n=name: f"{n}: {t}")
    assert not wanted


def test_the_number_of_threads_changes_no_bit_though_they_work_side_by_side():
    found, used = [], []
    for threads in (1, 2, 4):
        network, inputs, lose = make()
        meet = threading.Barrier(threads)  # nobody goes on before all of them are at work
        names = set()

        def watched(chunk, meet=meet, names=names, lose=lose):
            meet.wait(timeout=PATIENCE)
            names.add(threading.get_ident())
            return lose(chunk)

        add_gradients(network, chunks(network, inputs, np.arange(STATES), size=10), watched, threads)
        found.append(gradients(network))
        used.append(len(names))
    assert used == [1, 2, 4]
    for other in found[1:]:
        assert all(torch.equal(gradient, other[name]) for name, gradient in found[0].items())


def test_gradients_are_added_to_those_already_there():
    network, inputs, lose = make()
    once = chunks(network, inputs, np.arange(STATES))
    add_gradients(network, once, lose, 2)
    before = {name: gradient.clone() for name, gradient in gradients(network).items()}
    add_gradients(network, chunks(network, inputs, np.arange(STATES)), lose, 2)
    for name, gradient in gradients(network).items():
        torch.testing.assert_close(gradient, 2 * before[name])


def test_wide_networks_and_full_states_have_smaller_chunks(monkeypatch):
    network, inputs, _ = make()
    tasks = inputs.pending_mask.sum(axis=1) + inputs.running_mask.sum(axis=(1, 2))
    room = 3 * int(tasks.max()) * 16
    monkeypatch.setattr(batches, "NUMBERS", room)
    found = list(chunks(network, inputs, np.arange(STATES)))
    assert sorted(row for chunk in found for row in chunk.rows) == list(range(STATES))
    assert all(tasks[chunk.rows].sum() * 16 <= room for chunk in found)
    monkeypatch.setattr(batches, "NUMBERS", 1)
    assert len(list(chunks(network, inputs, np.arange(STATES)))) == STATES, "a state at a time, whatever it takes"
