"""The summary as a page of the documentation: docs/reproduction.md and its pictures."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.reproduce.made import Made
from tapfinger.reproduce.page import ABSTRACT, where_in_paper
from tapfinger.reproduce.verdicts import Judged, Verdict

PAGE = "reproduction.md"
IMAGES = Path("images") / "reproduction"

_HEAD = """# The paper, reproduced

Written by `{command}`; do not edit by hand. The whole report, with every table and picture, is
`report.html` in its output directory. How it works: [reproduce.md](reproduce.md). Where paper, published
code and this project differ: [deviations.md](deviations.md).

{abstract}
"""


def write_docs(docs: Path, made: Sequence[Made], about: Mapping[str, str]) -> None:
    """Write the page and copy the first picture of each figure; older pictures go."""
    if not docs.is_dir():
        raise ConfigError(f"--docs {docs} is no directory; give the documentation's")
    images = docs / IMAGES
    try:
        images.mkdir(parents=True, exist_ok=True)
        for old in images.glob("*.png"):
            old.unlink()
        for each in made:
            for picture in list(each.pictures.values())[:1]:
                shutil.copyfile(picture, images / picture.name)
        (docs / PAGE).write_text(_page(made, about), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write below {docs}: {error.strerror}; give another directory with --docs") from None


def _page(made: Sequence[Made], about: Mapping[str, str]) -> str:
    parts = [_HEAD.format(command=about["command"], abstract=ABSTRACT), _counts(made)]
    parts += [_section(each) for each in made]
    rows = "".join(f"| {name} | {_cell(value)} |\n" for name, value in about.items())
    parts.append(f"## How this was made\n\n| | |\n|---|---|\n{rows}")
    return "\n".join(parts)


def _counts(made: Sequence[Made]) -> str:
    rows = []
    for whose, is_paper in (("the paper's", True), ("our own", False)):
        counts = Counter(item.verdict for each in made for item in each.judged if bool(item.claim.paper) is is_paper)
        rows.append(f"| {whose} | " + " | ".join(str(counts[verdict]) for verdict in Verdict) + " |")
    head = " | ".join(verdict.value for verdict in Verdict)
    return f"| claims | {head} |\n|---|{'---|' * len(Verdict)}\n" + "\n".join(rows) + "\n"


def _section(made: Made) -> str:
    figure = made.measured.figure
    meta = ". ".join(part for part in (where_in_paper(figure), made.seeds_text) if part)
    lines = [f"## {figure.title}", "", f"`tapfinger reproduce {figure.name}`. {meta}. {figure.about}", ""]
    lines += [f"**{' '.join(made.sentences)}**", ""]
    for path in list(made.pictures.values())[:1]:
        lines += [f"![{figure.title}]({(IMAGES / path.name).as_posix()})", ""]
    if made.table.rows:
        lines += [_row(made.table.head), f"|{'---|' * len(made.table.head)}", *map(_row, made.table.rows), ""]
    if made.judged:
        lines += ["| claim | the paper | measured here | verdict |", "|---|---|---|---|"]
        lines += [_claim(item) for item in made.judged]
        lines.append("")
    lines += [f"{note}\n" for note in figure.notes]
    return "\n".join(lines)


def _claim(item: Judged) -> str:
    surprise = f" ({item.surprise})" if item.surprise else ""
    verdict = f"**{item.verdict.value}**" + (f" ({item.why})" if item.why else "")
    cells = (item.claim.text, item.paper, f"{item.ours}{surprise}", verdict)
    return _row(cells)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
