"""What to tell a user whose scheduler raised: where in the user's own file, without our frames around it."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from tapfinger.errors import TapfingerError

#: Files below these are not the user's.
_NOT_THE_USERS = (
    Path(__file__).parents[1],
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def explain(error: Exception) -> str:
    """What went wrong, with the last place in the user's own files; if there is none, with the whole traceback."""
    if isinstance(error, TapfingerError):
        return str(error)
    what = "".join(traceback.format_exception_only(error)).strip()
    place = _users_place(error)
    if place is not None:
        code = f"\n    {place.line}" if place.line else ""
        return f'{what}\n  File "{place.filename}", line {place.lineno}, in {place.name}{code}'
    if isinstance(error, OSError | SyntaxError):
        return what  # says itself which file
    return "it raised\n" + "".join(traceback.format_exception(error)).rstrip()


def _users_place(error: Exception) -> traceback.FrameSummary | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        # Frames of the import machinery and of compiled functions have names like <frozen ...>.
        if path.is_file() and not any(path.is_relative_to(folder) for folder in _NOT_THE_USERS):
            return frame
    return None
