"""Two sentences on what a figure shows, composed from its numbers."""

from __future__ import annotations

from collections import Counter

from tapfinger.reproduce.declare import OURS
from tapfinger.reproduce.figure_data import FigureData
from tapfinger.reproduce.verdicts import ClaimVerdict, Judged, unit_of

#: Measure -> what the best scheduler has; for other measures, "the smallest" and the measure's name.
_FIRST = {
    "mean": "the shortest mean completion time",
    "p99": "the shortest 99th percentile of completion times",
    "utilisation.gpu": "the smallest share of GPUs in use",
}


def sentences(measured: FigureData, judged: list[Judged]) -> list[str]:
    """What the figure shows, then what that means for the claims."""
    if measured.missing:
        return [measured.missing]
    if not measured.runs:
        first = measured.seen or f"{judged[0].claim.text} (measured: {judged[0].ours})"
    elif len(measured.runs) == 1:
        first = _ranking(measured, next(iter(measured.runs)))
    else:
        first = _sweep(measured)
    second = _published(measured) or _count(judged)
    return [text if text.endswith(".") else f"{text}." for text in (first, second) if text]


def _first(measure: str) -> str:
    return _FIRST.get(measure, f"the smallest {measure}")


def _order(measured: FigureData, setting: str) -> list[str]:
    """Schedulers, smallest value of the figure's measure first."""
    summaries = measured.runs[setting].summaries
    return sorted(summaries, key=lambda name: summaries[name][measured.figure.measure])


def _ranking(measured: FigureData, setting: str) -> str:
    """Which scheduler is first, and by how much the reference leads or trails."""
    runs, measure = measured.runs[setting], measured.figure.measure
    unit, scale = unit_of(measure)
    best, *others = _order(measured, setting)
    found = runs.summaries[best].estimate(measure)
    half = "" if found.half_width is None else f" ± {scale * found.half_width:.2f}"
    level = " %" if scale != 1.0 else unit
    text = f"{best} has {_first(measure)}, {scale * found.mean:.2f}{half}{level}"
    if not others:
        return text
    reference = runs.reference
    shown = others[0] if best == reference else best
    gap = measured.difference((setting, shown), (setting, reference), measure).mean
    than = "more" if gap.mean > 0 else "less"
    half = "" if gap.half_width is None else f" ± {scale * gap.half_width:.2f}"
    whom = f"the next, {shown}, has" if best == reference else f"that is, against {reference},"
    points = unit if scale != 1.0 else ""
    counted = f"(paired, {runs.seeds} seed{'s' * (runs.seeds != 1)})"
    return f"{text}; {whom} {abs(scale * gap.mean):.2f}{half}{points} {than} {counted}"


def _sweep(measured: FigureData) -> str:
    """In how many settings the reference is first, and where its lead is largest and smallest."""
    reference, measure = next(iter(measured.runs.values())).reference, measured.figure.measure
    leads: dict[str, tuple[float, str]] = {}
    for key in measured.runs:
        rivals = [name for name in _order(measured, key) if name != reference]
        if rivals:
            gap = measured.difference((key, rivals[0]), (key, reference), measure)
            leads[key] = (gap.percent, rivals[0])
    if not leads:
        return ""
    first = sum(lead > 0 for lead, _ in leads.values())
    low, high = (end(leads, key=lambda key: leads[key][0]) for end in (min, max))
    least, most = (f"{leads[key][0]:+.1f} % ({leads[key][1]}, {key})" for key in (low, high))
    return (
        f"{reference} has {_first(measure)} in {first} of {len(leads)} settings; relative to it, the best of the "
        f"others is at {least} to {most}"
    )


def _published(measured: FigureData) -> str:
    """How the paper's own policy compares with a corrected Optimus."""
    for runs in measured.runs.values():
        said = runs.setting.published.get(OURS)
        if said is None or "optimus-central" not in runs.records or "optimus-published" not in runs.records:
            continue
        if runs.setting.scenario.startswith("testbed"):
            continue  # another progress rule: the two numbers cannot be compared
        summaries = runs.summaries
        right, wrong = (summaries[name]["mean"] for name in ("optimus-central", "optimus-published"))
        stands = "behind" if said > right else "before"
        return (
            f"The paper has {said:g} slots for its TapFinger; Optimus as published takes {wrong:.2f} here and "
            f"corrected {right:.2f}, so that the published policy would stand {stands} a correct Optimus"
        )
    return ""


def _count(judged: list[Judged]) -> str:
    """The verdicts on the claims, as counts."""
    words = {
        ClaimVerdict.HOLDS: ("holds", "hold"),
        ClaimVerdict.PUBLISHED_ONLY: (ClaimVerdict.PUBLISHED_ONLY.value, "hold only against the published baseline"),
        ClaimVerdict.DOES_NOT_HOLD: ("does not hold", "do not hold"),
        ClaimVerdict.NOT_JUDGED: ("is not judged", "are not judged"),
    }
    if not judged:
        return ""
    if len(judged) == 1:
        return f"The claim {words[judged[0].verdict][0]}"
    counts = Counter(item.verdict for item in judged)
    if len(counts) == 1:
        verdict, several = judged[0].verdict, len(judged) > 2
        if verdict is ClaimVerdict.DOES_NOT_HOLD:
            return f"None of the {len(judged)} claims holds" if several else "Neither claim holds"
        return f"{f'All {len(judged)}' if several else 'Both'} claims {words[verdict][1]}"
    parts = [f"{counts[verdict]} {text[counts[verdict] != 1]}" for verdict, text in words.items() if counts[verdict]]
    return f"Of {len(judged)} claims, {', '.join(parts)}"
