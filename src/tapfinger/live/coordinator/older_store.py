"""What agents know and the store does not: an older copy of the store was put in its place.

Then agents have obeyed a later epoch than the store's, or have attempts and tasks that the store has never given out.
The coordinator goes on above all of these numbers, so that nothing is ever given out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tapfinger.errors import AgentRefused
from tapfinger.live.protocol.messages import Report
from tapfinger.live.protocol.records import TaskRecord

#: Furthest that an agent can be ahead, in epochs and tasks, and in attempts of a task beyond those that have ended: not
#: beyond the latest number, which each report could raise again. One that says more is wrong, and must not use up the
#: numbers of everybody.
FAR, FAR_ATTEMPTS = 1_000_000, 1_000
#: The same of attempts of a task that was just submitted, and how many more they may be with each hour since then:
#: after setbacks it rests, so not even one long attempt and five short ones in turn make more (``pauses``).
FIRST_ATTEMPTS, ATTEMPTS_AN_HOUR = 100, 24


def most_attempts(record: TaskRecord, now: float) -> int:
    """Furthest that an agent can be ahead in attempts of a task."""
    hours = max(0.0, now - record.submitted) / 3600.0
    return min(FAR_ATTEMPTS, FIRST_ATTEMPTS + int(ATTEMPTS_AN_HOUR * hours))


def signs(
    report: Report,
    epoch: int,
    next_id: int,
    tasks: Mapping[int, TaskRecord],
    now: float,
    may_run: Callable[[TaskRecord, str], bool],
) -> str:
    """What shows that the agent is ahead of the store; empty if nothing does. Refuses what cannot be true.

    ``may_run``: whether a task may run on a cluster.
    """
    found = ""
    if report.epoch > epoch:
        found = f"its agent has obeyed epoch {report.epoch}, and the store is of epoch {epoch}"
        _refuse(report, report.epoch - epoch, FAR, found)
    for run in report.runs:
        task, attempt = run.id
        record = tasks.get(task)
        if task >= next_id:
            found = found or f"its agent has task {task}, and the store has given out none above {next_id - 1}"
            _refuse(report, task - next_id, FAR, found)
        elif record is not None and attempt > record.attempt:
            found = found or f"its agent has attempt {attempt} of task {task}, and the store knows {record.attempt}"
            _refuse(report, attempt - record.failures - record.losses, most_attempts(record, now), found)
            if not may_run(record, report.cluster):
                raise AgentRefused(
                    f"cluster {report.cluster!r}: its agent has task {task}, which may not run there; give the agent a "
                    "new state directory"
                )
    return found


def _refuse(report: Report, ahead: int, most: int, found: str) -> None:
    if ahead > most:
        raise AgentRefused(
            f"cluster {report.cluster!r}: {found}. That is too far apart for an older copy of the same store; give the "
            "agent a new state directory"
        )
