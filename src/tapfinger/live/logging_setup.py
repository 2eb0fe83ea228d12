"""Logs as text or JSON: one line per event, to standard error."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from tapfinger.errors import UnknownNameError
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import LiveEvent

#: Most bytes of a log file of ``tapfinger up``, and the variable by which ``up`` says that standard error is one.
MAX_LOG, BOUNDED = 32 * 1024 * 1024, "TAPFINGER_BOUNDED_LOG"

#: Extra fields of a log record: what its event is about.
FIELDS = ("event", "task", "attempt", "cluster", "detail")


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


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Logs to standard error. If that is a log file of ``tapfinger up``, it is cut to its last half when it is long."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and see to it that the file does not grow for ever."""
        super().emit(record)
        if os.environ.get(BOUNDED):
            with suppress(OSError, ValueError):
                halve(self.stream.fileno())


def halve(handle: int, most: int = MAX_LOG) -> None:
    """Cut a file that is open for appending to its last half, from the beginning of a line, if it is too long."""
    if os.fstat(handle).st_size <= most:
        return
    with open(f"/proc/self/fd/{handle}", "rb") as file:  # the handle itself cannot be read from
        file.seek(-most // 2, os.SEEK_END)
        file.readline()
        rest = file.read()
    os.ftruncate(handle, 0)
    os.write(handle, rest)


def set_up_logging(verbose: bool, form: str = "text") -> None:
    """Log to standard error. ``form``: text or json."""
    formatters = {
        "text": logging.Formatter("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"),
        "json": JsonLines(),
    }
    if form not in formatters:
        raise UnknownNameError("log format", form, formatters)
    handler = BoundedHandler()
    handler.setFormatter(formatters[form])
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for noisy in ("httpx", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_event(logger: logging.Logger, event: LiveEvent) -> None:
    """Log an event as text, and as fields for programs."""
    about = {"task": event.task, "attempt": event.attempt, "cluster": event.cluster}
    logger.info("%s", words.sentence(event), extra={"event": event.kind, **about})
