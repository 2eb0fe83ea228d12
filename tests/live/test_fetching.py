"""Files of tasks as a coordinator tells of them, believed only as far as they can be."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tapfinger.errors import CoordinatorError, NotFetched, NotFound
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
        ("", [[("a\0b", "file")]]),
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


def growing(path: str, params: dict[str, Any]) -> httpx.Response:
    """A coordinator with one file that grows by more than what is fetched of it, whenever it is asked for."""
    if not path.endswith("/content"):
        entries = [{"name": "log", "kind": "file", "size": 5, "modified": 1.0}]
        return httpx.Response(200, content=json.dumps({"files": entries, "more": False}))
    offset = params["offset"]
    assert offset < 100, "this would never end"
    return httpx.Response(200, content=b"line", headers={"X-Size": str(offset + 8)})


def test_of_a_file_that_grows_as_much_is_fetched_as_was_listed(tmp_path: Path) -> None:
    assert fetching.fetch_all(growing, 1, "", tmp_path, None) == [tmp_path / "log"]
    assert (tmp_path / "log").read_bytes() == b"linel"


def below(folders: dict[str, list[tuple[str, str]]]) -> Ask:
    """A coordinator with these directories; others are gone by the time that they are asked for."""

    def ask(path: str, params: dict[str, Any]) -> httpx.Response:
        if path.endswith("/content"):
            return httpx.Response(200, content=b"yes", headers={"X-Size": "3"})
        if params["path"] not in folders:
            raise NotFound(f"task 1 attempt 1 has no file {params['path']!r}")
        entries = [{"name": n, "kind": kind, "size": 3, "modified": 1.0} for n, kind in folders[params["path"]]]
        return httpx.Response(200, content=json.dumps({"files": entries, "more": False}))

    return ask


def test_a_directory_that_goes_meanwhile_does_not_end_a_fetch(tmp_path: Path) -> None:
    ask = below({"": [("a", "file"), ("gone", "directory"), ("z", "file")]})
    with pytest.raises(NotFetched) as told:
        fetching.fetch_all(ask, 1, "", tmp_path, None)
    assert told.value.fetched == (str(tmp_path / "a"), str(tmp_path / "z"))
    assert [line.partition(" cannot")[0] for line in told.value.failed] == [str(tmp_path / "gone")]
    assert [one.path for one in fetching.listed(ask, 1, "", None)] == ["a", "gone", "z"]
    with pytest.raises(NotFound):
        fetching.fetch_all(ask, 1, "none", tmp_path, None)


def test_a_path_that_is_too_long_to_be_asked_for_does_not_end_a_fetch(tmp_path: Path) -> None:
    deep, folders, path = "d" * 255, {}, ""
    for _ in range(20):
        folders[path] = [(deep, "directory"), ("x" * 250, "file")]
        path = f"{path}/{deep}".strip("/")
    asked = below(folders)

    def ask(path: str, params: dict[str, Any]) -> httpx.Response:
        assert len(params["path"]) <= 4096
        return asked(path, params)

    with pytest.raises(NotFetched) as told:
        fetching.fetch_all(ask, 1, "", tmp_path, None)
    assert told.value.failed[0].endswith("its path has more than 4096 characters")
    assert told.value.fetched


def test_a_task_that_goes_on_making_files_is_not_listed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MOST_LISTED", 50)

    def ask(_path: str, params: dict[str, Any]) -> httpx.Response:
        first = int(params["after"] or -1) + 1
        entries = [{"name": f"{n:09}", "kind": "file", "size": 0, "modified": 1.0} for n in range(first, first + 10)]
        return httpx.Response(200, content=json.dumps({"files": entries, "more": True}))

    told: list[str] = []
    found = list(islice(fetching.listed(ask, 1, "", None, lambda path, why: told.append(why)), 100))
    assert len(found) == 50
    assert told == ["only the first 50 files and directories of a task are listed"]
