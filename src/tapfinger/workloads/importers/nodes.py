"""Node lists that come with a trace: sn, cpu_milli, memory_mib, gpu and model, as those of openb."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tapfinger.errors import DataError
from tapfinger.profiles.table import csv_rows
from tapfinger.workloads.importers.base import UnusableRow, number, read_text

COLUMNS = ("cpu_milli", "memory_mib", "gpu", "model")


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What equal nodes have."""

    #: GPU model; empty for nodes without GPUs.
    kind: str
    #: (name, natural quantity) of every resource of the trace.
    amounts: tuple[tuple[str, float], ...]

    def holds(self, request: Mapping[str, float]) -> bool:
        """Whether a request fits on an empty node."""
        return all(request[name] <= amount for name, amount in self.amounts)


def read_nodes(path: Path, units: Mapping[str, float]) -> dict[NodeShape, int]:
    """Number of nodes of every shape; amounts are rounded down to ``units``, the trace's resources."""
    lines = csv_rows(read_text(path, "node list"), path)
    first, header = next(lines, (1, []))
    names = [name.strip() for name in header]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"{path}:{first}: a node list needs the columns {', '.join(COLUMNS)}; there is no {missing[0]!r}. Rename "
            "the columns, or leave out --nodes"
        )
    found: Counter[NodeShape] = Counter()
    for line, cells in lines:
        if len(cells) != len(names):
            raise DataError(f"{path}:{line}: {len(cells)} values for {len(names)} columns; complete the row")
        try:
            found[_shape(dict(zip(names, cells, strict=True)), units)] += 1
        except UnusableRow as problem:
            raise DataError(f"{path}:{line}: {problem}; correct the row, or remove it") from None
    if not found:
        raise DataError(f"{path} has no nodes below its header; add some, or leave out --nodes")
    return dict(found)


def _shape(row: Mapping[str, str], units: Mapping[str, float]) -> NodeShape:
    has = {
        "cpu": number(row, "cpu_milli", least=0) / 1000,
        "gpu": float(math.floor(number(row, "gpu", least=0))),
        "memory": number(row, "memory_mib", least=0) / 1024,
    }
    amounts = tuple((name, round(math.floor(has[name] / unit + 1e-9) * unit, 6)) for name, unit in units.items())
    if not any(amount for _, amount in amounts):
        raise UnusableRow("the node has less than a unit of everything")
    kind = row["model"].strip()
    if has["gpu"] and not kind:
        raise UnusableRow("gpu is above 0, but model is empty")
    return NodeShape(kind if has["gpu"] else "", amounts)
