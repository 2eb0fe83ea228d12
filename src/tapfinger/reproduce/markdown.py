"""The summary as a page of the documentation: docs/reproduction.md and its pictures."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.evaluation.pages import render
from tapfinger.reproduce.figure_result import FigureResult
from tapfinger.reproduce.page import ABSTRACT, claim_counts
from tapfinger.reproduce.verdicts import ClaimVerdict

PAGE = "reproduction.md"
IMAGES = Path("images") / "reproduction"
#: Maximum characters per line of prose.
WIDTH = 110


def write_docs(docs: Path, made: Sequence[FigureResult], about: Mapping[str, str]) -> None:
    """Write the page and copy the first picture of each figure; older pictures are removed."""
    if not docs.is_dir():
        raise ConfigError(f"--docs {docs} is no directory; give the documentation's")
    counts = [
        (whose, [claim_counts(made, of_paper)[verdict] for verdict in ClaimVerdict])
        for whose, of_paper in (("the paper's", True), ("our own", False))
    ]
    text = render(
        "tapfinger.reproduce",
        PAGE,
        abstract=ABSTRACT,
        made=made,
        verdicts=list(ClaimVerdict),
        counts=counts,
        images=IMAGES.as_posix(),
        about=about,
    )
    images = docs / IMAGES
    try:
        images.mkdir(parents=True, exist_ok=True)
        for old in images.glob("*.png"):
            old.unlink()
        for each in made:
            for picture in list(each.pictures.values())[:1]:
                shutil.copyfile(picture, images / picture.name)
        (docs / PAGE).write_text(wrapped(text), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write below {docs}: {error.strerror}; give another directory with --docs") from None


def wrapped(page: str) -> str:
    """Wrap the paragraphs and list items of a page; tables, headings and pictures stay on one line."""
    return "\n".join(
        line
        if len(line) <= WIDTH or line.startswith(("|", "#", "!", "<"))
        else textwrap.fill(
            line,
            WIDTH,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in page.split("\n")
    )
