"""Alibaba openb pod lists: cpu_milli, memory_mib, num_gpu, gpu_milli, creation_time, deletion_time, ..."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace, UnusableRow, number, table
from tapfinger.workloads.importers.options import ReadOptions

COLUMNS = ("cpu_milli", "num_gpu", "creation_time", "deletion_time")

#: Pods may share a GPU; shares are rounded up to tenths.
GPU_UNIT = 0.1
#: GiB per unit of memory.
MEMORY_UNIT = 4.0


def read(text: str, options: ReadOptions) -> RecordedTrace:
    """Pods with CPUs, shares of GPUs and, if wanted, memory in GiB; they run from scheduling to deletion."""
    units = {"cpu": 1.0, "gpu": GPU_UNIT, **({"memory": MEMORY_UNIT} if options.memory else {})}
    trace = RecordedTrace(units)

    def convert(row: Mapping[str, str]) -> RecordedTask:
        created = number(row, "creation_time")
        # Waiting for a node is the scheduler's doing, not part of the task.
        begun = number(row, "scheduled_time") if "scheduled_time" in row else created
        seconds = number(row, "deletion_time") - begun
        if seconds <= 0:
            raise UnusableRow("deletion_time is not after scheduled_time")
        request = {"cpu": float(math.ceil(number(row, "cpu_milli", least=0) / 1000)), "gpu": _gpus(row)}
        if options.memory:
            request["memory"] = math.ceil(number(row, "memory_mib", least=0) / 1024 / MEMORY_UNIT) * MEMORY_UNIT
        if not request["cpu"] and not request["gpu"]:
            raise UnusableRow("cpu_milli and num_gpu are both 0")
        return RecordedTask(created, seconds, request)

    trace.collect(table(text, trace.dropped), convert)
    return trace


def _gpus(row: Mapping[str, str]) -> float:
    """Whole GPUs, or the share of one."""
    count = number(row, "num_gpu", least=0)
    milli = number(row, "gpu_milli", least=0) if "gpu_milli" in row and count == 1 else 1000.0
    return round(count * math.ceil(min(milli, 1000.0) / 1000 / GPU_UNIT - 1e-9) * GPU_UNIT, 6)
