"""Lets a task ask what it may use right now: ``allotment()["cpu"]``.

This file needs only the standard library, so it can be copied next to a task. It never raises and never blocks, even
outside TapFinger.
"""

from __future__ import annotations

import json
import os

#: Environment variable with the path of a file that holds the amounts by resource as a JSON object. The file is
#: replaced as a whole when the amounts change, so it can be read at any time.
VARIABLE = "TAPFINGER_ALLOTMENT"

_BEGIN, _END = "TAPFINGER_", "S"


def allotment() -> dict[str, float]:
    """Amounts by resource, such as ``{"cpu": 2.0, "gpu": 0.0}``; empty outside TapFinger.

    The amounts change only for tasks submitted as ``--resizable``. For other tasks, and with a backend that cannot
    inform its tasks, they are the amounts at the start of the task.
    """
    try:
        with open(os.environ[VARIABLE], encoding="utf-8") as file:
            return {str(name): float(amount) for name, amount in json.load(file).items()}
    except (KeyError, OSError, ValueError, AttributeError, TypeError):
        return _at_start()


def _at_start() -> dict[str, float]:
    """The amounts in TAPFINGER_CPUS, TAPFINGER_GPUS and the like."""
    found = {}
    for name, text in os.environ.items():
        if name.startswith(_BEGIN) and name.endswith(_END):
            try:
                found[name[len(_BEGIN) : -len(_END)].lower()] = float(text)
            except ValueError:
                continue  # an unrelated variable with the same ending
    return found
