"""A scheduler around another: the base class of whatever times, logs, explains or corrects a scheduler's decisions."""

from __future__ import annotations

from tapfinger.core.contract import Decision, LearningScheduler, Scheduler, SchedulerContext, Snapshot


class SchedulerWrapper:
    """Forwards everything to the scheduler inside; a subclass overrides what it changes.

    ``one_shot`` and ``name`` are those of the inner scheduler, so that a wrapped scheduler is called as often, and is
    called the same in messages, as it would be without the wrapper.
    """

    def __init__(self, inner: Scheduler) -> None:
        """Wrap ``inner``, which may be a wrapper itself."""
        self.inner = inner
        self.one_shot = inner.one_shot
        self.name = name_of(inner)

    @property
    def counters(self) -> dict[str, int]:
        """How often each rule of the inner scheduler came into play in this run, where it declares that."""
        return dict(getattr(self.inner, "counters", {}))

    def reset(self, context: SchedulerContext) -> None:
        """Reset the inner scheduler for a new run."""
        self.inner.reset(context)

    def learn(self, context: SchedulerContext) -> None:
        """Tell the inner scheduler of changed speed profiles, if it wants to hear of them."""
        if isinstance(self.inner, LearningScheduler):
            self.inner.learn(context)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide as the inner scheduler does."""
        return self.inner.decide(snapshot)


def name_of(scheduler: Scheduler) -> str:
    """What messages call a scheduler: its ``name`` if it has one, otherwise its class."""
    return getattr(scheduler, "name", type(scheduler).__name__)
