"""BENCHMARKS.md: a benchmark writes its section between two marks; text written by people around it stays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parent.parent / "BENCHMARKS.md"


def places(page: Path = PAGE) -> list[str]:
    """Names of the sections that have a place on the page, in order."""
    return re.findall(r"^<!-- begin (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)


def put(name: str, lines: Sequence[str], page: Path = PAGE) -> None:
    """Replace one section."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(f"{begin}\n")
    _, closed, after = rest.partition(f"{end}\n")
    if not found or not closed:
        raise ValueError(f"{page.name} has no place for {name!r}; put {begin} and {end} where it should stand")
    page.write_text("\n".join([before + begin, *lines, end, after]), encoding="utf-8")
