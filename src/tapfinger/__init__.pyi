"""The public names, for type checkers; __init__.py imports them when they are asked for."""

from tapfinger.config import Scenario, load_scenario, parse_scenario, scenario_names
from tapfinger.core.conflict import resolve
from tapfinger.core.contract import (
    VOID,
    ClusterView,
    Decision,
    Mode,
    Phase,
    Placement,
    Proposal,
    Resize,
    Scheduler,
    SchedulerContext,
    Snapshot,
    TaskView,
)
from tapfinger.core.feasibility import can_start, largest_allocation
from tapfinger.core.model import Resources, SpeedProfile, TaskType
from tapfinger.core.wrapper import SchedulerWrapper
from tapfinger.envs.joint import EdgeJointEnv
from tapfinger.envs.parallel import EdgeParallelEnv
from tapfinger.envs.vector import EdgeBatchEnv
from tapfinger.errors import ConfigError, InvalidDecision, TapfingerError
from tapfinger.reporting import report
from tapfinger.sim.run import RunTotals, run_scheduler
from tapfinger.workloads.base import ArrivalProcess, Arrivals, Workload, WorkloadContext
from tapfinger.workloads.world import World, build_world, draw_workload

__version__: str

__all__ = [
    "VOID",
    "ArrivalProcess",
    "Arrivals",
    "ClusterView",
    "ConfigError",
    "Decision",
    "EdgeBatchEnv",
    "EdgeJointEnv",
    "EdgeParallelEnv",
    "InvalidDecision",
    "Mode",
    "Phase",
    "Placement",
    "Proposal",
    "Resize",
    "Resources",
    "RunTotals",
    "Scenario",
    "Scheduler",
    "SchedulerContext",
    "SchedulerWrapper",
    "Snapshot",
    "SpeedProfile",
    "TapfingerError",
    "TaskType",
    "TaskView",
    "Workload",
    "WorkloadContext",
    "World",
    "__version__",
    "build_world",
    "can_start",
    "draw_workload",
    "largest_allocation",
    "load_scenario",
    "parse_scenario",
    "report",
    "resolve",
    "run_scheduler",
    "scenario_names",
]
