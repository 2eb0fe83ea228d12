"""A scheduler around another: the base class for timing, logging, explaining or correcting a scheduler's decisions."""

from __future__ import annotations

from tapfinger.core.contract import Decision, LearningScheduler, Scheduler, SchedulerContext, Snapshot


class SchedulerWrapper:
    """Forwards everything to the scheduler inside; a subclass overrides what it changes.

    ``one_shot`` and ``name`` are those of the inner scheduler, so a wrapped scheduler is called as often, and has the
    same name in messages, as without the wrapper.
    """

    def __init__(self, inner: Scheduler) -> None:
        """Wrap ``inner``, which may be a wrapper itself."""
        self.inner = inner
        self.one_shot = inner.one_shot
        self.name = name_of(inner)

    @property
    def counters(self) -> dict[str, int]:
        """How often each rule of the inner scheduler was applied in this run; empty if it has no counters."""
        return dict(getattr(self.inner, "counters", {}))

    def reset(self, context: SchedulerContext) -> None:
        """Reset the inner scheduler for a new run."""
        self.inner.reset(context)

    def learn(self, context: SchedulerContext) -> None:
        """Tell the inner scheduler about changed speed profiles, if it can learn."""
        if isinstance(self.inner, LearningScheduler):
            self.inner.learn(context)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide as the inner scheduler does."""
        return self.inner.decide(snapshot)


def name_of(scheduler: Scheduler) -> str:
    """Name of a scheduler in messages: its ``name`` if it has one, otherwise its class."""
    return getattr(scheduler, "name", type(scheduler).__name__)
