"""Decoding for connectionist temporal classification: frames to letters, letters to word errors. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

#: Index of the blank class; letters follow.
BLANK = 0


def decode(frames: Sequence[int], alphabet: str) -> str:
    """Greedy decoding: the best class of each frame, repeats merged, blanks left out. Class n is letter n - 1."""
    return "".join(alphabet[kind - 1] for kind, _ in groupby(frames) if kind != BLANK)


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Number of words to insert, delete or change to get from one text to the other, and number of words said."""
    one, other = said.split(), heard.split()
    row = list(range(len(other) + 1))
    for i, word in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, candidate in enumerate(other, 1):
            best = min(row[j] + 1, row[j - 1] + 1, before + (word != candidate))
            before, row[j] = row[j], best
    return row[-1], len(one)
