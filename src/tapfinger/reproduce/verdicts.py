"""Verdicts on claims, computed from paired differences with 95 % intervals; none is written by hand.

A claim *holds* if it is true for the rivals as they should be: every interval excludes zero, and the reduction
claimed lies within the interval of the measured one, or below it. It *holds only against the published baseline*
if it is true for the rivals as published but not for the corrected ones. Otherwise it *does not hold*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tapfinger.evaluation.stats import Difference, Estimate
from tapfinger.reproduce.declare import OURS, PAPER_METHOD, Bound, Claim, Flat, Less, Unjudged
from tapfinger.reproduce.figure_data import FigureData


class ClaimVerdict(Enum):
    """The verdict on a claim."""

    HOLDS = "holds"
    PUBLISHED_ONLY = "holds only against the published baseline"
    DOES_NOT_HOLD = "does not hold"
    #: A single seed gives no interval, nothing was measured, or a model does not ship.
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: ClaimVerdict
    #: Our numbers, in words.
    ours: str
    #: Reason why a claim does not hold; empty if it does.
    why: str = ""
    #: Note if outside the range we expected; empty if within it or if no range was given.
    surprise: str = ""
    #: The same claim about the paper's own method; None if that is not in the figure or the claim is not about ours.
    by_paper_method: Judged | None = None

    @property
    def paper(self) -> str:
        """The paper's numbers; a dash for claims that are not the paper's."""
        return self.claim.paper or "-"


@dataclass(frozen=True)
class _Gap:
    """One comparison of a claim."""

    setting: str
    other: str
    difference: Difference

    @property
    def reduction(self) -> float:
        """Reduction in percent of the other."""
        return -self.difference.percent

    @property
    def largest_reduction(self) -> float:
        """Upper end of the reduction's interval, in percent of the other."""
        found, mean = self.difference.mean, self.difference.mean.mean
        return self.reduction * (mean - (found.half_width or 0.0)) / mean if mean else self.reduction

    @property
    def known(self) -> bool:
        return self.difference.mean.half_width is not None

    @property
    def clear(self) -> bool:
        """Whether the interval lies below zero."""
        interval = self.difference.mean.interval
        return interval is not None and interval[1] < 0.0

    def text(self, several: bool, scale: float, unit: str) -> str:
        low, high = (scale * end for end in self.difference.mean.interval or (math.nan, math.nan))
        where = f" ({self.setting})" if several else ""
        interval = f" (95 %: {low:+.2f} to {high:+.2f})" if self.known else ""
        mean = scale * self.difference.mean.mean
        return f"{_change(-self.reduction)} against {self.other}{where}: {mean:+.2f}{interval}{unit}"


def _change(percent: float) -> str:
    return f"{percent:+.1f} %" if math.isfinite(percent) else "no change"


#: Measure -> its unit, and the factor that converts values to it.
_UNITS = {"in_system_max": (" tasks", 1.0), "variance": (" slots²", 1.0)}


def unit_of(measure: str) -> tuple[str, float]:
    """Unit and factor in which a measure is written."""
    if measure in _UNITS:
        return _UNITS[measure]
    if measure.startswith("utilisation") or measure.endswith("_share"):
        return " percentage points", 100.0
    return (" ms" if measure.startswith("decision_ms") else " slots"), 1.0


def judge(claim: Claim, measured: FigureData) -> Judged:
    """The verdict on one claim."""
    if isinstance(claim, Unjudged):
        return Judged(claim, ClaimVerdict.NOT_JUDGED, claim.why)
    if measured.missing:
        return Judged(claim, ClaimVerdict.NOT_JUDGED, measured.missing)
    named = () if isinstance(claim, Bound) else (claim.one, *(claim.others if isinstance(claim, Less) else ()))
    if left_out := [label for label in named if label in measured.absent]:
        return Judged(claim, ClaimVerdict.NOT_JUDGED, measured.absent[left_out[0]])
    if isinstance(claim, Less):
        return _judge_less(claim, measured)
    if isinstance(claim, Flat):
        return _judge_flat(claim, measured)
    return _judge_bound(claim, measured)


def judge_all(measured: FigureData) -> list[Judged]:
    """All claims of a figure; claims of the paper also as claims about the paper's own method, where it takes part."""
    return [
        replace(judge(claim, measured), by_paper_method=_of_method(claim, measured)) for claim in measured.figure.claims
    ]


def _of_method(claim: Claim, measured: FigureData) -> Judged | None:
    """A claim of the paper about TapFinger, judged for the paper's own method."""
    if not isinstance(claim, Less) or claim.one != OURS or not claim.paper or claim.against:
        return None
    if measured.figure.compares_networks and not claim.published:
        return None  # the rival is a part less of our own network, not of the paper's
    if not any(PAPER_METHOD in runs.records for runs in measured.runs.values()):
        return None
    return judge(replace(claim, one=PAPER_METHOD, expected=None), measured)


def _gaps(claim: Less, others: Iterable[str], measured: FigureData) -> list[_Gap]:
    return [
        _Gap(key, other, measured.difference((key, claim.one), (claim.against or key, other), claim.measure))
        for key in claim.settings or measured.runs
        for other in others
    ]


def _true(claim: Less, gaps: list[_Gap]) -> bool:
    reached = claim.percent is None or all(gap.largest_reduction >= claim.percent for gap in gaps)
    return bool(gaps) and reached and all(gap.clear for gap in gaps)


def _judge_less(claim: Less, measured: FigureData) -> Judged:
    gaps = _gaps(claim, claim.others, measured)
    published = _gaps(claim, claim.published, measured)
    if not all(gap.known for gap in gaps):
        verdict = ClaimVerdict.NOT_JUDGED
    elif _true(claim, gaps):
        verdict = ClaimVerdict.HOLDS
    elif _true(claim, published):
        verdict = ClaimVerdict.PUBLISHED_ONLY
    else:
        verdict = ClaimVerdict.DOES_NOT_HOLD
    unit, scale = unit_of(claim.measure)
    several = len({gap.setting for gap in gaps}) > 1
    # Of several comparisons, the least favourable is shown: it decides the claim.
    shown = [_least_favourable(part).text(several, scale, unit) for part in (gaps, published) if part]
    if len(gaps) > 1:
        shown[0] = f"at worst {shown[0]}; clear in {sum(gap.clear for gap in gaps)} of {len(gaps)} comparisons"
    return Judged(claim, verdict, "; ".join(shown), _why(claim, gaps), _surprise(claim, gaps))


def _why(claim: Less, gaps: list[_Gap]) -> str:
    """What is wrong with the claim: the direction, the evidence, or only the size."""
    if _true(claim, gaps):
        return ""
    if any(not gap.known for gap in gaps):
        return "one seed gives no interval"
    if any(gap.difference.mean.interval[0] > 0.0 for gap in gaps if gap.difference.mean.interval):
        return "it is the other way round"
    if not all(gap.clear for gap in gaps):
        return "an interval touches zero: too small a difference for so few seeds, or none"
    return "the difference is clear, but smaller than claimed"


def _least_favourable(gaps: list[_Gap]) -> _Gap:
    """The comparison with the smallest reduction; one without a clear interval comes first."""
    return min(gaps, key=lambda gap: (gap.clear, gap.reduction))


def _surprise(claim: Less, gaps: list[_Gap]) -> str:
    if claim.expected is None:
        return ""
    low, high = claim.expected
    least = min(gap.reduction for gap in gaps)
    return "" if low <= least <= high else f"outside the expected {low:g} to {high:g} %"


def _judge_flat(claim: Flat, measured: FigureData) -> Judged:
    keys = claim.settings or tuple(measured.runs)
    means = {key: measured.runs[key].summaries[claim.one].estimate(claim.measure) for key in keys}
    if claim.growth:
        low, high = keys[0], keys[-1]
    else:
        low, high = (end(means, key=lambda key: means[key].mean) for end in (min, max))
    spread = 100.0 * (means[high].mean / means[low].mean - 1.0)
    verdict = ClaimVerdict.HOLDS if spread <= claim.percent else ClaimVerdict.DOES_NOT_HOLD
    unit = unit_of(claim.measure)[0]
    change = _change(spread) if claim.growth else f"{spread:.1f} %"
    ours = f"{means[low].text()} ({low}) to {means[high].text()} ({high}){unit}: {change}"
    return Judged(claim, verdict, ours, "" if verdict is ClaimVerdict.HOLDS else f"more than {claim.percent:g} %")


def _judge_bound(claim: Bound, measured: FigureData) -> Judged:
    cases = {
        name.removeprefix(f"{claim.value} at "): value
        for name, value in measured.values.items()
        if name == claim.value or name.startswith(f"{claim.value} at ")
    }
    if not cases:
        return Judged(claim, ClaimVerdict.NOT_JUDGED, claim.otherwise)
    worst = max(cases, key=lambda case: _excess(claim, cases[case]))
    held = sum(_excess(claim, value) <= 0.0 for value in cases.values())
    ours = _value(claim, cases[worst])
    if len(cases) > 1:
        ours = f"at worst {ours} ({worst}); within the bound in {held} of {len(cases)} cases"
    if held == len(cases):
        return Judged(claim, ClaimVerdict.HOLDS, ours)
    within = claim.at_least <= cases[worst].mean <= claim.at_most
    why = "the mean is within the bound, its interval is not" if within else "beyond the bound"
    return Judged(claim, ClaimVerdict.DOES_NOT_HOLD, ours, why)


def _excess(claim: Bound, found: Estimate) -> float:
    """How far the worse end of an interval lies beyond the bounds; zero or less if it is within them."""
    low, high = found.interval or (found.mean, found.mean)
    return max(high - claim.at_most, claim.at_least - low)


def _value(claim: Bound, found: Estimate) -> str:
    digits = 0 if abs(found.mean) >= 100 else 2
    return f"{found.text(digits)} {claim.unit}".strip()
