"""Error messages for a scheduler that raised: the place in the user's own file, without our frames around it."""

from __future__ import annotations

import traceback

from tapfinger.errors import TapfingerError
from tapfinger.registry import users_frame


def explain(error: Exception) -> str:
    """What went wrong, with the last place in the user's own files, or the whole traceback if there is none."""
    if isinstance(error, TapfingerError):
        return str(error)
    what = "".join(traceback.format_exception_only(error)).strip()
    place = users_frame(error)
    if place is not None:
        code = f"\n    {place.line}" if place.line else ""
        return f'{what}\n  File "{place.filename}", line {place.lineno}, in {place.name}{code}'
    if isinstance(error, OSError | SyntaxError):
        return what  # the error names the file itself
    return "it raised\n" + "".join(traceback.format_exception(error)).rstrip()
