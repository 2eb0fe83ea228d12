"""What every pool of workers offers: independent jobs in, results out as they finish.

A job is a module-level function and one picklable argument, so that it can run in this process, in another, or on
another machine. It must draw all randomness from its argument, so that results do not depend on where it ran.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from tapfinger.errors import TapfingerError

Job = TypeVar("Job")
Result = TypeVar("Result")


class JobFailed(TapfingerError):  # noqa: N818 - named for what happened, as the other errors
    """A job raised on a worker; carries its index and the error as text."""

    def __init__(self, index: int, what: str) -> None:
        """``what`` is a sentence, or a traceback if the fault is ours."""
        super().__init__(what)
        self.index = index


class WorkerLost(TapfingerError):  # noqa: N818
    """A worker ended before its job did; carries the index of a lost job."""

    def __init__(self, index: int, what: str) -> None:
        """``what`` states the possible cause and what to do."""
        super().__init__(what)
        self.index = index


class Pool(ABC):
    """Workers that stay between batches. Use as a context: leaving it by an exception drops what still runs."""

    #: Cores of this machine that the user grants; free for other work between batches.
    cores: int = 1

    @abstractmethod
    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """Run all jobs; yields (index of the job, its result) as they finish, in any order.

        The first job that raises ends the batch: with its own exception in this process, with ``JobFailed`` from
        elsewhere. One batch at a time: exhaust the iterator before starting the next; dropping it ends the batch.
        """

    @abstractmethod
    def close(self, now: bool = False) -> None:
        """Release the workers; with ``now``, without waiting for their jobs."""

    def gather(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """All results, in the order of the jobs."""
        found = dict(self.run(function, jobs))
        return [found[index] for index in range(len(jobs))]

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, without waiting after an exception."""
        self.close(now=kind is not None)


@dataclass(frozen=True)
class Raised:
    """Returned in place of a result: not every exception can be sent between processes."""

    what: str


def attempt(function: Callable[[Job], Result], job: Job) -> Result | Raised:
    """A job's result, or its error: a sentence, or a traceback if the fault is ours."""
    try:
        return function(job)
    except TapfingerError as error:
        return Raised(str(error))
    except Exception as error:
        return Raised("it raised\n" + "".join(traceback.format_exception(error)).rstrip())


def unwrap(index: int, made: Result | Raised) -> Result:
    """The result of an attempt; raises ``JobFailed`` if there is none."""
    if isinstance(made, Raised):
        raise JobFailed(index, made.what)
    return made
