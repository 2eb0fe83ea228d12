"""The process of a scheduler that is not part of this package: makes it, and answers the coordinator's questions."""

from __future__ import annotations

import ctypes
import io
import json
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from tapfinger.core.contract import (
    Decision,
    LearningScheduler,
    Placement,
    Resize,
    Scheduler,
    SchedulerContext,
    Snapshot,
)
from tapfinger.core.feasibility import check_amounts, check_form
from tapfinger.core.model import TaskType
from tapfinger.core.wrapper import name_of
from tapfinger.errors import InvalidDecision, TapfingerError
from tapfinger.live.coordinator.decisions import told
from tapfinger.live.coordinator.scheduler_process import HEADER, MAX_NAME, NO_MEMORY
from tapfinger.registry import create_scheduler

#: Of prctl(2): the signal to get when the parent ends.
_PARENT_DEATH_SIGNAL = 1
#: Most placements or resizes of a decision; more than tasks that a scheduler ever sees.
MAX_CHANGES = 100_000
#: Most tracebacks that are printed: a scheduler may fail in every round.
MAX_TRACEBACKS = 10
#: Most frames of a traceback that is printed.
MAX_FRAMES = 20


class Reader(pickle.Unpickler):
    """Reads a question of the coordinator; task types that are named are those of the last context."""

    def __init__(self, message: bytes, known: Mapping[str, TaskType]) -> None:
        """``known``: task types by name."""
        super().__init__(io.BytesIO(message))
        self._known = known

    def persistent_load(self, pid: Any) -> TaskType:
        """The task type of this name."""
        return self._known[pid]


class Child:
    """Answers questions about one scheduler, one after the other."""

    def __init__(self, line: socket.socket, scheduler: Scheduler) -> None:
        """``line``: the connection to the coordinator."""
        self._line = line
        self._scheduler = scheduler
        self._known: dict[str, TaskType] = {}
        self._tracebacks = 0

    def serve(self) -> None:
        """Answer until the coordinator is gone."""
        while True:
            (length,) = HEADER.unpack(_read(self._line, HEADER.size))
            what, about = Reader(_read(self._line, length), self._known).load()
            try:
                send(self._line, self._answer(what, about))
            except MemoryError:
                os._exit(NO_MEMORY)
            except BaseException as error:
                if not isinstance(error, TapfingerError) and self._tracebacks < MAX_TRACEBACKS:
                    self._tracebacks += 1
                    sys.stderr.write(shown_traceback(error))
                send(self._line, {"error": told(error)})

    def _answer(self, what: str, about: Any) -> dict[str, Any]:
        if what == "decide":
            return self._decide(about)
        if what == "explain":
            return self._explain(about)
        context: SchedulerContext = about
        self._known = {t.name: t for t in context.task_types}
        if what == "reset":
            self._scheduler.reset(context)
        elif isinstance(self._scheduler, LearningScheduler):
            self._scheduler.learn(context)
        return {}

    def _decide(self, snapshot: Snapshot) -> dict[str, Any]:
        decision = self._scheduler.decide(snapshot)
        check_plain(decision, {task.id: task.type for task in snapshot.tasks()})
        return {
            "placements": [[p.task, p.cluster, list(p.allocation)] for p in decision.placements],
            "resizes": [[r.task, list(r.allocation)] for r in decision.resizes],
            "counters": {str(k)[:MAX_NAME]: int(n) for k, n in dict(getattr(self._scheduler, "counters", {})).items()},
        }

    def _explain(self, top: int) -> dict[str, Any]:
        explain: Any = self._scheduler.explain  # type: ignore[attr-defined]
        agents = explain(top=top).agents
        return {"agents": [[int(a.cluster), [[int(o.task), float(o.probability)] for o in a.options]] for a in agents]}


def shown_traceback(error: BaseException) -> str:
    """Where an error was raised, and what it says, of bounded length."""
    return "".join(traceback.format_tb(error.__traceback__)[-MAX_FRAMES:]) + told(error) + "\n"


def check_plain(decision: Decision, types: Mapping[int, TaskType]) -> None:
    """Refuse a decision that is not made of whole numbers; whether it is legal is for the coordinator to say."""
    if isinstance(decision, Decision):
        for name in ("placements", "resizes"):
            given = getattr(decision, name)
            if isinstance(given, tuple | list) and len(given) > MAX_CHANGES:
                raise InvalidDecision(f"a decision has {len(given)} {name}, and {MAX_CHANGES} are possible")
    check_form(decision)
    entries: list[Placement | Resize] = [*decision.placements, *decision.resizes]
    for entry in entries:
        if (task_type := types.get(entry.task)) is None:
            raise InvalidDecision(f"there is no task {entry.task} in the snapshot; leave it out")
        check_amounts(entry.task, task_type, entry.allocation)
    for placement in decision.placements:
        if type(placement.cluster) is not int:
            raise InvalidDecision(
                f"placement of task {placement.task}: a cluster is named by its index, an int; got "
                f"{placement.cluster!r}"
            )


def send(line: socket.socket, answer: Mapping[str, Any]) -> None:
    """Send an answer to the coordinator."""
    message = json.dumps(answer).encode()
    line.sendall(HEADER.pack(len(message)) + message)


def _read(line: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = line.recv(min(1 << 20, length - len(parts)))
        if not part:
            os._exit(0)  # the coordinator is gone
        parts += part
    return bytes(parts)


def main() -> None:
    """Make the scheduler and serve. Arguments: the connection, the parent's pid, megabytes, how to make it."""
    line = socket.socket(fileno=int(sys.argv[1]))
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[2]):
        os._exit(0)
    most = int(sys.argv[3]) * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    made_of = json.loads(sys.argv[4])
    try:
        scheduler = create_scheduler(made_of["text"], made_of["name"], made_of["options"])
        answer = {
            "one_shot": bool(scheduler.one_shot),
            "name": told_name(scheduler),
            "explains": callable(getattr(scheduler, "explain", None)),
        }
    except MemoryError:
        os._exit(NO_MEMORY)
    except BaseException as error:
        send(line, {"error": str(error) if isinstance(error, TapfingerError) else told(error)})
        os._exit(1)
    send(line, answer)
    Child(line, scheduler).serve()


def told_name(scheduler: Scheduler) -> str:
    """The scheduler's name, printable and of bounded length."""
    return "".join(char for char in str(name_of(scheduler))[:MAX_NAME] if char.isprintable())


if __name__ == "__main__":
    main()
