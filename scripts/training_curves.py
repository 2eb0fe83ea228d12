"""Write src/tapfinger/reproduce/curves.json from the logs of training runs: LABEL=DIRECTORY ..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tapfinger.reproduce.training_curve import read_log

TARGET = Path(__file__).parents[1] / "src" / "tapfinger" / "reproduce" / "curves.json"


def main() -> None:
    """Keep the part of each log that the figure draws."""
    kept = {}
    for word in sys.argv[1:]:
        label, _, folder = word.partition("=")
        log = read_log(Path(folder))
        kept[label] = {name: [[round(x), round(y, 4)] for x, y in points] for name, points in log._asdict().items()}
    lines = [f"{json.dumps(label)}: {json.dumps(log, separators=(',', ':'))}" for label, log in kept.items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{TARGET}: {', '.join(kept)}")


if __name__ == "__main__":
    main()
