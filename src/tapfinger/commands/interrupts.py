"""How commands that have something to tidy up are ended: by Ctrl-C, by kill, and by a terminal that is closed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and a closed terminal act like Ctrl-C. After the first of them, another one changes nothing."""
    from tapfinger.live.site_parts import ENDING

    def interrupt(*_: object) -> None:
        for number in taken:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    # What the caller ignores, such as nohup a closed terminal, stays ignored.
    taken = {n: before for n in ENDING if (before := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)
