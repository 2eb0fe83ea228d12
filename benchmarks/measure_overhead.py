"""Measure the cost of exchanging reports and orders over real sockets: the values of ``reproduce overhead``.

python benchmarks/measure_overhead.py                                          # the values that ship with the package
python benchmarks/measure_overhead.py --out results/reproduce/full/overhead.json   # values for your own report

Takes about five minutes. Run it on an otherwise idle machine, or the times mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from overhead.bench import QUICK, Bench, measure

import tapfinger
from tapfinger.reproduce.overhead import FILE, LatencyPhase

SHIPPED = Path(tapfinger.__file__).parent / "reproduce" / FILE


def write(path: Path, phases: list[LatencyPhase], command: str) -> None:
    """Write the values, one line per latency, and the machine they were measured on."""
    made = {
        "command": command,
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} x {platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "version": tapfinger.__version__,
    }
    lines = ",\n".join(json.dumps(_rounded(asdict(phase)), separators=(",", ":")) for phase in phases)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"made": {json.dumps(made)},\n"phases": [\n{lines}\n]}}\n', encoding="utf-8")


def _rounded(phase: dict[str, Any]) -> dict[str, Any]:
    """Round to microseconds and tenths of bytes: further digits are noise."""
    digits = {"seconds": 6, "decision": 6, "state": 1, "action": 1}
    return {name: [round(x, digits[name]) for x in v] if name in digits else v for name, v in phase.items()}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer latencies and slots: a minute")
    given = parser.parse_args()
    bench = QUICK if given.quick else Bench()

    def tell(phase: LatencyPhase) -> None:
        sizes = "paper's sizes" if phase.padded else "own sizes"
        print(f"{phase.mode}-task, {sizes}, {1e3 * phase.latency:g} ms one way", flush=True)

    phases = measure(bench, tell)
    write(given.out, phases, "python benchmarks/measure_overhead.py" + " --quick" * given.quick)
    print(f"{given.out}: {len(phases)} phases of {bench.slots} slots")


if __name__ == "__main__":
    main()
