"""Run benchmarks and write their results into BENCHMARKS.md: ``make bench``. Finished comparisons are cached.

python benchmarks/run.py                       # every section that the page has a place for
python benchmarks/run.py sites universal_time  # print these sections, and leave the page as it is
python benchmarks/run.py --write sites         # put them on the page as well
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import aware
import bad_task
import decision_time
import floods
import fresh_sites
import inference
import learned
import live_age
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
import universal
import wrong_profiles
from page import places, put

import tapfinger


def header() -> list[str]:
    """What was measured, and on which machine."""
    return [
        f"`make bench`: version {tapfinger.__version__}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}. Speeds are the best of several runs",
        "on a shared machine and vary by a third; completion times do not vary: same seed, same event log.",
    ]


SECTIONS: dict[str, Callable[[], list[str]]] = {
    "header": header,
    "speed": speed.report,
    "quality": lambda: quality.report(quality.run_all()),
    "learned": learned.report,
    "variants": learned.report_variants,
    "decision_time": decision_time.report,
    "universal_time": decision_time.report_universal,
    "large_time": decision_time.report_large,
    "training_speed": training_speed.report,
    "universal": universal.report,
    "fresh_sites_fixed": lambda: fresh_sites.report("fixed"),
    "fresh_sites_elastic": lambda: fresh_sites.report("elastic"),
    "sites": sites.report,
    "aware": aware.report,
    "wrong_profiles": wrong_profiles.report,
    "live_store": live_store.report,
    "live_age": live_age.report,
    "live_agents": live_agents.report,
    "bad_task": bad_task.report,
    "floods": floods.report,
    "inference": inference.report,
    "profile_surface": profile_surface.report,
    "profile_overhead": profile_overhead.report,
    "online_learning": online_learning.report,
    "testbed": testbed.report,
    "testbed_loop": testbed_loop.report,
}


def main() -> None:
    """Run the requested sections one after another; an interrupted run keeps the finished ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--write", action="store_true", help="put them on the page; always so without names")
    given = parser.parse_args()
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; sections are {', '.join(SECTIONS)}")
    homeless = [name for name in given.sections if given.write and name not in places()]
    if homeless:
        parser.error(f"BENCHMARKS.md has no place for {homeless[0]!r}; it has places for {', '.join(places())}")
    for name in given.sections or places():
        lines = SECTIONS[name]()
        if given.sections:
            print("\n".join(lines))
        if given.write or not given.sections:
            put(name, lines)


if __name__ == "__main__":
    main()
