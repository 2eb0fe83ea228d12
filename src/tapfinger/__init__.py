"""TapFinger: task placement and resource allocation for machine learning on edge clusters."""

from importlib import import_module

__version__ = "0.1.0"

#: Modules of the public names; each is imported on first use, so that ``import tapfinger`` stays quick.
#: Type checkers find the names in __init__.pyi.
_HOME = {
    "tapfinger.config": ("Scenario", "load_scenario", "parse_scenario", "scenario_names"),
    "tapfinger.core.conflict": ("resolve",),
    "tapfinger.core.contract": (
        "VOID",
        "ClusterView",
        "Decision",
        "Mode",
        "Phase",
        "Placement",
        "Proposal",
        "Resize",
        "Scheduler",
        "SchedulerContext",
        "Snapshot",
        "TaskView",
    ),
    "tapfinger.core.feasibility": ("can_start", "largest_allocation"),
    "tapfinger.core.model": ("Resources", "SpeedProfile", "TaskType"),
    "tapfinger.core.wrapper": ("SchedulerWrapper",),
    "tapfinger.envs.joint": ("EdgeJointEnv",),
    "tapfinger.envs.parallel": ("EdgeParallelEnv",),
    "tapfinger.envs.vector": ("EdgeBatchEnv",),
    "tapfinger.errors": ("ConfigError", "InvalidDecision", "TapfingerError"),
    "tapfinger.reporting": ("report",),
    "tapfinger.sim.run": ("RunTotals", "run_scheduler"),
    "tapfinger.workloads.base": ("ArrivalProcess", "Arrivals", "Workload", "WorkloadContext"),
    "tapfinger.workloads.world": ("World", "build_world", "draw_workload"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tapfinger' has no attribute {name!r}")
    found: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, whether imported yet or not."""
    return [*__all__]
