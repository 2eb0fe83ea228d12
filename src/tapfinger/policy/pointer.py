"""The actor's first choice: which pending task, by a transformer over the pending set and a pointer into it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from tapfinger.policy import contention
from tapfinger.policy.encoding.inputs import Inputs
from tapfinger.policy.han import MASKED, masked_mean, regroup
from tapfinger.policy.ragged import Rows


class EncoderBlock(nn.Module):
    """One transformer layer without dropout: self-attention, then a perceptron, each with a residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        """``heads`` divides ``hidden``."""
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.before_attention = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.merge = nn.Linear(hidden, hidden)
        self.before_perceptron = nn.LayerNorm(hidden)
        self.perceptron = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))

    def forward(self, rows: Tensor, bias: Tensor, there: Rows | None = None) -> Tensor:
        """``rows`` (sequences, K, H), or (rows, H) of those ``there``; ``bias`` (sequences, 1, 1, K) for the scores."""
        split = self.query_key_value(self.before_attention(rows))
        split = regroup(split if there is None else there.pad(split), 0, 0, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)  # each (sequences, heads, K, width)
        seen = f.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=self.width**-0.5)
        seen = regroup(seen.transpose(1, 2), 0, 0, -1)
        rows = rows + self.merge(seen if there is None else there.pack(seen))
        after: Tensor = rows + self.perceptron(self.before_perceptron(rows))
        return after


class VoidHead(nn.Module):
    """How strongly a cluster prefers to start nothing."""

    def __init__(self, hidden: int, views: int) -> None:
        """``views``: number of embeddings it is given."""
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(views * hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, *views: Tensor) -> Tensor:
        """(B, N, H) each -> (B, N, 1)."""
        logit: Tensor = self.layers(torch.cat(views, dim=2))
        return logit


class Pointer(nn.Module):
    """u_j = v . tanh(W1 h_j + W2 mean(h)) over the encoded pending tasks, and a logit for void.

    With ``rounds``, clusters reconsider that many times: what they foresee of the contest for j is added inside tanh.
    """

    def __init__(self, hidden: int, heads: int, layers: int, rounds: int = 0) -> None:
        """``layers``: number of transformer layers."""
        super().__init__()
        self.blocks = nn.ModuleList([EncoderBlock(hidden, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.task = nn.Linear(hidden, hidden)  # W1
        self.context = nn.Linear(hidden, hidden, bias=False)  # W2
        self.score = nn.Linear(hidden, 1, bias=False)  # v
        self.void = VoidHead(hidden, 2)
        self.rounds = nn.ModuleList([nn.Linear(contention.COLUMNS, hidden, bias=False) for _ in range(rounds)])

    def forward(
        self, places: Tensor, clusters: Tensor, inputs: Inputs, there: Rows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, N, K + 1), -inf where not startable, void last; and the encoded tasks (B, N, K, H).

        ``places`` may also hold only the rows ``there`` of (B, K); N is then 1.
        """
        rows = places.flatten(0, 1) if there is None else places
        bias = ((1.0 - inputs.place_mask.to(rows.dtype)) * MASKED).flatten(0, 1)[:, None, None, :]
        for block in self.blocks:
            rows = block(rows, bias, there)
        encoded = self.norm(rows)
        encoded = encoded.reshape_as(places) if there is None else there.pad(encoded).unsqueeze(1)
        mean = masked_mean(encoded, inputs.place_mask)
        inside, void = self.task(encoded) + self.context(mean).unsqueeze(2), self.void(clusters, mean)
        logits = self._point(inside, void, inputs.startable)
        for thought in self.rounds:
            logits = self._point(inside + thought(contention.rivalry(logits, inputs)), void, inputs.startable)
        return logits, encoded

    def _point(self, inside: Tensor, void: Tensor, startable: Tensor) -> Tensor:
        pointed = self.score(torch.tanh(inside)).squeeze(3).masked_fill(~startable, float("-inf"))
        return torch.cat([pointed, void], dim=2)
