"""Run all benchmarks and rewrite BENCHMARKS.md: ``make bench``. Finished comparisons are cached."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import quality
import speed

import tapfinger

HEADER = """# Benchmarks

Rewritten by `make bench`. Version {version}, Python {python}, {machine}. Speeds are the best of several runs
on a shared machine and vary by a third; completion times do not vary: same seed, same event log.
"""


def main() -> None:
    """All sections, in the order a reader wants them; ``quality`` or ``speed`` alone prints that section."""
    wanted = sys.argv[1:]
    if wanted == ["speed"]:
        print("\n".join(speed.report()))
        return
    if wanted == ["quality"]:
        print("\n".join(quality.report(quality.run_all())))
        return
    header = HEADER.format(
        version=tapfinger.__version__,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
    )
    sections = ["\n".join(speed.report()), "\n".join(quality.report(quality.run_all()))]
    Path(__file__).parent.parent.joinpath("BENCHMARKS.md").write_text(
        "\n".join([header, *sections]) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
