"""Alibaba openb pod lists: cpu_milli, memory_mib, num_gpu, gpu_milli, creation_time, deletion_time, ..."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from tapfinger.errors import ConfigError
from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace, UnusableRow, header, number, table
from tapfinger.workloads.importers.nodes import read_nodes
from tapfinger.workloads.importers.options import ReadOptions

COLUMNS = ("cpu_milli", "num_gpu", "creation_time", "deletion_time")

#: Pods may share a GPU; shares are rounded up to this, unless --gpu-unit says otherwise.
GPU_UNIT = 0.25
#: The same for a flat import.
FLAT_GPU_UNIT = 0.1
#: GiB per unit of memory.
MEMORY_UNIT = 4.0


def read(text: str, options: ReadOptions) -> RecordedTrace:
    """Pods with CPUs, shares of GPUs, memory in GiB and GPU models; they run from scheduling to deletion."""
    unit = _gpu_unit(options)
    memory = options.memory or (not options.flat and "memory_mib" in header(text))
    trace = RecordedTrace({"cpu": 1.0, "gpu": unit, **({"memory": MEMORY_UNIT} if memory else {})})
    if not options.flat:
        trace.shares = ("gpu",)
    if options.nodes is not None:
        trace.nodes = read_nodes(options.nodes, trace.resources)

    def convert(row: Mapping[str, str]) -> RecordedTask:
        created = number(row, "creation_time")
        # Waiting for a node is the scheduler's doing, not part of the task.
        begun = number(row, "scheduled_time") if "scheduled_time" in row else created
        seconds = number(row, "deletion_time") - begun
        if seconds <= 0:
            raise UnusableRow("deletion_time is not after scheduled_time")
        amounts = {"cpu": float(math.ceil(number(row, "cpu_milli", least=0) / 1000)), "gpu": _gpus(row, unit)}
        if memory:
            amounts["memory"] = math.ceil(number(row, "memory_mib", least=0) / 1024 / MEMORY_UNIT) * MEMORY_UNIT
        if not amounts["cpu"] and not amounts["gpu"]:
            raise UnusableRow("cpu_milli and num_gpu are both 0")
        kinds = () if options.flat or not amounts["gpu"] else _kinds(row.get("gpu_spec", ""))
        return RecordedTask(created, seconds, trace.request(**amounts), group="|".join(kinds), kinds=kinds)

    trace.collect(table(text, trace.dropped), convert)
    return trace


def _gpu_unit(options: ReadOptions) -> float:
    unit = options.gpu_unit or (FLAT_GPU_UNIT if options.flat else GPU_UNIT)
    if abs(1.0 / unit - round(1.0 / unit)) > 1e-9:
        raise ConfigError(f"--gpu-unit {unit:g} must be 1 over a whole number, such as 0.25 or 0.1")
    return unit


@cache
def _kinds(spec: str) -> tuple[str, ...]:
    """GPU models of a specification such as ``V100M16|V100M32``; empty if any will do."""
    return tuple(sorted({kind.strip() for kind in spec.split("|")} - {""}))


def _gpus(row: Mapping[str, str], unit: float) -> float:
    """Whole GPUs, or the share of one."""
    count = number(row, "num_gpu", least=0)
    milli = number(row, "gpu_milli", least=0) if "gpu_milli" in row and count == 1 else 1000.0
    return round(count * math.ceil(min(milli, 1000.0) / 1000 / unit - 1e-9) * unit, 6)
