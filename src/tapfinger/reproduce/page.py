"""The report: one HTML file that reads like a short paper and includes all pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tapfinger.evaluation.pages import render
from tapfinger.reproduce.drawings import CAPTIONS
from tapfinger.reproduce.figure_result import FigureResult
from tapfinger.reproduce.verdicts import ClaimVerdict

#: Verdict -> CSS class of its badge.
_CLASSES = {
    ClaimVerdict.HOLDS: "holds",
    ClaimVerdict.PUBLISHED_ONLY: "published",
    ClaimVerdict.DOES_NOT_HOLD: "not",
    ClaimVerdict.NOT_JUDGED: "open",
}

ABSTRACT = (
    "Every experiment of the paper is redone here with every scheduler on the same draws of arrivals, task types and "
    "noise. Differences are taken seed by seed and shown with 95 % intervals (Student's t). The verdict on each claim "
    "is computed: it holds if every interval leaves out zero and the reduction claimed lies within the interval of the "
    "measured one or below it, against rivals as they should be; it holds only against the published baseline if that "
    "is so of a rival as published and not of the corrected one (the paper's Optimus was fitted with the axes of CPU "
    "and GPU exchanged); otherwise it does not hold. Times are in slots of 10 s. TapFinger is the shipped model, "
    "deterministic; the paper's method is the paper's network and training, alone, where such a model ships, and has "
    "verdicts of its own."
)


def write_page(path: Path, made: Sequence[FigureResult], about: Mapping[str, str]) -> None:
    """Write the report. ``about``: name -> text on how it was made."""
    text = render(
        "tapfinger.reproduce",
        "report.html",
        title="TapFinger, reproduced",
        abstract=ABSTRACT,
        made=made,
        chapters=[
            ("The paper's figures", [each for each in made if each.figure.paper]),
            ("Beyond the paper", [each for each in made if not each.figure.paper]),
        ],
        tolls=list(_tolls(made)),
        classes=_CLASSES,
        captions=CAPTIONS,
        about=about,
    )
    path.write_text(text, encoding="utf-8")


def claim_counts(made: Sequence[FigureResult], of_paper: bool) -> Counter[ClaimVerdict]:
    """Number of claims by verdict, of the paper or of our own."""
    return Counter(item.verdict for each in made for item in each.judged if bool(item.claim.paper) is of_paper)


def _tolls(made: Sequence[FigureResult]) -> Iterator[tuple[str, ClaimVerdict, int]]:
    """(origin of the claims, verdict, count): one box each at the top of the page."""
    for whose, of_paper in (("of the paper", True), ("of ours", False)):
        counts = claim_counts(made, of_paper)
        yield from ((whose, verdict, counts[verdict]) for verdict in ClaimVerdict if counts[verdict])
