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


def test_an_import_error_inside_the_users_module_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its name begins like the missing module's: the message must not blame the user's own module.
    (tmp_path / "no_such_package_user.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        lookup("scheduler", "no_such_package_user:Mine")


def test_entry_points_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    entry = EntryPoint("theirs", "tapfinger.schedulers.naive:Random", "tapfinger.schedulers")

    def fake(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry] if group == "tapfinger.schedulers" and name in (None, "theirs") else []

    monkeypatch.setattr(registry, "entry_points", fake)
    assert "theirs" in names("scheduler")
    assert isinstance(create("scheduler", "theirs", {}), Random)
