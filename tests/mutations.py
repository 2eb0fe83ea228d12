"""Broken files: a valid small sample with something cut, doubled, exchanged or made absurd."""

from __future__ import annotations

import re

from hypothesis import strategies as st

#: What files hold that nobody meant to write.
ABSURD = (
    b"",
    b"nan",
    b"-1",
    b"0",
    b"inf",
    b"1e308",
    b"1e-300",
    b"-0.0",
    b"9" * 400,
    b"\xff\xfe",
    b"\x00",
    b'"',
    b"''",
    b";",
    b"a" * 200_000,
    "²".encode(),
    b"0001-01-01 00:00:00+14:00",
    b"9999-12-31 23:59:59-14:00",
    b"null",
    b"[]",
    b"{}",
    b"true",
)

_CELL = re.compile(rb"[^\s,;:{}\[\]\"]+")


@st.composite
def broken(draw: st.DrawFn, sample: bytes) -> bytes:
    """The sample after one to three faults."""
    content = sample
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("cell", "cell", "cell", "cut", "byte", "line", "garbage")))
        if kind == "cell" and (cells := list(_CELL.finditer(content))):
            cell = draw(st.sampled_from(cells))
            content = content[: cell.start()] + draw(st.sampled_from(ABSURD)) + content[cell.end() :]
        elif kind == "cut":
            content = content[: draw(st.integers(0, len(content)))]
        elif kind == "byte" and content:
            at = draw(st.integers(0, len(content) - 1))
            content = content[:at] + draw(st.binary(max_size=3)) + content[at + 1 :]
        elif kind == "line" and (lines := content.splitlines(keepends=True)):
            at = draw(st.integers(0, len(lines) - 1))
            lines[at : at + 1] = [lines[at]] * draw(st.sampled_from((0, 2)))
            content = b"".join(lines)
        elif kind == "garbage":
            content = draw(st.binary(max_size=64)) + content
    return content
