"""How far tasks say they are, for terminals."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tapfinger.live.http.client import Client, TaskInfo

#: Characters of a bar.
WIDTH = 8
#: Seconds between looks at a task whose output is shown, and how far it must have come for another line.
PULSE, STEP = 1.0, 0.1


def bar(progress: float | None) -> str:
    """``████░░░░  52 %``; nothing for a task that does not say."""
    if progress is None:
        return ""
    full = int(progress * WIDTH)
    return f"{'█' * full}{'░' * (WIDTH - full)} {int(100 * progress):3d} %"


def numbers(metrics: Mapping[str, float]) -> str:
    """What else it says: ``loss 0.31, val_loss 0.4``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def told(info: TaskInfo) -> str:
    """Progress and numbers in one line; nothing for a task that does not say."""
    return "  ".join(filter(None, (bar(info.progress), numbers(info.metrics))))


@contextmanager
def lines_of(client: Client, task: int) -> Iterator[None]:
    """Meanwhile, a line on standard error whenever a task has come further; ``client`` is used by nobody else."""
    over = threading.Event()

    def follow() -> None:
        said = -STEP
        # An answer that does not come is no reason to end what somebody else waits for.
        while not over.wait(PULSE):
            with suppress(Exception):
                info = client.show(task)
                if info.progress is not None and info.progress >= said + STEP:
                    said = info.progress
                    typer.echo(f"task {task}: {told(info)}", err=True)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PULSE)
