"""Text from others made harmless for terminals and log files: control characters become visible."""

from __future__ import annotations

import re

#: Controls (C0, DEL, C1), signs that turn the direction of text or hide in it, line separators, lone surrogates.
_ODD = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def visible(text: str, lines: bool = False) -> str:
    """The text with control characters as escapes, such as ``\\x1b``. ``lines``: keep line ends and tabs."""
    return _ODD.sub(lambda found: found[0] if lines and found[0] in "\n\t" else escaped(found[0]), text)


def escaped(sign: str) -> str:
    """A character as Python writes it in a string."""
    return repr(sign)[1:-1]
