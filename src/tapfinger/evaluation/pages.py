"""Renders pages from templates, for all reports. Templates are files in the folder ``templates`` of a package."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape


def render(package: str, template: str, **values: Any) -> str:
    """A template of a package, filled in. HTML templates escape every value and may extend ``page.html``."""
    return _environment(package).get_template(template).render(values)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("tapfinger.evaluation")]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"base64": _base64, "cell": _cell, "counted": _counted}
    return environment


def _base64(path: Path) -> str:
    """Content of a file, for a data URI."""
    return base64.b64encode(path.read_bytes()).decode()


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _counted(count: int, noun: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{count} {noun}{'s' * (count != 1)}"
