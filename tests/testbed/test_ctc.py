"""Reading frames, by hand and by definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapfinger.testbed.ctc import BLANK, decode, word_errors


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([], ""),
        ([0, 0, 0], ""),
        ([1, 1, 1], "a"),
        ([1, 0, 1], "aa"),
        ([0, 3, 3, 0, 1, 1, 2, 0, 0, 2], "cabb"),
        ([1, 2, 1, 2], "abab"),
    ],
)
def test_greedy_decoding_of_known_frames(frames: list[int], text: str) -> None:
    assert decode(frames, "abc") == text


@given(st.text("abc", max_size=12), st.data())
def test_any_frames_of_a_text_are_read_as_that_text(text: str, data: st.DataObject) -> None:
    frames: list[int] = []
    for place, letter in enumerate(text):
        repeated = place > 0 and text[place - 1] == letter
        frames += [BLANK] * data.draw(st.integers(int(repeated), 3))
        frames += ["abc".index(letter) + 1] * data.draw(st.integers(1, 4))
    assert decode(frames + [BLANK] * data.draw(st.integers(0, 2)), "abc") == text


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("one two three", "one two three", 0),
        ("one two three", "one too three", 1),
        ("one two three", "one three", 1),
        ("one two", "one two two three", 2),
        ("one two", "", 2),
        ("a b c d", "b c d e", 2),
    ],
)
def test_word_errors_by_hand(said: str, heard: str, errors: int) -> None:
    assert word_errors(said, heard) == (errors, len(said.split()))


words = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6).map(" ".join)


@given(words, words, words)
def test_word_errors_are_a_distance(one: str, two: str, three: str) -> None:
    def apart(x: str, y: str) -> int:
        return word_errors(x, y)[0]

    assert apart(one, one) == 0
    assert apart(one, two) == apart(two, one)
    assert apart(one, three) <= apart(one, two) + apart(two, three)
