"""Run all benchmarks and rewrite BENCHMARKS.md: ``make bench``. Finished comparisons are cached."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import decision_time
import learned
import live_agents
import live_store
import online_learning
import profile_overhead
import profile_surface
import quality
import sites
import speed
import testbed
import testbed_loop
import training_speed
import wrong_profiles

import tapfinger

HEADER = """# Benchmarks

Rewritten by `make bench`. Version {version}, Python {python}, {machine}. Speeds are the best of several runs
on a shared machine and vary by a third; completion times do not vary: same seed, same event log.
"""


def main() -> None:
    """All sections, in the order a reader wants them; with names of sections, only prints those."""
    sections: dict[str, Callable[[], list[str]]] = {
        "speed": speed.report,
        "decision_time": decision_time.report,
        "universal_time": decision_time.report_universal,
        "training_speed": training_speed.report,
        "quality": lambda: quality.report(quality.run_all()),
        "learned": learned.report,
        "variants": learned.report_variants,
        "sites": sites.report,
        "wrong_profiles": wrong_profiles.report,
        "live_store": live_store.report,
        "live_agents": live_agents.report,
        "profile_surface": profile_surface.report,
        "profile_overhead": profile_overhead.report,
        "online_learning": online_learning.report,
        "testbed": testbed.report,
        "testbed_loop": testbed_loop.report,
    }
    for name in sys.argv[1:]:
        print("\n".join(sections[name]()))
    if sys.argv[1:]:
        return
    header = HEADER.format(
        version=tapfinger.__version__,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
    )
    written = ["\n".join(make()) + "\n" for make in sections.values()]
    Path(__file__).parent.parent.joinpath("BENCHMARKS.md").write_text("\n".join([header, *written]), encoding="utf-8")


if __name__ == "__main__":
    main()
