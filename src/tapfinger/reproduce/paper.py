"""The paper's figures: all of them in order, and the declarations of those without simulated runs."""

from __future__ import annotations

from tapfinger.reproduce.declare import PAPER_METHOD, Bound, Figure, Unjudged
from tapfinger.reproduce.multi_task import HETERO_6, MULTI_3, NO_HAN, NO_POINTER, SINGLE_MULTI
from tapfinger.reproduce.premise import LOSS_CURVES, TRANSFER, UNKNOWN
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
        Bound(
            "The slowest allocation of image classification takes 262 s, 7.7 times as long as the fastest",
            "spread.image-classification",
            at_least=262 / 34,
            unit="times",
            paper="34 to 262 s",
        ),
    ),
    notes=(
        "Profiles are formulas fitted to measured durations (docs/profiles.md), not new measurements. For image "
        "classification on 8 GPUs and 2 or 3 CPUs the measured 151 and 127 s are shown. The formula has 262 and 167 s "
        "there, to span the paper's table; its 262 s was measured on 1 CPU, outside the range that the table gives. "
        "Simulated test-bed tasks run by the formula.",
    ),
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
            "At every latency the overhead is under 3 % of a slot of 10 s, single-task",
            "share10.single",
            at_most=3.0,
            unit="%",
            paper="about 0.3 s per task, 3 %",
        ),
        Bound(
            "At every latency the overhead is under 3 % of a slot of 10 s, multi-task",
            "share10.multi",
            at_most=3.0,
            unit="%",
            paper="negligible",
        ),
        Bound(
            "A scheduling interval of 1 s is possible: at every latency the overhead is under 1 s",
            "seconds.multi",
            at_most=1.0,
            unit="s",
            paper="less than 1 s",
        ),
        Bound(
            "At every latency deciding takes less than 3.04 % of the time of communication, single-task",
            "inference.single",
            at_most=3.04,
            unit="%",
            paper="3.04 %",
        ),
        Bound(
            "A cluster's state takes no more than 2 KB per slot, the largest message included",
            "state",
            at_most=2000.0,
            unit="bytes",
            paper="2 KB",
        ),
        Bound(
            "A cluster's actions take no more than 800 bytes per slot, the largest message included",
            "action",
            at_most=800.0,
            unit="bytes",
            paper="800 B",
        ),
    ),
    notes=(
        "Messages are those of the live system, where the coordinator keeps the queue: a report holds what runs, not "
        "what waits, and an order holds the whole command of each task it starts. With padding, messages have the "
        "paper's sizes. Times depend on the machine; benchmarks/measure_overhead.py measures them on yours.",
        "Claims about time are judged at every latency and with both kinds of messages. At 0 ms there is hardly any "
        "communication for deciding to be a share of; the paper's clusters are 10 ms and more apart.",
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
    claims=(
        Bound(
            "With its own method (MAPPO from scratch) the paper's policy learns: its rollouts end at less than half of "
            "what they began with",
            f"fall.{PAPER_METHOD}",
            at_most=50.0,
            unit="% of the first rollouts",
            paper="8 million steps, the best policy is kept",
            otherwise="No log of the paper's own method ships yet; `tapfinger train multi-3 --preset paper-small` "
            "makes one, and scripts/training_curves.py keeps it",
        ),
        Bound(
            "With a discount below one, multi-task training is slower",
            "behind.discount 0.93",
            at_least=0.0,
            unit="% of Greedy",
            paper="a discount below one biases the turns of a slot and slows down convergence",
            otherwise="No log of a training with a discount below one ships, and no option of `tapfinger train` sets "
            "it (`MappoConfig.discount` does). Here a discount counts slots, never the turns of a slot, so that the "
            "bias cannot arise",
        ),
        Unjudged(
            "Large negative rewards for invalid actions make training unstable; a mask does not",
            "Training with penalties is no part of this project, and no command makes it: every network here masks "
            "what is not feasible, so that none can choose it",
            paper="an unstable training curve",
        ),
    ),
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
    UNKNOWN,
    TRANSFER,
    LOSS_CURVES,
    TRAINING,
)
