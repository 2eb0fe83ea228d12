"""The paper's network with less work, for training: see ``fast_forward``, which uses it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy.allocation import Amounts
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.packed_graph import PackedGraph, encode
from tapfinger.policy.paper_form import GraphEncoder, choice_logits, side_by_side
from tapfinger.policy.ragged import Rows

#: Fields of Inputs that an actor reads.
_READ = ("place_mask", "startable", "minimum", "largest")


class PaperAnswers:
    """Answers that keep the tables of the tasks that can start, and turn only those chosen into amounts."""

    def __init__(
        self, task_logits: Tensor, value: Tensor, tables: Tensor, number: Tensor, parts: tuple[Any, ...]
    ) -> None:
        """``tables`` (rows, columns, columns); ``number`` (B, N, K): each place's row. ``parts``: head and inputs."""
        self.task_logits, self.value = task_logits, value
        self._tables, self._number = tables, number
        self._head, self._inputs = parts

    def chosen(self, rows: tuple[Tensor, ...], placed: Tensor) -> Amounts:
        """As in Answers."""
        if not placed.any():
            placed = torch.ones_like(placed)  # scoring at least one gives the number of columns
        at = tuple(index.expand_as(placed)[placed] for index in rows)
        tables = self._tables[self._number[at]]
        scores = self._head.amounts(tables, self._inputs.minimum[at], self._inputs.largest[at])
        return Amounts(*(_put(placed, part) for part in scores))


def _put(mask: Tensor, rows: Tensor) -> Tensor:
    return rows.new_zeros(*mask.shape, *rows.shape[1:]).index_put((mask,), rows)


def answer_paper(network: nn.Module, inputs: Inputs) -> PaperAnswers:
    """As ``fast_forward.answer``; some task must be startable."""
    encoder: Any = network.encoder
    critic: Any = network.critic
    actors: Any = network.actor
    if isinstance(encoder, GraphEncoder):
        graph = PackedGraph.of(inputs)
        nodes = encode(encoder, inputs, graph)
        numbers = graph.pending.numbers()
        summary = side_by_side(graph.pending.pad(nodes.pending), encoder.slots)
    else:
        encoded = encoder(inputs)
        summary = encoded.summary
    columns = actors.actors[0].allocation.columns
    number = torch.zeros_like(inputs.node)
    logits, tables, begin = [], [], 0
    for n, actor in enumerate(actors.actors):
        agents = Rows.of(inputs.startable[:, n].any(dim=1))
        if not len(agents.at):
            nothing = summary.new_full(inputs.node[:, n].shape, float("-inf"))
            logits.append(f.pad(nothing, (0, 1)))
            continue
        fields = {name: getattr(inputs, name)[agents.at, n].unsqueeze(1) for name in _READ}
        mine = inputs._replace(**fields)
        there = Rows.of(mine.place_mask.squeeze(1))
        if isinstance(encoder, GraphEncoder):
            at = numbers[agents.at].gather(1, inputs.node[agents.at, n]).flatten()[there.at]
            places = f.embedding(at, nodes.pending)
            if encoder.pair_view is not None:
                places = places + encoder.pair_view(there.pack(inputs.pair[agents.at, n]))
        else:
            places = there.pack(encoded.places[agents.at, n])
        # Rows of tasks that can start, among all the places of the agents that have a choice.
        able = Rows.of(mine.startable.squeeze(1))
        table = actor.allocation.table(places.index_select(0, there.numbers().flatten()[able.at]))
        low, high = (part.squeeze(1).flatten(0, 1)[able.at] for part in (mine.minimum, mine.largest))
        sure, stay = (
            able.pad(part.unsqueeze(1)).squeeze(2).unsqueeze(1) for part in actor.start_or_void(table, low, high)
        )
        chosen = choice_logits(actor.chooser(places, mine, there), sure, stay, mine.startable)
        # An agent without a choice is void.
        first = agents.pad(chosen[:, 0, :-1], float("-inf"))
        logits.append(torch.cat([first, agents.pad(chosen[:, 0, -1:])], dim=1))
        number[agents.at, n] = able.numbers() + begin
        tables.append(table)
        begin += len(table)
    all_tables = torch.cat(tables) if begin else summary.new_zeros(1, columns, columns)
    parts = actors.actors[0].allocation, inputs
    return PaperAnswers(torch.stack(logits, dim=1), critic(summary), all_tables, number, parts)
