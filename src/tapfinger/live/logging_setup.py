"""Logs as text or JSON: one line per event, to standard error."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from tapfinger.errors import UnknownNameError
from tapfinger.live.protocol import words
from tapfinger.live.protocol.events import LiveEvent
from tapfinger.visible import visible

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
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for noisy in ("httpx", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_event(logger: logging.Logger, event: LiveEvent) -> None:
    """Log an event as text, and as fields for programs."""
    about = {"task": event.task, "attempt": event.attempt, "cluster": event.cluster}
    logger.info("%s", words.sentence(event), extra={"event": event.kind, **about})
