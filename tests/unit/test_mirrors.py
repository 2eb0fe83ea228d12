"""Whatever says that it mirrors something names a thing that exists, and an equivalence test names that thing too."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import tapfinger

SOURCE = Path(tapfinger.__file__).parent
EQUIVALENCE = Path(__file__).parents[1] / "equivalence"

#: The fixed wording: Mirror of `package.module.Name.method`, with "and" between several.
WORDING = re.compile(r"Mirror of (`tapfinger[\w.]+`(?:(?:,| and) `tapfinger[\w.]+`)*)")


def said() -> list[tuple[str, str]]:
    """(file and line, name) of everything that is said to be mirrored."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            where = f"{path.relative_to(SOURCE)}:{number}"
            named = WORDING.search(line)
            if named:
                found += [(where, name) for name in re.findall(r"`([\w.]+)`", named[1])]
            elif re.search(r"mirror(s|ed)? of", line, flags=re.IGNORECASE):
                found.append((where, ""))
    return found


MIRRORS = said()
NAMES = sorted({name for _, name in MIRRORS if name})


def resolve(name: str) -> object:
    """The module, class, function or method of a dotted name; raises where there is none."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_mirrors_are_named_in_the_fixed_wording() -> None:
    assert [where for where, name in MIRRORS if not name] == []
    assert len(NAMES) > 20


@pytest.mark.parametrize("name", NAMES)
def test_what_is_mirrored_exists_and_is_compared(name: str) -> None:
    assert callable(resolve(name))
    tests = [path.name for path in EQUIVALENCE.glob("test_*.py") if f"`{name}`" in path.read_text()]
    assert tests, f"no test in tests/equivalence names `{name}`"


def test_a_name_that_does_not_exist_is_found_out() -> None:
    with pytest.raises(AttributeError):
        resolve("tapfinger.core.feasibility.check_placement")
