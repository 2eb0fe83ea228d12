"""What a task may use right now, asked by the task: ``allotment()["cpu"]``.

It needs the standard library alone, so this one file may also be copied beside a task. Whatever is there or not, it
neither raises nor keeps the task waiting.
"""

from __future__ import annotations

import json
import os

#: Environment variable with the path of a file that holds the amounts by resource as a JSON object. It is replaced as
#: a whole whenever they change, so it can be read at any time.
VARIABLE = "TAPFINGER_ALLOTMENT"

_BEGIN, _END = "TAPFINGER_", "S"


def allotment() -> dict[str, float]:
    """Amounts by resource, such as ``{"cpu": 2.0, "gpu": 0.0}``; nothing outside TapFinger.

    They change only for tasks that say that they can (``--resizable``). For others, and where a backend has no way to
    tell its tasks, they are what the task was started with.
    """
    try:
        with open(os.environ[VARIABLE], encoding="utf-8") as file:
            return {str(name): float(amount) for name, amount in json.load(file).items()}
    except (KeyError, OSError, ValueError, AttributeError, TypeError):
        return _at_start()


def _at_start() -> dict[str, float]:
    """From TAPFINGER_CPUS, TAPFINGER_GPUS and the like."""
    found = {}
    for name, text in os.environ.items():
        if name.startswith(_BEGIN) and name.endswith(_END):
            try:
                found[name[len(_BEGIN) : -len(_END)].lower()] = float(text)
            except ValueError:
                continue  # another variable that ends like this
    return found
