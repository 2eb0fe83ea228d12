"""Constructed runs: records whose means are known, without playing anything."""

from __future__ import annotations

import numpy as np

from tapfinger.records import RunRecord
from tapfinger.reproduce.declare import Claim, Figure, Setting
from tapfinger.reproduce.figure_data import FigureData, SettingRuns


def record(scheduler: str, seed: int, mean: float, used: float = 0.5) -> RunRecord:
    """Two tasks whose completion times have this mean."""
    completion = np.array([mean - 0.5, mean + 0.5])
    arrival = np.zeros(2)
    return RunRecord(
        scenario="made-up",
        scheduler=scheduler,
        seed=seed,
        resources=("cpu", "gpu"),
        clusters=("edge",),
        wholes=(),
        hardware=(),
        task_types=("steady",),
        slots=10,
        tasks=2,
        failed=0,
        staged_share=None,
        out_of_memory=None,
        conflicts=0,
        waiting_slots=1,
        in_system_max=2,
        bin_slots=1,
        capacity=np.array([[4, 4]]),
        task=np.arange(2),
        type=np.zeros(2, dtype=np.int64),
        cluster=np.zeros(2, dtype=np.int64),
        arrival=arrival,
        start=arrival,
        end=completion - 1,
        running=completion,
        staging=np.zeros(2, dtype=np.int64),
        overtaken=np.zeros(2, dtype=np.int64),
        allocation=np.ones((2, 2), dtype=np.int64),
        in_system=np.full(10, 1.0),
        waiting=np.zeros(10),
        used=np.full((10, 1, 2), 4 * used),
        idle=np.zeros(2),
        stranded=np.zeros(2),
        held_back=np.zeros(2),
        stranded_by_cluster=np.zeros((1, 2)),
        decision=np.full(4, 0.001),
    )


def measured(means: dict[str, list[float]], *claims: Claim, setting: str = "here", x: float = 1.0) -> FigureData:
    """One setting; scheduler -> a mean per seed."""
    runs = SettingRuns(
        Setting(setting, "multi-3", x=x),
        {name: [record(name, seed, mean) for seed, mean in enumerate(row)] for name, row in means.items()},
        10.0,
    )
    figure = Figure("made-up", "Made up", "Fig. 0", "Nothing.", (runs.setting,), tuple(means), claims=claims)
    return FigureData(figure, {setting: runs})
