"""Philly-style traces: timestamp, duration in seconds, num_gpus and the (virtual) cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace, UnusableRow, number, table
from tapfinger.workloads.importers.options import ReadOptions

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def read(text: str, options: ReadOptions) -> RecordedTrace:
    """Tasks that ask for GPUs; CPUs are added per GPU because the trace does not record them."""
    trace = RecordedTrace({"cpu": 1.0, "gpu": 1.0})

    def convert(row: Mapping[str, str]) -> RecordedTask:
        gpus = number(row, "num_gpus", above=0)
        cluster = row["cluster"].strip()
        if not cluster:
            raise UnusableRow("cluster is empty")
        request = trace.request(cpu=max(1.0, math.ceil(gpus * options.cpus_per_gpu)), gpu=math.ceil(gpus))
        return RecordedTask(_time(row["timestamp"].strip()), number(row, "duration", above=0), request, cluster=cluster)

    trace.collect(table(text, trace.dropped), convert)
    return trace


def _time(text: str) -> float:
    """Seconds from a date such as 2017-10-09 07:01:55, or from a plain number of seconds."""
    if text.replace(".", "", 1).isdecimal():
        return number({"timestamp": text}, "timestamp")
    try:
        return _utc(datetime.fromisoformat(text)).timestamp()
    except (ValueError, OverflowError):  # the first and last years reach beyond the calendar in some zones
        raise UnusableRow("timestamp is not a date") from None


def _utc(time: datetime) -> datetime:
    # Without a zone any will do, as only differences count; but not the local one: its clock jumps twice a year.
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
