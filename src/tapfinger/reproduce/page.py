"""The report: one HTML file that reads like a short paper, with all pictures in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from tapfinger.evaluation import report
from tapfinger.reproduce.declare import Figure
from tapfinger.reproduce.drawings import CAPTIONS
from tapfinger.reproduce.made import Made
from tapfinger.reproduce.verdicts import Judged, Verdict

TITLE = "TapFinger, reproduced"

_STYLE = """
body { max-width: 60rem } h3 { margin-bottom: .2rem } .meta { color: #555; font-size: 13px; margin-top: 0 }
table.claims td, table.claims th { white-space: normal; text-align: left; vertical-align: top }
table.claims { width: 100% } table.claims td { min-width: 6.5rem } table.claims td:first-child { min-width: 10rem }
table.claims td:first-child, table.claims th:first-child { position: static }
.verdict { font-weight: 600; padding: 0 .35rem; border-radius: 3px; border: 1px solid; display: inline-block }
.holds { color: #00513a; background: #e2f3ec } .published { color: #6b4400; background: #fdf1d8 }
.why { color: #555; font-size: 12px }
.not { color: #7a2500; background: #fbe6dc } .open { color: #444; background: #eee }
nav ol { columns: 2; font-size: 14px } .toll { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0 }
.toll div { border: 1px solid #ddd; border-radius: 4px; padding: .4rem .9rem; font-size: 13px }
.toll b { font-size: 22px }
img { height: auto }
.wide { margin: .9rem 0 } p.sees { margin: .6rem 0 } pre { white-space: pre-wrap; overflow-wrap: anywhere }
@media (max-width: 40rem) { nav ol { columns: 1 } body { margin: 1rem auto } h1 { font-size: 1.5rem }
  figure { overflow-x: auto } figure img { max-width: none; width: 42rem } }
@media print { nav { display: none } figure { break-inside: avoid } }
"""

_CLASSES = {
    Verdict.HOLDS: "holds",
    Verdict.PUBLISHED_ONLY: "published",
    Verdict.DOES_NOT_HOLD: "not",
    Verdict.NOT_JUDGED: "open",
}

ABSTRACT = (
    "Every experiment of the paper is redone here with every scheduler on the same draws of arrivals, task "
    "types and noise. "
    "Differences are taken seed by seed and shown with 95 % intervals (Student's t). The verdict on each claim "
    "is computed: it "
    "holds if every interval leaves out zero and the mean reduction is at least the one claimed, against "
    "rivals as they "
    "should be; it holds only against the published baseline if that is so of a rival as published and not of "
    "the corrected one "
    "(the paper's Optimus was fitted with the axes of CPU and GPU exchanged); otherwise it does not hold. "
    "Times are in slots of 10 s. TapFinger is the shipped model, deterministic."
)


def write_page(path: Path, made: Sequence[Made], about: Mapping[str, str]) -> None:
    """``about``: what to say on how it was made, by name."""
    parts = [
        f"<h1>{TITLE}</h1>",
        f"<p>{escape(ABSTRACT)}</p>",
        tolls([item for each in made for item in each.judged]),
        _contents(made),
    ]
    for title, chosen in _chapters(made):
        parts.append(f"<h2>{title}</h2>")
        for each in chosen:
            parts += _section(each)
    parts += ["<h2>How this was made</h2>", _about(about)]
    path.write_text(report.page(TITLE, parts, _STYLE), encoding="utf-8")


def _chapters(made: Sequence[Made]) -> list[tuple[str, list[Made]]]:
    ours = [each for each in made if not each.measured.figure.paper]
    papers = [each for each in made if each.measured.figure.paper]
    return [
        (title, chosen) for title, chosen in (("The paper's figures", papers), ("Beyond the paper", ours)) if chosen
    ]


def tolls(judged: Sequence[Judged]) -> str:
    """How many claims of the paper and of ours have which verdict."""
    boxes = []
    for whose, chosen in (
        ("of the paper", [item for item in judged if item.claim.paper]),
        ("of ours", [item for item in judged if not item.claim.paper]),
    ):
        counts = Counter(item.verdict for item in chosen)
        for verdict, count in sorted(counts.items(), key=lambda pair: list(Verdict).index(pair[0])):
            claims = f"claim{'s' * (count != 1)} {whose}"
            boxes.append(f"<div><b>{count}</b> {claims}<br>{_badge(verdict)}</div>")
    return f"<div class='toll'>{''.join(boxes)}</div>"


def _contents(made: Sequence[Made]) -> str:
    rows = "".join(
        f"<li><a href='#{each.measured.figure.name}'>{escape(each.measured.figure.title)}</a></li>" for each in made
    )
    return f"<nav><ol>{rows}</ol></nav>"


def _badge(verdict: Verdict) -> str:
    return f"<span class='verdict {_CLASSES[verdict]}'>{verdict.value}</span>"


def where_in_paper(figure: Figure) -> str:
    """Which figure of the paper it is."""
    return f"In the paper: {figure.paper}" if figure.paper else "Not in the paper"


def _section(made: Made) -> list[str]:
    figure = made.measured.figure
    meta = ". ".join(part for part in (where_in_paper(figure), made.seeds_text) if part)
    parts = [
        f"<h3 id='{figure.name}'>{escape(figure.title)}</h3>",
        f"<p class='meta'>{escape(meta)}. <code>tapfinger reproduce {figure.name}</code></p>",
        f"<p>{escape(figure.about)}</p>",
        f"<p class='sees'><b>{escape(' '.join(made.sentences))}</b></p>",
    ]
    for name, path in made.pictures.items():
        parts.append(report.inline(f"{figure.title}: {name}", path, CAPTIONS[name]))
    if made.table.rows:
        parts.append(report.table(made.table.head, made.table.rows, mark_first=len(made.measured.runs) == 1))
    if made.judged:
        parts.append(_claims(made.judged))
    parts += [f"<p class='note'>{escape(note)}</p>" for note in figure.notes]
    return parts


def _claims(judged: Sequence[Judged]) -> str:
    rows = ""
    for item in judged:
        surprise = f" <i>({escape(item.surprise)})</i>" if item.surprise else ""
        why = f"<br><span class='why'>{escape(item.why)}</span>" if item.why else ""
        verdict = _badge(item.verdict) + why
        cells = (escape(item.claim.text), escape(item.paper), escape(item.ours) + surprise, verdict)
        rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
    head = "".join(f"<th>{name}</th>" for name in ("claim", "the paper", "measured here", "verdict"))
    return (
        f"<div class='wide'><table class='claims'><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>"
    )


def _about(about: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>\n" for name, value in about.items())
    return f"<div class='wide'><table class='claims'><tbody>\n{rows}</tbody></table></div>"
