"""Shows the progress of tasks in terminals."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tapfinger.commands.screen import say

if TYPE_CHECKING:
    from tapfinger.live.http.client import Client, TaskInfo

#: Width of a bar in characters.
WIDTH = 8
#: Seconds between checks of a task, and least progress between two lines.
PULSE, STEP = 1.0, 0.1


def bar(progress: float | None) -> str:
    """``████░░░░  52 %``; empty for a task that reports no progress."""
    if progress is None:
        return ""
    full = int(progress * WIDTH)
    return f"{'█' * full}{'░' * (WIDTH - full)} {int(100 * progress):3d} %"


def numbers(metrics: Mapping[str, float]) -> str:
    """Metrics as text: ``loss 0.31, val_loss 0.4``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def told(info: TaskInfo) -> str:
    """Progress and metrics in one line; empty for a task that reports none."""
    return "  ".join(filter(None, (bar(info.progress), numbers(info.metrics))))


@contextmanager
def lines_of(client: Client, task: int) -> Iterator[None]:
    """Within the context, print a line to standard error whenever a task progresses. ``client``: not used elsewhere."""
    over = threading.Event()

    def follow() -> None:
        said = -STEP
        # A missing answer must not end the command, which waits for the task.
        while not over.wait(PULSE):
            with suppress(Exception):
                info = client.show(task)
                if info.progress is not None and info.progress >= said + STEP:
                    said = info.progress
                    say(f"task {task}: {told(info)}", err=True)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PULSE)
