"""A figure of your own: how a scheduler from examples/ compares with Greedy as the load rises.

tapfinger reproduce list examples.patience:FIGURE
tapfinger reproduce examples.patience:FIGURE --quick
"""

from tapfinger.reproduce.declare import Figure, Less, Setting

_LOADS = (0.3, 0.6, 0.9)

FIGURE = Figure(
    name="patience",
    title="A whole cluster for each task, or a part of it",
    paper="",
    about="multi-3 at three loads: is it worth waiting for a whole cluster?",
    settings=tuple(Setting(f"load {load:g}", "multi-3", load=load, x=load) for load in _LOADS),
    schedulers=("greedy", "whole cluster", "fifo"),
    labels={"whole cluster": "examples.whole:Whole"},
    pictures=("sweep",),
    claims=(
        Less("Sharing clusters is better than waiting for a whole one", ("whole cluster",), one="greedy"),
        Less(
            "At a low load, a whole cluster for each task is better than FIFO",
            ("fifo",),
            one="whole cluster",
            settings=("load 0.3",),
        ),
    ),
    seeds=30,
    quick_seeds=10,
    axis="load",
)
