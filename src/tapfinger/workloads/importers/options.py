"""Settings of ``tapfinger workload import``. Needs no numpy, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tapfinger.settings import FieldHelp


@dataclass(frozen=True)
class ReadOptions:
    """What a trace may not say by itself."""

    cpus_per_gpu: Annotated[float, FieldHelp("CPUs per GPU where a trace counts GPUs only.", above=0)] = 2.0
    gpu_hours: Annotated[
        Mapping[str, float], FieldHelp("GPU-hours per application (pollux), as bert=3,cifar10=0.5.")
    ] = field(default_factory=dict)
    nodes: Annotated[
        Path | None, FieldHelp("Node list of the trace (openb): clusters get its nodes and GPU models.", metavar="FILE")
    ] = None
    # None: 0.25, or 0.1 for a flat import.
    gpu_unit: Annotated[
        float | None, FieldHelp("Smallest share of a GPU (openb); 0.25 if left out, 0.1 with --flat.", above=0, max=1)
    ] = None
    flat: Annotated[
        bool,
        FieldHelp("One pool of CPUs and GPUs per cluster: no nodes, GPU models or memory.", option="--flat"),
    ] = False
    memory: Annotated[bool, FieldHelp("With --flat: still make memory a resource (openb).", option="--memory")] = False


@dataclass(frozen=True)
class ConvertOptions:
    """Choices that a trace leaves open."""

    #: Name of the scenario.
    name: str
    clusters: Annotated[
        int | None, FieldHelp("So many equal clusters instead of the trace's own.", above=0, max=10_000)
    ] = None
    capacity: Annotated[
        Mapping[str, float] | None,
        FieldHelp("Capacity of each cluster, as cpu=64,gpu=8; sized by --load if left out."),
    ] = None
    # Share of the capacity that is in use when a task arrives, if all tasks start at once.
    load: Annotated[float, FieldHelp("Wanted load where capacities are not given.", above=0)] = 0.9
    # None: own if the trace names clusters, kinds if there are kinds of GPUs, otherwise draw.
    eligible: Annotated[
        str | None,
        FieldHelp("own (cluster it ran on), kinds (GPU models it asks for), all, or draw (by the scenario's model)."),
    ] = None
    node_share: Annotated[
        float, FieldHelp("Share of the nodes of every shape in --nodes, at least one of each.", above=0, max=1)
    ] = 1.0
    gpu_speed: Annotated[
        Mapping[str, float], FieldHelp("Speeds of GPU models relative to a V100, as T4=0.3,G2=0.8.")
    ] = field(default_factory=dict)
    # By Amdahl's law.
    elastic: Annotated[
        float | None,
        FieldHelp("Share of the time that more GPUs (or CPUs) divide; rigid if left out.", min=0, max=1),
    ] = None
    maximum_factor: Annotated[float, FieldHelp("Largest allocation of elastic tasks, times the request.", above=0)] = (
        4.0
    )
    slot_seconds: Annotated[float | None, FieldHelp("Seconds per slot; from the median task if left out.", above=0)] = (
        None
    )
    # Durations stay as they are.
    time_scale: Annotated[float, FieldHelp("Multiplies arrival times; 0.5 doubles the rate.", above=0)] = 1.0
    limit: Annotated[int | None, FieldHelp("Import only the first tasks, at most this many.", above=0)] = None
    types: Annotated[int, FieldHelp("Largest number of task types.", above=0, max=1_000)] = 24
    mode: Annotated[str, FieldHelp("multi or single.")] = "multi"
    # Without it, such tasks are an error.
    drop_oversized: Annotated[bool, FieldHelp("Leave out tasks no cluster holds.", option="--drop-oversized")] = False
