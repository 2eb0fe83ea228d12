"""The paper's figures: all of them in order, and the declarations of those without simulated runs."""

from __future__ import annotations

from tapfinger.reproduce.declare import Bound, Figure
from tapfinger.reproduce.multi_task import HETERO_6, MULTI_3, NO_HAN, NO_POINTER, SINGLE_MULTI
from tapfinger.reproduce.single_task import (
    ARRIVAL_RATES,
    GPU_LONG,
    GROWING,
    SYNTHETIC_3,
    SYNTHETIC_6,
    TESTBED_3,
    TESTBED_6,
    VANILLA,
)

MOTIVATION = Figure(
    "motivation",
    "Completion time of one task over CPUs and GPUs",
    "Fig. 2",
    "How long one task takes under every allocation, from the built-in test-bed profiles: what more CPUs and GPUs "
    "bring, and where more of them make it slower.",
    pictures=("profiles",),
    source="profiles",
    claims=(
        Bound(
            "Both resources matter: the slowest allocation of language modeling takes several times as long as the "
            "fastest",
            "spread.language-modeling",
            at_least=2.0,
            unit="times",
            paper="75 to 264 s, 3.5 times",
        ),
        Bound(
            "More is not always faster: with 2 CPUs, image classification on 8 GPUs takes longer than on 2",
            "rebound.image-classification",
            at_least=1.0,
            unit="times",
            paper="34 to 262 s",
        ),
    ),
    notes=("Profiles are formulas fitted to measured durations (docs/profiles.md), not new measurements.",),
)

OVERHEAD = Figure(
    "overhead",
    "Scheduling overhead over real sockets",
    "Fig. 7",
    "Coordinator, relay and six agents are processes of their own and exchange the live system's reports and orders "
    "over TCP. The relay delays every byte by the latency (one way) and lets 1 Mbps pass in each direction of "
    "each link.",
    pictures=("overhead",),
    source="overhead",
    claims=(
        Bound(
            "At 100 ms and 1 Mbps the overhead is under 3 % of a slot of 10 s, single-task",
            "share10.single",
            at_most=3.0,
            unit="%",
            paper="about 0.3 s per task, 3 %",
        ),
        Bound(
            "At 100 ms and 1 Mbps the overhead is under 3 % of a slot of 10 s, multi-task",
            "share10.multi",
            at_most=3.0,
            unit="%",
            paper="negligible",
        ),
        Bound(
            "A scheduling interval of 1 s is possible: the overhead is under 1 s",
            "seconds.multi",
            at_most=1.0,
            unit="s",
            paper="less than 1 s",
        ),
        Bound(
            "Deciding takes less than 3.04 % of the time of communication, single-task",
            "inference.single",
            at_most=3.04,
            unit="%",
            paper="3.04 %",
        ),
        Bound(
            "A cluster's state takes no more than 2 KB per slot",
            "state.multi",
            at_most=2000.0,
            unit="bytes",
            paper="2 KB",
        ),
        Bound(
            "A cluster's actions take no more than 800 bytes per slot",
            "action.multi",
            at_most=800.0,
            unit="bytes",
            paper="800 B",
        ),
    ),
    notes=(
        "Messages are those of the live system, where the coordinator keeps the queue: a report holds what runs, not "
        "what waits, and an order holds the whole command of each task it starts. With padding, messages have the "
        "paper's sizes. Times depend on the machine; benchmarks/measure_overhead.py measures them on yours.",
    ),
)

TRAINING = Figure(
    "training",
    "Training curves",
    "no figure",
    "How completion times of rollouts fall while networks learn: the five runs on multi-3 that gave the models of "
    "learning-parts.",
    pictures=("training",),
    source="training",
    notes=(
        "Logs of these five runs ship with the package; the shipped models of the scenarios had longer ones, by "
        "another stage (deviations). --train makes a short run of that stage (multi-3, 15 updates) and draws it "
        "beside them.",
    ),
)

#: All figures in the order of the paper.
PAPER = (
    MOTIVATION,
    SYNTHETIC_3,
    SYNTHETIC_6,
    ARRIVAL_RATES,
    OVERHEAD,
    VANILLA,
    TESTBED_3,
    TESTBED_6,
    GROWING,
    GPU_LONG,
    MULTI_3,
    HETERO_6,
    SINGLE_MULTI,
    NO_HAN,
    NO_POINTER,
    TRAINING,
)
