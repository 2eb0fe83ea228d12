import importlib
import sys
from pathlib import Path

import pytest

from tapfinger import registry
from tapfinger.errors import ConfigError, UnknownNameError
from tapfinger.registry import BUILT_IN, GROUPS, create, lookup, names
from tapfinger.schedulers.naive import Min, Random


@pytest.fixture(autouse=True)
def _fresh_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups are remembered, and a path may extend sys.path: neither may leak between tests."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    lookup.cache_clear()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in BUILT_IN.items() for name in table])
def test_every_name_leads_to_something_callable(kind: str, name: str) -> None:
    assert callable(lookup(kind, name))


def test_options_reach_the_class() -> None:
    assert isinstance(create("scheduler", "min", {"pending": 3}), Min)
    assert isinstance(create("scheduler", "tapfinger.schedulers.naive:Random", {}), Random)


def test_names_are_sorted_and_complete() -> None:
    for kind in GROUPS:
        assert names(kind) == sorted(names(kind))
        assert set(BUILT_IN.get(kind, {})) <= set(names(kind))


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("mni", UnknownNameError, r"no scheduler 'mni'. Did you mean 'min'\? Known: .*min.*random"),
        ("nosuch.module:Thing", ConfigError, "no module 'nosuch.module' on the Python path"),
        ("tapfinger.nosuch:Thing", ConfigError, "no module 'tapfinger.nosuch'"),
        ("tapfinger.schedulers.naive:Nothing", ConfigError, "module tapfinger.schedulers.naive has no 'Nothing'"),
        ("tapfinger.schedulers.naive:", ConfigError, "has no ''"),
        (":Thing", ConfigError, "must look like package.module:Class"),
        (".naive:Thing", ConfigError, "must look like package.module:Class"),
    ],
)
def test_unknown_names_are_explained(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        lookup("scheduler", name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pendin": 3}, r"'min' has no option 'pendin'. Did you mean 'pending'\? It takes: pending"),
        ({"colour": 3}, "'min' has no option 'colour'. It takes: pending"),
    ],
)
def test_unknown_options_are_explained(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create("scheduler", "min", options)


def test_missing_options_are_named() -> None:
    with pytest.raises(ConfigError, match="arrivals 'poisson' needs rate"):
        create("arrivals", "poisson", {})


def test_a_class_in_a_file_beside_the_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_scheduler.py").write_text(
        "class Mine:\n    def __init__(self, depth=2):\n        self.depth = depth\n"
    )
    monkeypatch.chdir(tmp_path)
    assert create("scheduler", "my_own_scheduler:Mine", {"depth": 5}).depth == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Its name begins like the missing module's: the message must not blame the user's own module.
        (
            "import json\nimport users_own\n",
            r"users_own_plugin\.py:2: ModuleNotFoundError: No module named 'users_own'",
        ),
        ("class Mine:\n    def x(self)\n", r"users_own_plugin\.py:2: SyntaxError"),
        ("x = 1\ny = x / 0\n", r"users_own_plugin\.py:2: ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('{')\n", r"users_own_plugin\.py:3: JSONDecodeError"),
        ("import sys\nsys.exit(3)\n", r"users_own_plugin\.py:2: SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_blamed_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    (tmp_path / "users_own_plugin.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "users_own_plugin", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=f"module users_own_plugin cannot be imported: .*{words}"):
        lookup("scheduler", "users_own_plugin:Mine")


def test_a_constructor_that_fails_is_blamed_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_scheduler.py").write_text(
        "class Mine:\n    def __init__(self, depth=2):\n        self.depth = {}[depth]\n\n\nnumber = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"'failing_scheduler:Mine' cannot be made: .*failing_scheduler\.py:3: KeyErr"
    ):
        create("scheduler", "failing_scheduler:Mine", {})
    with pytest.raises(ConfigError, match=r"'failing_scheduler:number' is a int; name a class"):
        lookup("scheduler", "failing_scheduler:number")


@pytest.mark.parametrize(
    ("kind", "name", "options", "words"),
    [
        ("scheduler", "tiresias", {"elastic": "no"}, "'tiresias': option elastic = 'no' must be true or false"),
        ("scheduler", "tiresias", {"elastic": 1}, "elastic = 1 must be true or false"),
        ("scheduler", "tiresias", {"threshold": "x"}, "threshold = 'x' must be a number"),
        ("scheduler", "min", {"pending": 2.5}, "pending = 2.5 must be a whole number"),
        ("scheduler", "min", {"pending": True}, "pending = True must be a whole number"),
        ("scheduler", "optimus", {"admission": 3}, "admission = 3 must be text"),
        ("arrivals", "trace", {"file": "w.csv", "sort": "yes"}, r"arrivals\.sort = 'yes' must be true or false"),
        ("arrivals", "poisson", {"rate": True}, r"arrivals\.rate = True must be a number"),
        ("arrivals", "trace", {"rate": 3}, r"no option 'rate'.*--set 'arrivals={kind=\"trace\", file=\"FILE\"}'"),
        ("arrivals", "trace", {}, r"needs file.*--set 'arrivals={kind=\"trace\", file=\"FILE\"}'"),
    ],
)
def test_options_of_another_type_are_refused(kind: str, name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(kind, name, options)


def test_whole_numbers_pass_for_numbers_and_none_where_it_may() -> None:
    create("scheduler", "tiresias", {"threshold": 3})
    create("scheduler", "tiresias", {"threshold": None})
    create("arrivals", "poisson", {"rate": 2})


def test_only_plain_annotations_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "annotated_scheduler.py").write_text(
        "from __future__ import annotations\n"
        "from collections.abc import Sequence\n\n\n"
        "class Mine:\n    def __init__(self, a=1, b: Sequence[int] = (), c: int | None = None):\n"
        "        self.a = a\n\n\n"
        "def unresolved(a: Nowhere = 1):\n    return a\n"
    )
    monkeypatch.chdir(tmp_path)
    assert create("scheduler", "annotated_scheduler:Mine", {"a": "x", "b": "x", "c": 3}).a == "x"
    assert create("scheduler", "annotated_scheduler:unresolved", {"a": "x"}) == "x"
    with pytest.raises(ConfigError, match="option c = 'x' must be a whole number"):
        create("scheduler", "annotated_scheduler:Mine", {"c": "x"})


def test_entry_points_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    entry = EntryPoint("theirs", "tapfinger.schedulers.naive:Random", "tapfinger.schedulers")

    def fake(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry] if group == "tapfinger.schedulers" and name in (None, "theirs") else []

    monkeypatch.setattr(registry, "entry_points", fake)
    assert "theirs" in names("scheduler")
    assert isinstance(create("scheduler", "theirs", {}), Random)


def test_a_broken_entry_point_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("theirs", "nosuch.module:Thing", "tapfinger.schedulers")
    monkeypatch.setattr(registry, "entry_points", lambda **_: [broken])
    with pytest.raises(ConfigError, match=r"'theirs': its entry point nosuch\.module:Thing cannot be loaded: .*nosuch"):
        lookup("scheduler", "theirs")
