"""The Standard Workload Format of the Parallel Workloads Archive: 18 columns, comments begin with ``;``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tapfinger.workloads.importers.base import RecordedTask, RecordedTrace, UnusableRow, number
from tapfinger.workloads.importers.options import ReadOptions

#: The fields that are used, by position.
SUBMIT, RUN_TIME, ALLOCATED, REQUESTED, PARTITION = 1, 3, 4, 7, 15
FIELDS = 18


def looks_like(text: str) -> bool:
    """Whether the first line that is not a comment has 18 numbers."""
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith(";")), "")
    cells = first.split()
    try:
        return len([float(cell) for cell in cells]) == FIELDS
    except ValueError:
        return False


def read(text: str, options: ReadOptions) -> RecordedTrace:  # noqa: ARG001 - one signature for all formats
    """Tasks with processors as their only resource; -1 means unknown, as the format defines."""
    trace = RecordedTrace({"cpu": 1.0})
    names = ("submit time", "run time", "allocated processors", "requested processors", "partition")
    places = (SUBMIT, RUN_TIME, ALLOCATED, REQUESTED, PARTITION)

    def rows() -> Iterator[dict[str, str]]:
        for line in text.splitlines():
            cells = line.partition(";")[0].split()
            if cells and len(cells) < FIELDS:
                trace.dropped[f"row has fewer than {FIELDS} values"] += 1
            elif cells:
                yield {name: cells[place] for name, place in zip(names, places, strict=True)}

    trace.collect(rows(), lambda row: _convert(row, trace))
    partitions = {task.cluster for task in trace.tasks}
    if len(partitions) < 2:  # one partition is no choice of clusters
        trace.tasks = [RecordedTask(t.arrival, t.seconds, t.request) for t in trace.tasks]
    return trace


def _convert(row: Mapping[str, str], trace: RecordedTrace) -> RecordedTask:
    submitted = number(row, "submit time", above=-1)
    seconds = number(row, "run time", above=0)
    processors = max(number(row, "allocated processors"), 0) or number(row, "requested processors")
    if processors <= 0:
        raise UnusableRow("neither allocated nor requested processors are known")
    partition = number(row, "partition")
    return RecordedTask(
        submitted, seconds, trace.request(cpu=processors), cluster=f"partition-{partition:g}" if partition >= 0 else ""
    )
