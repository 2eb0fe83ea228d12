"""Pollux-style workloads: name, time in seconds, application, num_replicas (GPUs) and batch_size."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tapfinger.errors import DataError
from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace, UnusableRow, number, table
from tapfinger.workloads.importers.options import ReadOptions

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")

#: GPU-hours of one task. These workloads do not record durations; the Pollux paper (OSDI 2021, Table 1) sorts its
#: applications into small (below 1 GPU-hour), medium (1-10), large (10-100) and extra large (above 100), and these
#: are values inside those classes.
GPU_HOURS: dict[str, float] = {
    "cifar10": 0.5,
    "ncf": 0.25,
    "bert": 3.0,
    "deepspeech2": 3.0,
    "yolov3": 20.0,
    "imagenet": 120.0,
}


def read(text: str, options: ReadOptions) -> RecordedTrace:
    """Tasks grouped by application; a task's duration is its GPU-hours over its replicas."""
    trace = RecordedTrace({"cpu": 1.0, "gpu": 1.0})
    hours = {**GPU_HOURS, **options.gpu_hours}
    known: set[str] = set()

    def convert(row: Mapping[str, str]) -> RecordedTask:
        application = row["application"].strip()
        known.add(application)
        if not application:
            raise UnusableRow("application is empty")
        replicas = number(row, "num_replicas", above=0)
        if (row.get("duration") or "").strip():
            seconds = number(row, "duration", above=0)
        elif application in hours:
            seconds = hours[application] * 3600.0 / replicas
        else:
            raise DataError(
                f"application {application!r} (task {row['name']!r}): its length is not known and the trace has no "
                f"durations; give it with --gpu-hours {application}=HOURS. Known: {', '.join(sorted(hours))}"
            )
        request = trace.request(cpu=max(1.0, math.ceil(replicas * options.cpus_per_gpu)), gpu=math.ceil(replicas))
        return RecordedTask(number(row, "time"), seconds, request, group=application)

    trace.collect(table(text, trace.dropped), convert)
    unused = [application for application in options.gpu_hours if application not in known]
    if unused:
        raise DataError(
            f"--gpu-hours names {unused[0]!r}, but no task is of that application; there are {', '.join(sorted(known))}"
        )
    return trace
