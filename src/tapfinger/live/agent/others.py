"""What people use of a cluster who are not scheduled here, as its backend observes it.

The backend is asked in a thread of its own, so that nothing waits for it. What goes wrong with that is logged, and
changes nothing: what it said last still counts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tapfinger.core.model import ResourceTypes
from tapfinger.errors import BackendError
from tapfinger.live.agent.job_pool import JobPool, Then

logger = logging.getLogger(__name__)

#: Least seconds between two questions.
EVERY = 5.0
#: Seconds after which a question hangs.
HANGING = 30.0
#: Largest amount, and most characters of a fault that are logged.
LARGEST, LONGEST_FAULT = 2.0**53, 300


class OthersWatch:
    """Asks a backend what others use, if it has a method ``others``."""

    def __init__(self, backend: object, resources: ResourceTypes, clock: Callable[[], float] = time.monotonic) -> None:
        """``resources``: those of the site; the backend may speak of no others."""
        asked = getattr(backend, "others", None)
        self._ask: Callable[[], Any] | None = asked if callable(asked) else None
        self._names = resources.names
        self._clock = clock
        #: Natural amounts by resource; None if nothing is known.
        self.amounts: Mapping[str, float] | None = None
        self.workers = JobPool("others", 1)
        self._asking, self._next = False, 0.0
        #: What was wrong with the last answer; empty if nothing.
        self._wrong = ""

    def step(self) -> None:
        """Take up an answer, and ask again if it is time."""
        self.workers.settle(0.0)
        if self._asking:
            if self.workers.hanging(HANGING):
                self._say(f"it has not answered for {HANGING:g} s")
        elif self._ask is not None and self._clock() >= self._next:
            self._asking = True
            self.workers.do(partial(self._question, self._ask))

    def _question(self, ask: Callable[[], Any]) -> Then:
        said: dict[str, float] | None = None
        wrong = ""
        try:
            said = checked_others(ask(), self._names)
        except (Exception, SystemExit) as error:  # whatever the backend's author did not foresee
            wrong = f"{type(error).__name__}: {error}"
        return partial(self._heard, said, wrong)

    def _heard(self, said: dict[str, float] | None, wrong: str) -> list[Any]:
        self._asking, self._next = False, self._clock() + EVERY
        self._say(wrong)
        if not wrong:
            self.amounts = said
        return []

    def _say(self, wrong: str) -> None:
        """Log what is wrong, once."""
        wrong = wrong[:LONGEST_FAULT]
        if wrong and wrong != self._wrong:
            logger.warning("the backend cannot say what others use, so what it said last still counts: %s", wrong)
        self._wrong = wrong


def checked_others(said: Any, names: tuple[str, ...]) -> dict[str, float] | None:
    """An answer of ``others`` as plain data; raises BackendError if it makes no sense."""
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise BackendError(f"others() must return amounts by resource, or None; got {type(said).__name__}")
    found = {}
    for name, amount in said.items():
        if name not in names:
            raise BackendError(f"others() speaks of {str(name)[:50]!r}; the resources are {', '.join(names)}")
        found[name] = float(amount)
        if not (math.isfinite(found[name]) and 0.0 <= found[name] <= LARGEST):
            raise BackendError(f"others() says that they use {found[name]:g} {name}; it must be 0 or more, and finite")
    return found
