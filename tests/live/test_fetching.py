"""Files of tasks as a coordinator tells of them, believed only as far as they can be."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tapfinger.errors import CoordinatorError
from tapfinger.live.http import fetching
from tapfinger.live.http.fetching import Ask, TaskFile


def telling(*pages: list[tuple[str, str]]) -> Ask:
    """A coordinator that tells these pages of names and kinds, and the last one for ever."""
    left = list(pages)

    def ask(path: str, _params: dict[str, Any]) -> httpx.Response:
        if not path.endswith("/files"):
            return httpx.Response(200, content=b"yes", headers={"X-Size": "3"})
        page = left.pop(0) if len(left) > 1 else left[0]
        entries = [{"name": name, "kind": kind, "size": 3, "modified": 1.0} for name, kind in page]
        return httpx.Response(200, content=json.dumps({"files": entries, "more": len(pages) > 1}))

    return ask


@pytest.mark.parametrize(
    ("path", "pages"),
    [
        ("", [[("", "file")]]),
        ("a", [[("", "directory")]]),
        ("a", [[("", "file")], [("", "file")]]),
        ("a", [[("", "file"), ("b", "file")]]),
        ("", [[("a", "file")], [("a", "file")]]),
        ("", [[("b", "file")], [("c", "file")], [("a", "file")]]),
        ("", [[("a", "file"), ("a", "file")]]),
        ("", [[("..", "directory")]]),
        ("", [[("a/b", "file")]]),
    ],
)
def test_lists_that_cannot_be_are_refused(path: str, pages: list[list[tuple[str, str]]]) -> None:
    with pytest.raises(CoordinatorError, match="which cannot be there"):
        list(islice(fetching.listed(telling(*pages), 1, path, None), 100))


def test_a_file_that_was_asked_for_is_told_without_a_name() -> None:
    (found,) = fetching.listed(telling([("", "file")]), 1, "deep/model.bin", None)
    assert found.path == "deep/model.bin"


@pytest.mark.parametrize("name", ["a" * 255, "\u00e4" * 127])
def test_a_file_with_the_longest_name_is_fetched(tmp_path: Path, name: str) -> None:
    assert fetching.fetch_all(telling([(name, "file")]), 1, "", tmp_path, None) == [tmp_path / name]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"yes")]


def test_parts_of_different_files_have_different_names() -> None:
    entry = TaskFile("deep/a", "file", 3, 1.0)
    others = replace(entry, path="deep/b"), replace(entry, size=4), replace(entry, modified=2.0)
    assert len({fetching.part_of(one) for one in (entry, *others)}) == 4
    assert fetching.part_of(replace(entry, path="\ud800"))
