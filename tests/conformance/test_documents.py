"""What the documents show really runs, and the public names are what they say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tapfinger
from tapfinger.config import load_scenario
from tapfinger.core.events import TaskStarted
from tapfinger.registry import GROUPS, create, lookup, names
from tapfinger.sim.run import run_scheduler
from tapfinger.testing import check_scheduler, check_workload
from tapfinger.workloads.world import build_world

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user stands in the checkout; what is imported from there is forgotten again."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    lookup.cache_clear()


@pytest.mark.usefixtures("at_root")
def test_the_example_is_what_the_page_shows_and_short() -> None:
    example = (ROOT / "examples" / "fifo.py").read_text()
    assert blocks("extending-scheduler.md")[0] == example
    assert len(example.splitlines()) <= 20
    check_scheduler(lambda: create("scheduler", "examples.fifo:Fifo", {}))


@pytest.mark.usefixtures("at_root")
def test_the_example_that_gives_whole_clusters_keeps_the_contract() -> None:
    check_scheduler(lambda: create("scheduler", "examples.whole:Whole", {}))


@pytest.mark.usefixtures("at_root")
def test_the_wrapper_is_what_the_page_shows_and_starts_nothing_at_night() -> None:
    example = (ROOT / "examples" / "by_day.py").read_text()
    assert example in blocks("extending-scheduler.md")
    assert len(example.splitlines()) <= 20
    for of in ("greedy", "optimus", "random"):
        check_scheduler(lambda of=of: create("scheduler", "examples.by_day:ByDay", {"of": of, "day": 9, "night": 3}))
    starts: list[int] = []
    by_day = create("scheduler", "examples.by_day:ByDay", {"day": 9, "night": 3})
    world = build_world(load_scenario("multi-3", ["tasks=50"]))
    run_scheduler(world, by_day, 0, [lambda event: starts.extend([event.slot] * isinstance(event, TaskStarted))])
    assert len(starts) == 50
    assert max(slot % 9 for slot in starts) == 5


@pytest.mark.usefixtures("at_root")
def test_scheduler_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT))
    space: dict[str, Any] = {}
    for block in blocks("extending-scheduler.md")[1:]:
        exec(block, space)
    printed = capsys.readouterr().out
    assert "slots per task" in printed
    assert "50 tasks started" in printed
    space["test_fifo"]()
    check_scheduler(space["ShortestNext"])


def test_scheduler_page_runs_on_the_command_line() -> None:
    command = ["simulate", "multi-3", "--scheduler", "examples.fifo:Fifo", "--set", "tasks=20"]
    subprocess.run([sys.executable, "-m", "tapfinger", *command], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_workload_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, check = blocks("extending-workload.md")
    (tmp_path / "my_workload.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    lookup.cache_clear()
    world = build_world(load_scenario("multi-3", ['arrivals={kind="my_workload:EveryTenth", burst=8}']))
    workload = tapfinger.draw_workload(world, 0)
    assert workload.slot[:9].tolist() == [0] * 8 + [10]
    run_scheduler(world, create("scheduler", "min", {}), 0)
    space: dict[str, Any] = {"EveryTenth": lookup("arrivals", "my_workload:EveryTenth")}
    exec(check, space)
    space["test_every_tenth"]()
    check_workload(lambda: space["EveryTenth"](burst=1))


def test_environments_page_runs() -> None:
    for block in blocks("environments.md"):
        exec(block, {})


def test_an_entry_point_gives_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_fifo.py").write_text((ROOT / "examples" / "fifo.py").read_text())
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUPS['scheduler']}]\nmy-fifo = outside_fifo:Fifo\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "my-fifo" in names("scheduler")
    scheduler = create("scheduler", "my-fifo", {})
    assert type(scheduler).__name__ == "Fifo"
    lookup.cache_clear()  # the name is gone with the path


def test_every_public_name_exists() -> None:
    assert set(tapfinger.__all__) == {"__version__", *tapfinger._MODULE_OF} == set(dir(tapfinger))
    for name in tapfinger.__all__:
        assert getattr(tapfinger, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tapfinger.nothing


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(tapfinger.__file__).with_name("__init__.pyi").read_text())
    imported = {a.name: n.module for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert imported == tapfinger._MODULE_OF
    listed = next(n for n in stub.body if isinstance(n, ast.Assign)).value
    assert set(ast.literal_eval(listed)) == set(tapfinger.__all__)


def test_import_is_light() -> None:
    code = (
        "import sys, tapfinger; assert not {'numpy', 'numba', 'pydantic', 'gymnasium', 'pettingzoo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


#: Longest line of prose in characters; tables and code keep their lines.
LONGEST = 160
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_short(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert not [line for line in prose.splitlines() if len(line) > LONGEST and not line.startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in target]
    assert not [target for target in targets if target and not (page.parent / target).exists()]
