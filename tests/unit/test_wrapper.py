"""A scheduler around another: everything is forwarded, and every wrapper of the package is one."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import tapfinger
from tapfinger.config import load_scenario
from tapfinger.core.contract import VOID, Decision, LearningScheduler, Scheduler, SchedulerContext, Snapshot
from tapfinger.core.wrapper import SchedulerWrapper, name_of
from tapfinger.workloads.world import build_world

SOURCE = Path(tapfinger.__file__).parent


class Inner:
    """Notes what it is called with."""

    one_shot = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def reset(self, context: SchedulerContext) -> None:
        self.calls.append(("reset", context))

    def decide(self, snapshot: Snapshot) -> Decision:
        self.calls.append(("decide", snapshot))
        return VOID


class Learner(Inner):
    """One that keeps tables."""

    name = "learner"

    def learn(self, context: SchedulerContext) -> None:
        self.calls.append(("learn", context))


CONTEXT = build_world(load_scenario("multi-3")).context(0)
EMPTY = Snapshot(0, 0, (), ())


def test_everything_is_forwarded() -> None:
    inner = Learner()
    outer = SchedulerWrapper(SchedulerWrapper(inner))
    assert isinstance(outer, Scheduler)
    assert isinstance(outer, LearningScheduler)
    assert (outer.one_shot, outer.name, name_of(outer)) == (True, "learner", "learner")
    outer.reset(CONTEXT)
    outer.learn(CONTEXT)
    assert outer.decide(EMPTY) is VOID
    assert inner.calls == [("reset", CONTEXT), ("learn", CONTEXT), ("decide", EMPTY)]


def test_a_scheduler_that_keeps_no_tables_is_not_told() -> None:
    inner = Inner()
    outer = SchedulerWrapper(inner)
    outer.learn(CONTEXT)
    assert not inner.calls
    assert outer.name == "Inner"


def test_whoever_holds_a_scheduler_and_decides_is_a_wrapper() -> None:
    """A class with ``decide`` whose constructor takes a scheduler would otherwise forward things by hand."""
    own = []
    for module in pkgutil.walk_packages([str(SOURCE)], "tapfinger."):
        text = (SOURCE / Path(*module.name.split(".")[1:])).with_suffix(".py")
        if not text.exists() or "scheduler: Scheduler" not in text.read_text():
            continue
        for name, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if found.__module__ == module.name and hasattr(found, "decide") and not hasattr(found, "_is_protocol"):
                takes = [p.annotation for p in inspect.signature(found).parameters.values()]
                if "Scheduler" in takes and not issubclass(found, SchedulerWrapper):
                    own.append(f"{module.name}.{name}")
    assert own == []
