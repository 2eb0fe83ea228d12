"""Two sentences on what a figure shows, put together from its numbers."""

from __future__ import annotations

from collections import Counter

from tapfinger.reproduce.declare import OURS
from tapfinger.reproduce.measured import Measured, Runs
from tapfinger.reproduce.verdicts import Judged, Verdict


def sentences(measured: Measured, judged: list[Judged]) -> list[str]:
    """What is seen, then what it means for the claims."""
    if measured.missing:
        return [measured.missing]
    if not measured.runs:
        first = f"{judged[0].claim.text} (measured: {judged[0].ours})" if judged else ""
    elif len(measured.runs) == 1:
        first = _ranking(next(iter(measured.runs.values())))
    else:
        first = _sweep(measured)
    second = _published(measured) or _count(judged)
    return [text if text.endswith(".") else f"{text}." for text in (first, second) if text]


def _ranking(runs: Runs) -> str:
    """Who is first, and by how much the reference leads or trails."""
    summaries = runs.summaries
    best, *others = summaries
    text = f"{best} has the shortest mean completion time, {summaries[best].estimate('mean').text()} slots"
    if not others:
        return text
    reference = runs.reference
    shown = others[0] if best == reference else best
    gap = summaries[shown].difference
    than = "more" if gap.mean.mean > 0 else "less"
    half = "" if gap.mean.half_width is None else f" ± {gap.mean.half_width:.2f}"
    seeds = len(summaries[best].per_seed["mean"])
    whom = f"the next, {shown}, has" if best == reference else f"that is, against {reference},"
    counted = f"(paired, {seeds} seed{'s' * (seeds != 1)})"
    return f"{text}; {whom} {abs(gap.mean.mean):.2f}{half} {than} {counted}"


def _sweep(measured: Measured) -> str:
    """On how many settings the reference is first, and where its lead is largest and smallest."""
    reference = next(iter(measured.runs.values())).reference
    leads: dict[str, tuple[float, str]] = {}
    for key, runs in measured.runs.items():
        summaries = runs.summaries
        rivals = [name for name in summaries if name != reference]
        if rivals:
            leads[key] = (summaries[rivals[0]].difference.percent, rivals[0])
    if not leads:
        return ""
    first = sum(lead > 0 for lead, _ in leads.values())
    low, high = (end(leads, key=lambda key: leads[key][0]) for end in (min, max))
    least, most = (f"{leads[key][0]:+.1f} % ({leads[key][1]}, {key})" for key in (low, high))
    return (
        f"{reference} has the shortest mean completion time in {first} of {len(leads)} settings; the best of the "
        f"others lies {least} to {most} above it"
    )


def _published(measured: Measured) -> str:
    """Where the paper's own policy would stand beside a corrected Optimus."""
    for runs in measured.runs.values():
        said = runs.setting.published.get(OURS)
        if said is None or "optimus-central" not in runs.records or "optimus-published" not in runs.records:
            continue
        if runs.setting.scenario.startswith("testbed"):
            continue  # another progress rule: the two numbers are not of one kind
        summaries = runs.summaries
        right, wrong = (summaries[name]["mean"] for name in ("optimus-central", "optimus-published"))
        stands = "behind" if said > right else "before"
        return (
            f"The paper has {said:g} slots for its TapFinger; Optimus as published takes {wrong:.2f} here and "
            f"corrected "
            f"{right:.2f}, so that the published policy would stand {stands} a correct Optimus"
        )
    return ""


def _count(judged: list[Judged]) -> str:
    if not judged:
        return ""
    counts = Counter(item.verdict for item in judged)
    words = {
        Verdict.HOLDS: "hold",
        Verdict.PUBLISHED_ONLY: "hold only against the published baseline",
        Verdict.DOES_NOT_HOLD: "do not hold",
        Verdict.NOT_JUDGED: "are not judged",
    }
    parts = [f"{counts[verdict]} {text}" for verdict, text in words.items() if counts[verdict]]
    return f"Of {len(judged)} claim{'s' * (len(judged) != 1)}, {', '.join(parts)}"
