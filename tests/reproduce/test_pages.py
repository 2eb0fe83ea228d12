"""Pages that repeat numbers of the reproduction have them as they were measured last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tapfinger.reproduce.catalog import FIGURES
from tapfinger.reproduce.verdicts import ClaimVerdict

DOCS = Path(__file__).parents[2] / "docs"
SUMMARY = (DOCS / "reproduction.md").read_text(encoding="utf-8")
#: Figure -> its section of the summary.
SECTIONS = {
    found[1]: part
    for part in SUMMARY.split("\n## ")
    if (found := re.search(r"^`tapfinger reproduce ([\w-]+)`", part, re.M))
}

#: Rows of docs/deviations.md that say in their last cell which figures their numbers are from.
ROWS = [
    line
    for line in (DOCS / "deviations.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and set(re.findall(r"`([\w-]+)`", line.rstrip("| ").rpartition("|")[2])) & set(FIGURES)
]


def test_the_summary_has_every_figure():
    assert set(SECTIONS) == set(FIGURES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_deviations_have_the_numbers_of_their_figures(row):
    effect = row.rstrip("| ").rpartition("|")[2]
    measured = " ".join(SECTIONS[name] for name in re.findall(r"`([\w-]+)`", effect) if name in SECTIONS)
    # Of the published implementation, or of the paper: not measured here.
    ours = re.sub(r"\(reference:[^)]*\)|[\d.]+ \(reference\)|the paper's [\d. and]*", "", effect)
    numbers = re.findall(r"(?<![\d.])\d+\.\d\d?(?![\d.])", ours)
    assert [number for number in numbers if number not in measured] == []


def test_the_readme_counts_claims_as_the_summary_does():
    row = re.search(r"\| the paper's \|(.*)\|", SUMMARY)
    assert row is not None
    counts = dict(zip(ClaimVerdict, (int(cell) for cell in row[1].split("|")), strict=True))
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    said = (
        f"{len(FIGURES)} figures with computed verdicts. Of the paper's {sum(counts.values())} claims "
        f"{counts[ClaimVerdict.HOLDS]} hold, "
        f"{counts[ClaimVerdict.PUBLISHED_ONLY]} hold only against the published baseline, "
        f"{counts[ClaimVerdict.DOES_NOT_HOLD]} do not hold"
    )
    assert said in readme
