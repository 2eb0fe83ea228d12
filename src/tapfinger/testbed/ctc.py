"""Connectionist temporal classification, the reading side: frames to letters, letters to word errors. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

#: Index of the class that says nothing; letters follow.
BLANK = 0


def decode(frames: Sequence[int], alphabet: str) -> str:
    """Greedy: the best class of each frame, repeats merged, blanks left out. Class n is letter n - 1."""
    return "".join(alphabet[kind - 1] for kind, _ in groupby(frames) if kind != BLANK)


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Words to put in, take out or change to get from one to the other, and words that were said."""
    one, other = said.split(), heard.split()
    row = list(range(len(other) + 1))
    for i, word in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, candidate in enumerate(other, 1):
            best = min(row[j] + 1, row[j - 1] + 1, before + (word != candidate))
            before, row[j] = row[j], best
    return row[-1], len(one)
