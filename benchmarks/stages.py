"""What each stage of the learned scheduler's pipeline earns: every stage is dropped in turn, on drawn sites.

python benchmarks/stages.py                                  # all stages that the scheduler names
python benchmarks/stages.py --sites 301000:301040 --stages seniority,overdue
python benchmarks/stages.py --base "tapfinger@network=none"  # around Greedy instead of the network

A stage is worth keeping if without it the mean is at least 1 % or p99 at least 3 % longer, clear of zero. Sites are
those for choosing (docs/universal.md): what is dropped here must not be dropped by sites of a report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from fresh_sites import OURS, REGIMES, refuse_resizing
from site_runs import SiteRuns, play_sites

from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.evaluation.ratios import Ratio, ratio
from tapfinger.evaluation.specs import parse_seeds, parse_spec
from tapfinger.registry import lookup
from tapfinger.workloads.site_seeds import CHOOSING

#: Share by which the mean, or p99, must be longer without a stage for it to stay.
WORTH_OF_MEAN, WORTH_OF_P99 = 0.01, 0.03
SITES, SEEDS = "301000:301040", "0:4"


@dataclass(frozen=True)
class Worth:
    """What a stage earns: times without it as multiples of those with it; above 1 it helps."""

    stage: str
    mean: Ratio
    p99: Ratio

    @property
    def verdict(self) -> str:
        """Whether it stays."""
        if _earns(self.mean, WORTH_OF_MEAN):
            return "stays: mean"
        if _earns(self.p99, WORTH_OF_P99):
            return "stays: p99"
        return "harms: goes" if self.mean.high < 1.0 else "goes"


def _earns(found: Ratio, least: float) -> bool:
    return found.mean >= 1.0 + least and found.low > 1.0


def stages_of(base: str) -> list[str]:
    """Names of the stages: ``STAGES`` of the scheduler's class or module, a table by name."""
    factory = lookup("scheduler", parse_spec(base).name)
    stages = getattr(factory, "STAGES", None) or getattr(import_module(factory.__module__), "STAGES", None)
    if not stages:
        raise ConfigError(
            f"{base} names no stages: it has no table STAGES. Name them with --stages, such as --stages waiting"
        )
    return [str(stage) for stage in stages]


def judge(base: str, stages: Sequence[str], sites: Sequence[SiteRuns]) -> list[Worth]:
    """The worth of every stage, the most valuable first; left out are stages without which no run ends."""
    found = []
    for stage in stages:
        without = dropping(base, stage)
        whole = [site for site in sites if not site.failed(without) and not site.failed(base)]
        if not whole:
            continue
        means = ratio([site.mean(without) for site in whole], [site.mean(base) for site in whole])
        tails = ratio([site.p99(without) for site in whole], [site.p99(base) for site in whole])
        found.append(Worth(stage, means, tails))
    return sorted(found, key=lambda worth: -worth.mean.mean)


def dropping(base: str, stage: str) -> str:
    """The scheduler without a stage."""
    return f"{base}@without={stage}"


def table(base: str, worths: Sequence[Worth], sites: str, seeds: str) -> list[str]:
    """The table as Markdown."""
    return [
        f"Stages of `{base}` on sites {sites}, workload seeds {seeds}. Without the stage, the time is this many per "
        "cent longer: geometric mean over sites with a 95 % bootstrap interval. A stage stays from "
        f"{100 * WORTH_OF_MEAN:.0f} % of the mean or {100 * WORTH_OF_P99:.0f} % of p99 on, clear of zero.",
        "",
        "| stage | mean | p99 | sites on which it shortens the mean | verdict |",
        "|---|---|---|---|---|",
        *(
            f"| {w.stage} | {_percent(w.mean)} | {_percent(w.p99)} | {100 * (1.0 - w.mean.no_worse):.0f} % | "
            f"{w.verdict} |"
            for w in worths
        ),
    ]


def _percent(found: Ratio) -> str:
    mean, low, high = (100 * (value - 1.0) for value in (found.mean, found.low, found.high))
    return f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Play all runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", help="the scheduler whose stages are dropped")
    parser.add_argument("--stages", default="", help="separated by commas; all that the scheduler names if left out")
    parser.add_argument("--sites", default=SITES, help="seeds of sites for choosing, FIRST:END")
    parser.add_argument("--regime", choices=REGIMES, default="fixed", help="whether running tasks may be resized")
    parser.add_argument("--seeds", default=SEEDS, help="seeds of the workloads of each site, FIRST:END")
    parser.add_argument("--distribution", default="wide", help="distribution of sites: wide or pools")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    base = given.base or OURS[given.regime]
    try:
        sites = parse_seeds(given.sites)
        CHOOSING.check(sites)
        stages = given.stages.split(",") if given.stages else stages_of(base)
        names = [base, *(dropping(base, stage) for stage in stages)]
        found = play_sites(sites, names, parse_seeds(given.seeds), given.jobs, given.distribution)
        if given.regime == "fixed":
            refuse_resizing(found)
        worths = judge(base, stages, found)
        lines = table(base, worths, given.sites, given.seeds)
        judged = {worth.stage for worth in worths}
        for stage in (stage for stage in stages if stage not in judged):
            why = next(filter(None, (site.failed(dropping(base, stage)) for site in found)), "")
            lines.append(f"\n{stage} cannot be dropped: {why}")
    except TapfingerError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: finished runs are kept, give the same command again to go on")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
