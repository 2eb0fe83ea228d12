"""Logs as text or JSON: one line per event, to standard error."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from tapfinger.errors import UnknownNameError
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.visible import visible

#: Extra fields of a log record: what its event is about.
FIELDS = ("event", "task", "attempt", "cluster", "detail")

#: Seconds in which at most so many warnings of one kind, and of all kinds, are logged.
MINUTE, SAME, ALL = 60.0, 20, 500


class Sparing(logging.Filter):
    """Drops warnings that come in masses, which strangers can cause; says once a minute how many were dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        super().__init__()
        self._clock = clock
        self._until = 0.0
        self._seen: dict[tuple[str, str], int] = {}
        self._logged = self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record. What is not a warning or worse passes: it is logged only if asked for."""
        if record.levelno < logging.WARNING or record.levelno >= logging.CRITICAL:
            return True
        now = self._clock()
        if now >= self._until:
            dropped, self._dropped, self._until = self._dropped, 0, now + MINUTE
            self._seen.clear()
            self._logged = 0
            if dropped:
                record.msg = f"[{dropped} warnings before this were left out] {record.msg}"
        kind = record.name, str(record.msg)
        if len(self._seen) < ALL:
            self._seen[kind] = self._seen.get(kind, 0) + 1
        if self._seen.get(kind, SAME + 1) > SAME or self._logged >= ALL:
            self._dropped += 1
            return False
        self._logged += 1
        return True


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields in ``FIELDS``."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """One line of text per record, whatever tasks and people have put into it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging's
        """A record as one line, without its traceback."""
        return visible(super().formatMessage(record))


def set_up_logging(verbose: bool, form: str = "text") -> None:
    """Log to standard error. ``form``: text or json."""
    formatters = {
        "text": TextLines("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"),
        "json": JsonLines(),
    }
    if form not in formatters:
        raise UnknownNameError("log format", form, formatters)
    handler = logging.StreamHandler()
    handler.setFormatter(formatters[form])
    handler.addFilter(Sparing())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for noisy in ("httpx", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_event(logger: logging.Logger, event: LiveEvent) -> None:
    """Log an event as text, and as fields for programs."""
    about = {"task": event.task, "attempt": event.attempt, "cluster": event.cluster}
    logger.info("%s", words.sentence(event), extra={"event": event.kind, **about})
