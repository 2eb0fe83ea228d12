"""The learned scheduler on freshly drawn sites, against its control and every rival with the same right to resize.

python benchmarks/fresh_sites.py --sites 910000:910040                   # fixed: a size is kept until the end
python benchmarks/fresh_sites.py --sites 910000:910040 --regime elastic  # tasks may be resized
python benchmarks/fresh_sites.py --sites 300000:300040 --purpose choosing
python benchmarks/fresh_sites.py --sites 910000:910040 --lookahead       # and lookahead at 20 ms, a class of its own
python benchmarks/fresh_sites.py --sites 910000:910040 --write           # puts the section into BENCHMARKS.md

A site that was looked at is no longer fresh: sites of reports are played once per model, and nothing is chosen by them.
Finished runs are kept, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from site_runs import SiteRuns, play_sites

from tapfinger.errors import ConfigError, TapfingerError
from tapfinger.evaluation.ratios import Ratio, best_single, ratio
from tapfinger.evaluation.specs import parse_seeds, parse_spec, parse_specs
from tapfinger.registry import names
from tapfinger.workloads.site_seeds import PURPOSES, REPORTING

#: Regime -> what it allows.
REGIMES = {
    "fixed": "a task keeps the size it was started with until its end",
    "elastic": "running tasks may be resized and paused, at the site's switching cost",
}
OURS = {"fixed": "tapfinger@lend=false", "elastic": "tapfinger@lend=true"}
#: Greedy in the network's place.
CONTROLS = {regime: f"{ours}@network=none" for regime, ours in OURS.items()}
LOOKAHEADS = {"fixed": "lookahead@budget_ms=20", "elastic": "lookahead@lend=true@budget_ms=20"}
RIVALS = {
    "fixed": (
        "greedy",
        "greedy@calm=0@patience=5",
        "shortest-first",
        "optimus-static@admission=oldest",
        "fifo",
        "tiresias-nonpreemptive",
        "fluid@resize=false",
    ),
    "elastic": (
        "greedy@lend=true",
        "greedy@lend=true@calm=0@patience=5",
        "shortest-first",
        "optimus",
        "optimus-central",
        "tiresias",
        "tiresias-elastic",
        "fluid",
    ),
}
SITES, SEEDS = "910000:910040", "0:4"


@dataclass(frozen=True)
class Question:
    """What is compared; the defaults are those of a report."""

    regime: str = "fixed"
    sites: str = SITES
    purpose: str = REPORTING.purpose
    seeds: str = SEEDS
    distribution: str = "wide"
    ours: str = ""
    control: str = ""
    rivals: tuple[str, ...] = ()
    lookahead: str = ""
    jobs: int = 1

    @property
    def command(self) -> str:
        """The command that answers it."""
        words = ["python benchmarks/fresh_sites.py", f"--sites {self.sites}", f"--regime {self.regime}"]
        given = {"purpose": self.purpose, "seeds": self.seeds, "distribution": self.distribution}
        usual = {"purpose": REPORTING.purpose, "seeds": SEEDS, "distribution": "wide"}
        words += [f"--{name} {value}" for name, value in given.items() if value != usual[name]]
        words += [f"--{name} {value}" for name, value in (("ours", self.ours), ("control", self.control)) if value]
        words += [f"--rivals {','.join(self.rivals)}"] if self.rivals else []
        words += ["--lookahead" if self.lookahead == LOOKAHEADS[self.regime] else f"--lookahead {self.lookahead}"] * (
            self.lookahead != ""
        )
        return " ".join(words)


@dataclass(frozen=True)
class Entry:
    """One scheduler of the table."""

    scheduler: str
    #: ``ours``, ``control``, ``rival`` or ``lookahead``.
    kind: str
    #: Ours as a multiple of it, over the sites on which both ended every run; None for ours.
    mean: Ratio | None
    p99: Ratio | None
    decision_ms: float
    #: Resizes per task.
    resizes: float
    #: Sites on which a run failed.
    failed: int


@dataclass(frozen=True)
class Answer:
    """The results over all sites."""

    ours: str
    sites: Sequence[SiteRuns]
    entries: list[Entry]
    #: The rival with the least geometric mean of the mean, and of p99, among those without a failure.
    best: str
    best_p99: str
    #: Ours as a multiple of the best rival of each site.
    best_per_site: Ratio
    notes: list[str] = field(default_factory=list)


def ask(question: Question) -> Answer:
    """Play all runs and compare."""
    sites, notes = parse_seeds(question.sites), []
    PURPOSES[question.purpose].check(sites)
    ours = question.ours or OURS[question.regime]
    control = question.control or CONTROLS[question.regime]
    try:
        parse_spec(control).create()
    except ConfigError as error:
        if question.control:
            raise
        notes.append(f"There is no control: {error}")
        control = ""
    usual = [name for name in RIVALS[question.regime] if parse_spec(name).name in names("scheduler")]
    kinds = {ours: "ours"}
    for kind, listed in (
        ("control", [control]),
        ("rival", question.rivals or usual),
        ("lookahead", [question.lookahead]),
    ):
        for name in filter(None, listed):
            kinds.setdefault(name, kind)
    found = play_sites(sites, list(kinds), parse_seeds(question.seeds), question.jobs, question.distribution)
    if question.regime == "fixed":
        refuse_resizing(found)
    return compare(kinds, found, notes)


def refuse_resizing(found: Sequence[SiteRuns]) -> None:
    """In the fixed regime nobody may change the size of a running task: the others do not."""
    for site in found:
        for name, runs in site.runs.items():
            count = sum(run.resizes for run in runs)
            if count:
                raise ConfigError(
                    f"{name} has resized running tasks {count} times on site {site.seed}, and in the fixed regime a "
                    "size is kept until the end; compare it with --regime elastic, or give it an option by which it "
                    "keeps sizes (lend=false, resize=false, preemptive=false)"
                )


def compare(kinds: dict[str, str], found: Sequence[SiteRuns], notes: list[str]) -> Answer:
    """The table's entries; sites on which a run failed count for neither of two schedulers."""
    ours = next(name for name, kind in kinds.items() if kind == "ours")
    entries = []
    for name, kind in kinds.items():
        ended = [site for site in found if not site.failed(name)]
        both = [site for site in ended if not site.failed(ours)]
        if not both:
            failure = next(site.failed(name) or site.failed(ours) for site in found)
            raise TapfingerError(f"{name}: no site has all its runs, the first fault is: {failure}")
        failed = len(found) - len(ended)
        mean = None if name == ours else ratio([s.mean(ours) for s in both], [s.mean(name) for s in both])
        p99 = None if name == ours else ratio([s.p99(ours) for s in both], [s.p99(name) for s in both])
        decision = sum(site.decision_ms(name) for site in ended) / len(ended)
        resizes = sum(site.resizes(name) for site in ended) / len(ended)
        entries.append(Entry(name, kind, mean, p99, decision, resizes, failed))
    rivals = [entry.scheduler for entry in entries if entry.kind == "rival" and not entry.failed]
    if not rivals:
        raise TapfingerError("every rival has failed on some site; give others with --rivals")
    whole = [site for site in found if not site.failed(ours)]
    means = {name: [site.mean(name) for site in whole] for name in rivals}
    tails = {name: [site.p99(name) for site in whole] for name in rivals}
    least = [min(column) for column in zip(*means.values(), strict=True)]
    notes = [
        *notes,
        *(
            f"{e.scheduler} failed on {e.failed} of {len(found)} sites, which do not count."
            for e in entries
            if e.failed
        ),
    ]
    return Answer(
        ours,
        found,
        entries,
        best_single(means),
        best_single(tails),
        ratio([site.mean(ours) for site in whole], least),
        notes,
    )


# ------------------------------------------------------------------------ the page


def section(question: Question, answer: Answer) -> list[str]:
    """The section of BENCHMARKS.md."""
    count = len(answer.sites)
    by_name = {entry.scheduler: entry for entry in answer.entries}
    best, tail = by_name[answer.best].mean, by_name[answer.best_p99].p99
    return [
        f"### Fresh sites, {question.regime} regime",
        "",
        f"`{question.command}`",
        "",
        f"{question.regime.capitalize()}: {REGIMES[question.regime]}; so for every scheduler of the table.",
        f"{count} sites of the distribution `{question.distribution}` from seeds for {question.purpose} "
        f"({question.sites});",
        f"workload seeds {question.seeds} on each, the same draws for all. Shares are those of {answer.ours}: its",
        "time over the other's, the geometric mean over sites with a 95 % bootstrap interval over sites; below 1 it is",
        "shorter. p99 is that of all tasks of a site. Times of decisions are means per slot that began with a task",
        "waiting; they depend on the machine.",
        "",
        "| scheduler | | share of its mean | sites with a shorter mean | worst site | share of its p99 | sites with "
        "a p99 no longer | resizes per task | decision |",
        "|---" * 9 + "|",
        *(_row(entry, answer) for entry in answer.entries),
        "",
        f"- Best single rival: {answer.best}. Share {_text(best)}; shorter on {_percent(best)} of sites, at worst "
        f"{_worst(best, answer)}.",
        f"- Best rival of each site, another one on each: {answer.best_per_site.text()}; shorter than all on "
        f"{_percent(answer.best_per_site)} of sites, at worst {_worst(answer.best_per_site, answer)}.",
        f"- p99 of the best single rival in p99, {answer.best_p99}: {_text(tail)}; no longer on "
        f"{100 * (tail.no_worse if tail else math.nan):.0f} % of sites.",
        *(f"- {entry.scheduler}, {entry.kind}: {_text(entry.mean)}." for entry in answer.entries if _apart(entry)),
        *(f"- {note}" for note in answer.notes),
        "",
        *_sites_table(answer),
    ]


def _apart(entry: Entry) -> bool:
    return entry.kind in ("control", "lookahead")


def _text(found: Ratio | None) -> str:
    return "" if found is None else found.text()


def _percent(found: Ratio | None) -> str:
    return "" if found is None else f"{100 * found.better:.0f} %"


def _worst(found: Ratio | None, answer: Answer) -> str:
    if found is None:
        return ""
    whole = [site for site in answer.sites if not site.failed(answer.ours)]
    return f"{found.worst:.2f} on {whole[found.worst_at].seed}"


def _row(entry: Entry, answer: Answer) -> str:
    label = entry.kind
    if entry.kind == "rival" and entry.scheduler == answer.best:
        label = "best rival"
    no_worse = "" if entry.p99 is None else f"{100 * entry.p99.no_worse:.0f} %"
    cells = [entry.scheduler, label, _text(entry.mean), _percent(entry.mean)]
    cells += ["" if entry.mean is None else f"{entry.mean.worst:.2f}", _text(entry.p99), no_worse]
    cells += [f"{entry.resizes:.2f}" if entry.resizes else "keeps sizes", f"{entry.decision_ms:.2f} ms"]
    return "| " + " | ".join(cells) + " |"


def _sites_table(answer: Answer) -> list[str]:
    """Mean and p99 of every scheduler on every site."""
    listed = [entry.scheduler for entry in answer.entries]
    lines = ["<details><summary>Every site: mean and p99 in slots</summary>", ""]
    lines += ["| site | clusters | resources | mode | tasks | " + " | ".join(listed) + " |"]
    lines += ["|---" * (5 + len(listed)) + "|"]
    for site in answer.sites:
        means = {name: site.mean(name) for name in listed if not site.failed(name)}
        least = min(means.values(), default=math.nan)
        cells = [str(site.seed), str(site.clusters), ", ".join(site.scenario.resources)]
        cells += [site.scenario.mode, str(site.scenario.tasks)]
        for name in listed:
            shown = f"{means[name]:.2f}" if name in means else "failed"
            shown = f"**{shown}**" if means.get(name) == least else shown
            cells.append(f"{shown} / {site.p99(name):.1f}" if name in means else shown)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", "</details>"]


def report(regime: str) -> list[str]:
    """The section as ``benchmarks/run.py`` asks for it."""
    question = Question(regime)
    return section(question, ask(question))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default=SITES, help="seeds of sites, FIRST:END")
    parser.add_argument("--purpose", choices=PURPOSES, default=REPORTING.purpose, help="what the sites are for")
    parser.add_argument("--regime", choices=REGIMES, default="fixed", help="whether running tasks may be resized")
    parser.add_argument("--seeds", default=SEEDS, help="seeds of the workloads of each site, FIRST:END")
    parser.add_argument("--distribution", default="wide", help="distribution of sites: wide or pools")
    parser.add_argument("--ours", default="", help=f"the scheduler that is judged: {OURS}")
    parser.add_argument("--control", default="", help="the same with Greedy in the network's place")
    parser.add_argument("--rivals", default="", help="separated by commas; the usual ones of the regime if left out")
    parser.add_argument("--lookahead", nargs="?", const="usual", default="", help="also this one, 20 ms if not named")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help="put the section into BENCHMARKS.md")
    return parser.parse_args()


def main() -> None:
    """Answer the question of the command line."""
    given = _arguments()
    try:
        rivals = tuple(spec.text for spec in parse_specs(given.rivals)) if given.rivals else ()
        lookahead = LOOKAHEADS[given.regime] if given.lookahead == "usual" else given.lookahead
        question = Question(
            given.regime,
            given.sites,
            given.purpose,
            given.seeds,
            given.distribution,
            given.ours,
            given.control,
            rivals,
            lookahead,
            given.jobs,
        )
        lines = section(question, ask(question))
    except TapfingerError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: finished runs are kept, give the same command again to go on")
    print("\n".join(lines))
    if given.write:
        from page import put

        put(f"fresh_sites_{given.regime}", lines)


if __name__ == "__main__":
    main()
