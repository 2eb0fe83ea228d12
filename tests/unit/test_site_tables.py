"""A site's tables: made once per reset or learn whoever uses them, and equal to what they are derived from."""

from __future__ import annotations

from typing import Any

import pytest

from tapfinger.config import load_scenario
from tapfinger.profiles.durations import efficient_sizes, mean_slots
from tapfinger.profiles.efficient_sizes import EfficientSizes
from tapfinger.profiles.site_tables import SiteTables
from tapfinger.profiles.size_menus import Menus
from tapfinger.registry import create
from tapfinger.schedulers.greedy import Greedy
from tapfinger.workloads.sites import draw_site
from tapfinger.workloads.world import build_world


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[type, int]:
    """How many objects of each class have been made."""
    count = {EfficientSizes: 0, Menus: 0, Greedy: 0}
    for kind in count:

        def counted(self: Any, *args: Any, real: Any = kind.__init__, kind: type = kind, **options: Any) -> None:
            count[kind] += 1
            real(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", counted)
    return count


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tapfinger", {"model": "universal"}),
        ("tapfinger", {"model": "universal", "lend": True, "budget_ms": 1.0}),
        ("tapfinger", {"model": "multi-3", "lend": True}),
        ("tapfinger", {"network": "none"}),
        ("tapfinger+lookahead", {"model": "universal", "budget_ms": 1.0}),
        ("lookahead", {"budget_ms": 1.0, "lend": True}),
        ("greedy", {"lend": True}),
    ],
)
def test_one_table_per_reset_and_learn(name: str, options: dict[str, Any], made: dict[type, int]) -> None:
    context = build_world(load_scenario("multi-3")).context(0)
    scheduler = create("scheduler", name, options)
    for step in (scheduler.reset, scheduler.learn, scheduler.reset):
        before = dict(made)
        step(context)
        assert made[EfficientSizes] - before[EfficientSizes] == 1
        assert made[Menus] - before[Menus] == (options.get("model") == "universal")
    # One for overdue tasks, one in the network's place and three advisers of the network; learn makes none.
    before = dict(made)
    scheduler.reset(context)
    scheduler.learn(context)
    assert made[Greedy] - before[Greedy] <= 5


@pytest.mark.parametrize("seed", [3, 8])
def test_tables_say_what_profiles_say(seed: int) -> None:
    world = build_world(draw_site(seed))
    site = SiteTables(world.context(0))
    for t in world.task_types:
        sizes = site.sizes.of[t.name]
        assert [size.allocation for size in sizes] == [s.allocation for s in efficient_sizes(t, world.noise)]
        assert site.sizes.cheapest[t.name].cost == min(size.cost for size in sizes)
        slots = mean_slots(t.profile, world.noise)
        assert all(site.slots(t, s.allocation, 0) == slots[t.profile.index(s.allocation)] == s.slots for s in sizes)
        assert site.slots(t, t.minimum, 0) == slots[0]
    assert site.menus is site.menus
    assert site.menus.options is site.sizes
