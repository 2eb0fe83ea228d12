"""The paper's multi-task figures, and the ablations. ``published`` and ``paper`` are the paper's own numbers."""

from __future__ import annotations

from tapfinger.reproduce.declare import OURS, PAPER_METHOD, Figure, Less, Setting
from tapfinger.reproduce.single_task import beats_greedy
from tapfinger.reproduce.styles import PAPER_ABLATION, paper_labels, paper_training

_MULTI = (OURS, "greedy", "optimus-central", "optimus-published", "tiresias-elastic", "random", "min")
#: The paper compares with preemptive baselines that resize for free in multi-task mode.
_MULTI_HEURISTICS = ("tiresias-elastic", "random", "min")
_PUBLISHED = (
    "optimus-published is a reconstruction, and stronger than the published implementation, of which 8.33 (multi-3) "
    "and 9.07 slots (hetero-6) were measured: a claim that it decides narrowly might hold against that one."
)

MULTI_3 = Figure(
    "multi-3",
    "Multi-task scheduling, 3 clusters",
    "Fig. 11",
    "Many starts per cluster and slot; resizing is free for the preemptive baselines.",
    (
        Setting(
            "multi-3",
            "multi-3",
            published={
                OURS: 4.29,
                "optimus-published": 7.73,
                "tiresias-elastic": 7.55,
                "random": 15.12,
                "min": 28.82,
            },
        ),
    ),
    (OURS, PAPER_METHOD, *_MULTI[1:]),
    ("completion", "accumulation", "utilisation", "differences"),
    (
        Less(
            "The mean completion time is 44.5 % below that of Optimus",
            ("optimus-central",),
            published=("optimus-published",),
            percent=44.5,
            paper="4.29 against 7.73, -44.5 %",
            expected=(7.0, 13.0),
        ),
        Less(
            "The mean completion time is 43.2 % below that of Tiresias",
            ("tiresias-elastic",),
            percent=43.2,
            paper="4.29 against 7.55, -43.2 %",
        ),
        Less("Random and Min are behind", ("random", "min"), paper="4.29 against 15.12 and 28.82"),
        Less(
            "The variance of completion times is below that of all baselines",
            ("optimus-central", *_MULTI_HEURISTICS),
            published=("optimus-published", *_MULTI_HEURISTICS),
            measure="variance",
            paper="significantly reduced",
        ),
        Less(
            "Fewer GPUs are in use than with the preemptive baselines",
            ("optimus-central", "tiresias-elastic"),
            published=("optimus-published", "tiresias-elastic"),
            measure="utilisation.gpu",
            paper="by its picture",
        ),
        Less(
            "Fewer CPUs are in use than with the preemptive baselines",
            ("optimus-central", "tiresias-elastic"),
            published=("optimus-published", "tiresias-elastic"),
            measure="utilisation.cpu",
            paper="by its picture",
        ),
        beats_greedy(1.5, 5.0),
    ),
    notes=("The paper's text says two arrivals per slot; its runs had three, as here.", _PUBLISHED),
    labels=paper_labels("multi-3"),
    optional=paper_training("multi-3"),
)

HETERO_6 = Figure(
    "hetero-6",
    "Multi-task scheduling, 6 clusters of different size",
    "Fig. 12",
    "Clusters of 4 to 32 CPUs and GPUs, six arrivals per slot.",
    (
        Setting(
            "hetero-6",
            "hetero-6",
            published={
                OURS: 4.87,
                "optimus-published": 8.13,
                "tiresias-elastic": 10.79,
                "random": 23.57,
                "min": 33.46,
            },
        ),
    ),
    _MULTI,
    ("completion", "accumulation", "differences"),
    (
        Less(
            "The mean completion time is 40.1 % below that of Optimus",
            ("optimus-central",),
            published=("optimus-published",),
            percent=40.1,
            paper="4.87 against 8.13, -40.1 %",
            expected=(10.0, 18.0),
        ),
        Less(
            "The mean completion time is 54.9 % below that of Tiresias",
            ("tiresias-elastic",),
            percent=54.9,
            paper="4.87 against 10.79, -54.9 %",
        ),
        Less("Random and Min are behind", ("random", "min"), paper="4.87 against 23.57 and 33.46"),
        Less(
            "Less of a long tail: fewer tasks in the system at its fullest",
            ("optimus-central", *_MULTI_HEURISTICS),
            published=("optimus-published", *_MULTI_HEURISTICS),
            measure="in_system_max",
            paper="by its picture",
        ),
        beats_greedy(0.5, 4.0),
    ),
    notes=(_PUBLISHED,),
)

SINGLE_MULTI = Figure(
    "single-multi",
    "One start per slot, or many",
    "Fig. 5 against Fig. 11",
    "The same draws of synthetic-3, once with one start per cluster and slot, once with as many as fit and "
    "free resizing.",
    (
        Setting("single", "synthetic-3", published={OURS: 6.42}),
        Setting("multi", "synthetic-3", ("mode=multi", "switching_cost=0"), published={OURS: 4.29}),
    ),
    (OURS, "greedy", "optimus-central"),
    ("settings",),
    (
        Less(
            "Multi-task scheduling has a shorter mean completion time than single-task scheduling",
            (OURS,),
            settings=("multi",),
            against="single",
            paper="4.29 against 6.42, at another arrival rate",
        ),
        Less(
            "The most tasks that are in the system at once are fewer, too",
            (OURS,),
            measure="in_system_max",
            settings=("multi",),
            against="single",
            paper="by its picture",
        ),
    ),
    notes=(
        "The paper compares runs of different arrival rates (2 and 3 per slot) with and without noise; here only the "
        "mode differs. In multi-task mode TapFinger has the universal model: none was trained on this workload.",
    ),
)

NO_HAN = Figure(
    "no-han",
    "Without the graph network",
    "Fig. 13",
    "The 2 x 2 of graph and hints. A perceptron on each task and its cluster replaces the graph network, as in the "
    "paper, or the graph stays. Hints are numbers that we tell each cluster of the others: its rank, who could start a "
    "task. tapfinger has both, graph only and hints only have one, no-han has neither.",
    (Setting("multi-3", "multi-3", published={OURS: 4.29, "no-han": 5.88, "optimus-published": 7.73}),),
    (OURS, "graph only", "hints only", "no-han", PAPER_METHOD, PAPER_ABLATION, "optimus-central", "optimus-published"),
    ("completion", "accumulation", "differences"),
    (
        Less(
            "With the graph the mean completion time is 27.0 % below that without",
            ("no-han",),
            percent=27.0,
            paper="4.29 against 5.88",
            expected=(-1.0, 2.0),
        ),
        Less("With the graph it is shorter at all", ("no-han",), paper="4.29 against 5.88"),
        Less(
            "Without the graph it is still better than Optimus",
            ("optimus-central",),
            one="no-han",
            published=("optimus-published",),
            paper="5.88 against 7.73",
        ),
        Less(
            "With the training of the paper's method for both, the graph brings 27.0 %",
            (PAPER_ABLATION,),
            one=PAPER_METHOD,
            percent=27.0,
            paper="4.29 against 5.88",
        ),
        Less("Without hints, the graph helps", ("no-han",), one="graph only"),
        Less("With hints, the graph still helps", ("hints only",)),
        Less("Without the graph, hints help", ("no-han",), one="hints only"),
        Less("With the graph, hints still help", ("graph only",)),
    ),
    notes=("The paper's, one part less: no graph, with the training of the paper's method, and no hints in both.",),
    labels=paper_labels("multi-3", "no-han"),
    optional={
        **paper_training("multi-3", "no-han"),
        "graph only": "tapfinger train multi-3 --features paper --name multi-3-graph-only",
    },
    compares_networks=True,
)

NO_POINTER = Figure(
    "no-pointer",
    "Without the pointer",
    "Fig. 14",
    "Tasks of 1 and of 10 slots that gain nothing from more resources; without the pointer the next task is random.",
    (
        Setting(
            "short-long-3",
            "short-long-3",
            published={
                OURS: 8.06,
                "no-pointer": 13.23,
                "optimus-published": 13.33,
                "tiresias-elastic": 35.79,
                "random": 52.97,
                "min": 12.60,
            },
        ),
    ),
    (
        OURS,
        "no-pointer",
        PAPER_METHOD,
        PAPER_ABLATION,
        "greedy",
        "shortest-first",
        "optimus-central",
        "optimus-published",
        *_MULTI_HEURISTICS,
    ),
    ("completion", "accumulation", "differences"),
    (
        Less(
            "With the pointer the mean completion time is 39.1 % below that without",
            ("no-pointer",),
            percent=39.1,
            paper="8.06 against 13.23",
        ),
        Less(
            "With the pointer it is shorter at all", ("no-pointer",), paper="8.06 against 13.23", expected=(3.0, 12.0)
        ),
        Less(
            "With the training of the paper's method for both, the pointer brings 39.1 %",
            (PAPER_ABLATION,),
            one=PAPER_METHOD,
            percent=39.1,
            paper="8.06 against 13.23",
        ),
        Less(
            "Optimus, Tiresias, Random and Min are behind",
            ("optimus-central", *_MULTI_HEURISTICS),
            published=("optimus-published", *_MULTI_HEURISTICS),
            paper="8.06 against 13.33, 35.79, 52.97 and 12.60",
        ),
        beats_greedy(0.2, 3.0),
        Less("TapFinger is better than shortest-first, which the paper does not compare with", ("shortest-first",)),
    ),
    compares_networks=True,
    # Workloads differ widely, and Greedy is close: thirty are too few to tell the two apart.
    quick_seeds=60,
    notes=(
        "Long tasks take 10 slots as the paper says; in its runs they took 11, by a rounding error.",
        "The paper's, one part less: no pointer, with the training of the paper's method.",
    ),
    labels=paper_labels("short-long-3", "no-pointer"),
    optional=paper_training("short-long-3", "no-pointer"),
)
