"""A scheduler on the hand-built development sites, against baselines with the same right: every size is kept.

python benchmarks/sites.py                                    # tapfinger on all sites
python benchmarks/sites.py --schedulers lookahead --sites 3-equal-0.6,3-unequal-0.8
python benchmarks/sites.py --show 8-unequal-0.8 > site.toml   # to look at one, or to run it alone
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from learned import run
from unseen_sites import SITES, Site, scenario_of

RIVALS = ("greedy", "optimus-static@admission=oldest", "fluid@resize=false")

#: Scheduler -> its entry in results.json.
Found = dict[str, dict[str, Any]]


def compare(site: Site, schedulers: Sequence[str], seeds: str, jobs: int) -> Found:
    """Compare all schedulers and the rivals on one site; finished cells are cached."""
    print(f"comparing {site.name}", file=sys.stderr, flush=True)
    names = list(dict.fromkeys((*schedulers, *RIVALS)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.toml"
        path.write_text(tomli_w.dumps(scenario_of(site).written()), encoding="utf-8")
        words = ["compare", str(path), "--schedulers", ",".join(names), "--seeds", seeds, "--jobs", str(jobs)]
        found: Found = run(words, "greedy")["schedulers"]
    return found


def report(
    schedulers: Sequence[str] = ("tapfinger",),
    seeds: str = "1000:1060",
    jobs: int = 2,
    sites: Sequence[Site] = SITES,
) -> list[str]:
    """The section of BENCHMARKS.md; the first scheduler is the one judged."""
    results = {site: compare(site, schedulers, seeds, jobs) for site in sites}
    names = list(dict.fromkeys((*schedulers, *RIVALS)))
    heads = [
        "site",
        "mode",
        "task types",
        *names,
        f"{names[0]} minus greedy",
        "against the best",
        *(f"p99 {n}" for n in names),
    ]
    return [
        "## Development sites",
        "",
        f"Mean completion time in slots on seeds {seeds}, every scheduler on the same draws. A site is called by its",
        "clusters, their capacities and its load (the share of the greatest sustainable throughput); the sites are in",
        "`benchmarks/unseen_sites.py`. Nothing was trained on them, but earlier rules were chosen on them,",
        "so they are no fresh sites. Fixed regime: every scheduler keeps sizes. Bold is the best of a row. Difference:",
        "paired with Greedy, seed by seed, with its 95 % interval. p99 is the mean over seeds. The best is that of",
        f"{', '.join(RIVALS)}.",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
        *(_row(site, names, found) for site, found in results.items()),
        "",
        *summary(names[0], results),
    ]


def _row(site: Site, names: Sequence[str], found: Found) -> str:
    means = [f"{found[n]['mean']:.2f}" for n in names]
    cells = [
        site.name,
        site.mode,
        site.mix,
        *(f"**{mean}**" if mean == min(means, key=float) else mean for mean in means),
        difference(found[names[0]]["difference"]),
        f"{100 * against_best(names[0], found):+.1f} %",
        *(f"{found[n]['p99']:.1f}" for n in names),
    ]
    return "| " + " | ".join(cells) + " |"


def difference(found: dict[str, Any], digits: int = 2) -> str:
    """The difference of a mean, with its interval."""
    low_high = [f"{edge:+.{digits}f}" for edge in found["ci95"] or ()]  # one seed has none
    return f"{found['mean']:+.{digits}f}" + (f" ({' to '.join(low_high)})" if low_high else "")


def against_best(name: str, found: Found) -> float:
    """Mean completion time relative to the best rival's: -0.1 is a tenth shorter."""
    return float(found[name]["mean"] / min(found[rival]["mean"] for rival in RIVALS if rival != name) - 1.0)


def summary(name: str, results: Mapping[Any, Found]) -> list[str]:
    """On how many sites the scheduler does what a universal policy should do."""
    relative = {site: against_best(name, found) for site, found in results.items()}
    worst = max(relative, key=relative.__getitem__)
    tail = [site for site, found in results.items() if found[name]["p99"] <= found["greedy"]["p99"]]
    best = sum(share < 0.0 for share in relative.values())
    mean = sum(relative.values()) / len(relative)
    return [
        f"- {name} has a shorter mean than each of {', '.join(RIVALS)} on {best} of {len(results)} sites.",
        f"- Against the best of them on each site it is {100 * mean:+.1f} % on average; at worst "
        f"{100 * relative[worst]:+.1f} %, on {getattr(worst, 'name', worst)}.",
        f"- Its p99 is no worse than Greedy's on {len(tail)} of {len(results)} sites.",
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedulers", default="tapfinger", help="separated by commas; the first is judged")
    parser.add_argument("--seeds", default="1000:1060", help="FIRST:END")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--sites", help="names, separated by commas; all if left out")
    parser.add_argument("--show", metavar="SITE", help="print a site's TOML and do nothing else")
    arguments = parser.parse_args()
    known = {site.name: site for site in SITES}
    wanted = (arguments.show or arguments.sites or ",".join(known)).split(",")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"there is no site {unknown[0]!r}; sites are {', '.join(known)}")
    arguments.sites = [known[name] for name in wanted]
    return arguments


if __name__ == "__main__":
    given = _arguments()
    if given.show:
        print(tomli_w.dumps(scenario_of(given.sites[0]).written()), end="")
    else:
        print("\n".join(report(given.schedulers.split(","), given.seeds, given.jobs, given.sites)))
