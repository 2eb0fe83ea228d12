"""The log of a training run: metrics.jsonl, and next to it the same scalars as an event file for TensorBoard.

The event file is written here rather than with the ``tensorboard`` package, which needs a web server, grpc and a data
server (65 MB) to write a few fields. The format is a sequence of records (length, checksum, message, checksum).
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tapfinger.errors import DataError

METRICS = "metrics.jsonl"
_EVENTS = "events.out.tfevents."


class RunLog:
    """Scalars by step. Steps never decrease: one count runs through all stages of the run."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        """``resume_step``: last step of the run to continue; later entries are dropped. None: start a new log."""
        folder.mkdir(parents=True, exist_ok=True)
        self._step = -1
        path = folder / METRICS
        kept = [] if resume_step is None else [r for r in _records(path) if r["step"] <= resume_step]
        unfinished = folder / f"{METRICS}.unfinished"
        unfinished.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        unfinished.replace(path)
        # The event file is derived from the metrics, so it is simply written again.
        for old in folder.glob(f"{_EVENTS}*"):
            old.unlink()
        self._metrics = path.open("a", encoding="utf-8")
        self._events: BinaryIO = (folder / f"{_EVENTS}{int(time.time())}.tapfinger").open("wb")
        _write(self._events, _event(time.time(), 0, _field(3, b"brain.Event:2")))
        for record in kept:
            self._add(record)
        self._events.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values known at a step; values that are not finite are null in the metrics."""
        if step < self._step:
            raise ValueError(f"step {step} after step {self._step}: one count must go through the whole run")
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        record = {"step": step, "time": round(time.time(), 3), **finite}
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()
        self._add(record)
        self._events.flush()

    def close(self) -> None:
        """Close the log; nothing can be logged afterwards."""
        self._metrics.close()
        self._events.close()

    def _add(self, record: Mapping[str, Any]) -> None:
        self._step = record["step"]
        values = [(name, value) for name, value in record.items() if name not in ("step", "time")]
        summary = b"".join(
            _field(1, _field(1, name.encode()) + b"\x15" + struct.pack("<f", math.nan if value is None else value))
            for name, value in values
        )
        _write(self._events, _event(record["time"], record["step"], _field(5, summary)))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The logged records. The last line may be incomplete if the run was killed; it is then ignored."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not _sound(record):
            raise DataError(
                f"{path}:{number}: not a record with step, time and numbers: {line[:60]!r}; remove the line to go on "
                "with this run, or choose another --out"
            )
        yield record


def _sound(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("step"), int) or record.get("time") is None:
        return False
    return all(value is None or isinstance(value, int | float) for value in record.values())


# ------------------------------------------------------------------ event files

# Protocol buffers by hand. Event: 1 wall time, 2 step, 3 file version, 5 summary; Summary: 1 value (repeated);
# Value: 1 tag, 2 simple value. A key is the field's number times 8, plus 0 (varint), 1 (double), 2 (bytes), 5 (float).


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number * 8 + 2) + _varint(len(payload)) + payload


def _event(wall_time: float, step: int, what: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + what


def _write(file: BinaryIO, message: bytes) -> None:
    length = struct.pack("<Q", len(message))
    file.write(length + _checksum(length) + message + _checksum(message))


def _table() -> list[int]:
    """Table of CRC-32C (Castagnoli), by byte."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as the format requires, so that data with embedded checksums still works."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
