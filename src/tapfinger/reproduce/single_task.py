"""The paper's single-task figures. Numbers under ``published`` and ``paper`` are the paper's own."""

from __future__ import annotations

from tapfinger.reproduce.declare import OURS, PAPER_METHOD, Figure, Flat, Less, Setting
from tapfinger.reproduce.styles import PAPER_ABLATION, paper_labels, paper_training

_SINGLE = (OURS, "greedy", "optimus-central", "optimus-published", "tiresias", "random", "min")
#: With the paper's own method, on the scenario that it is trained on.
_WITH_METHOD = (OURS, PAPER_METHOD, *_SINGLE[1:])
_HEURISTICS = ("tiresias", "random", "min")

_GREEDY = "TapFinger has a shorter mean completion time than Greedy, which the paper does not compare with"


def beats_greedy(low: float, high: float, settings: tuple[str, ...] = ()) -> Less:
    """Our own claim in every figure, with the reduction in percent that we expect."""
    return Less(_GREEDY, ("greedy",), settings=settings, expected=(low, high))


SYNTHETIC_3 = Figure(
    "synthetic-3",
    "Single-task scheduling, synthetic tasks, 3 clusters",
    "Fig. 5a, 5b",
    "192 synthetic tasks on three clusters, one start per cluster and slot, resizing costs half a slot.",
    (
        Setting(
            "synthetic-3",
            "synthetic-3",
            published={
                OURS: 6.42,
                "optimus-published": 8.56,
                "tiresias": 14.66,
                "random": 12.84,
                "min": 12.74,
            },
        ),
    ),
    _WITH_METHOD,
    ("completion", "accumulation", "differences"),
    (
        Less(
            "The mean completion time is 25.1 % below that of Optimus",
            ("optimus-central",),
            published=("optimus-published",),
            percent=25.1,
            paper="6.42 against 8.56 slots, -25.1 %",
            expected=(12.0, 22.0),
        ),
        Less(
            "The median completion time is 28.6 % below that of Optimus",
            ("optimus-central",),
            published=("optimus-published",),
            measure="median",
            percent=28.6,
            paper="-28.6 %",
        ),
        Less(
            "Tiresias, Random and Min are behind",
            _HEURISTICS,
            paper="6.42 against 14.66, 12.84 and 12.74",
            expected=(60.0, 80.0),
        ),
        Less(
            "Least task accumulation: fewer tasks in the system at its fullest",
            ("optimus-central", *_HEURISTICS),
            published=("optimus-published", *_HEURISTICS),
            measure="in_system_max",
            paper="by its picture",
        ),
        beats_greedy(1.0, 5.0),
    ),
    labels=paper_labels("synthetic-3"),
    optional=paper_training("synthetic-3"),
)

SYNTHETIC_6 = Figure(
    "synthetic-6",
    "Single-task scheduling, synthetic tasks, 6 clusters",
    "Fig. 5c, 5d",
    "The same with six clusters, 384 tasks and four arrivals per slot.",
    (
        Setting(
            "synthetic-6",
            "synthetic-6",
            published={OURS: 7.31, "optimus-published": 9.20, "tiresias": 15.05, "random": 13.99, "min": 15.20},
        ),
    ),
    _SINGLE,
    ("completion", "accumulation", "differences"),
    (
        Less(
            "The mean completion time is at least 20.5 % below all baselines",
            ("optimus-central", *_HEURISTICS),
            published=("optimus-published", *_HEURISTICS),
            percent=20.5,
            paper="7.31 against 9.20 (Optimus), -20.5 %",
            expected=(12.0, 22.0),
        ),
        beats_greedy(1.0, 5.0),
    ),
)

_RATES = (
    (4, (7.31, 9.20, 15.05, 13.99, 15.20)),
    (3, (4.98, 7.61, 13.76, 7.35, 13.33)),
    (2, (4.25, 6.98, 13.67, 6.93, 12.89)),
)

ARRIVAL_RATES = Figure(
    "arrival-rates",
    "Other arrival rates, 6 clusters",
    "Fig. 6",
    "synthetic-6 at four, three and two arrivals per slot: does one policy serve lighter loads too?",
    tuple(
        Setting(
            f"rate {rate}",
            "synthetic-6",
            (f"arrivals.rate={rate}",),
            x=float(rate),
            published=dict(zip((OURS, "optimus-published", "tiresias", "random", "min"), means, strict=True)),
        )
        for rate, means in _RATES
    ),
    _SINGLE,
    ("sweep", "gaps"),
    (
        Less(
            "At every rate the mean completion time is below all baselines'",
            ("optimus-central", *_HEURISTICS),
            published=("optimus-published", *_HEURISTICS),
            paper="4.98 against 7.35 at rate 3, 4.25 against 6.93 at rate 2",
        ),
        Less(
            "At rate 3 it is 32.2 % below the best baseline (Random)",
            ("optimus-central", *_HEURISTICS),
            published=("optimus-published", *_HEURISTICS),
            percent=32.2,
            paper="4.98 against 7.35",
            settings=("rate 3",),
        ),
        beats_greedy(0.5, 5.0),
    ),
    axis="arrivals per slot",
)

VANILLA = Figure(
    "vanilla",
    "Against vanilla multi-agent learning",
    "Fig. 8",
    "The same learner without graph network and pointer: stacked state, oldest task first.",
    (Setting("synthetic-3", "synthetic-3", published={OURS: 6.42, "vanilla": 16.23}),),
    (OURS, "vanilla", PAPER_METHOD, PAPER_ABLATION),
    ("completion", "accumulation"),
    (
        Less(
            "The mean completion time is 60.4 % below that of vanilla MARL",
            ("vanilla",),
            percent=60.4,
            paper="6.42 against 16.23",
            expected=(45.0, 65.0),
        ),
        Less(
            "With the training of the paper's method for both, it is 60.4 % below",
            (PAPER_ABLATION,),
            one=PAPER_METHOD,
            percent=60.4,
            paper="6.42 against 16.23",
        ),
    ),
    notes=(
        "The vanilla network was trained by our recipe, which is stronger than the paper's.",
        "The paper's, one part less: vanilla, with the training of the paper's method.",
    ),
    labels=paper_labels("synthetic-3", "vanilla"),
    optional=paper_training("synthetic-3", "vanilla"),
    compares_networks=True,
)

_TESTBED_NOTE = (
    "The paper's test-bed runs rest on a wrong progress rule that made tasks nearly insensitive to what they got; here "
    "they run at their profiles' speeds, so times are longer and cannot be compared with the paper's."
)


_SMALLER = Less(
    "Trained with 16 CPUs and 8 GPUs per cluster at rate 4, it is better than all baselines with 32 and 16 at 1.5",
    ("optimus-central", *_HEURISTICS),
    one="trained smaller",
    published=("optimus-published", *_HEURISTICS),
    paper="how its test-bed policies were trained",
)
_TRAINS_SMALLER = {
    "trained smaller": "tapfinger train testbed-3 --set 'clusters.edge.capacity={cpu=16,gpu=8}' --set arrivals.rate=4 "
    "--name testbed-3-smaller"
}


def _testbed(name: str, paper: str, percent: float, published: dict[str, float], tasks: int) -> Figure:
    clusters = name[-1]
    return Figure(
        name,
        f"Single-task scheduling, test-bed tasks, {clusters} clusters",
        paper,
        f"{tasks} test-bed tasks on {clusters} clusters of 32 CPUs and 16 GPUs.",
        (Setting(name, name, published=published),),
        _SINGLE if clusters != "3" else (*_SINGLE, "trained smaller"),
        ("completion", "accumulation", "differences"),
        (
            Less(
                f"The mean completion time is {percent} % below that of Optimus",
                ("optimus-central",),
                published=("optimus-published",),
                percent=percent,
                paper=f"{published[OURS]} against {published['optimus-published']}",
                expected=(20.0, 35.0),
            ),
            Less("Tiresias, Random and Min are behind", _HEURISTICS, paper="between -2 and -16 %"),
            *((_SMALLER,) if clusters == "3" else ()),
            beats_greedy(2.0, 10.0),
        ),
        optional=_TRAINS_SMALLER if clusters == "3" else {},
        seeds=60 if tasks < 2000 else 20,
        quick_seeds=30 if tasks < 2000 else 10,
        notes=(_TESTBED_NOTE,),
    )


TESTBED_3 = _testbed(
    "testbed-3",
    "Fig. 9a, 9b",
    13.7,
    {OURS: 4.66, "optimus-published": 5.39, "tiresias": 5.57, "random": 5.03, "min": 4.92},
    1000,
)
TESTBED_6 = _testbed(
    "testbed-6",
    "Fig. 9c, 9d",
    10.4,
    {OURS: 4.73, "optimus-published": 5.28, "tiresias": 5.58, "random": 4.96, "min": 4.83},
    2000,
)

_LENGTHS = (500, 1000, 2000, 4000, 8000)

GROWING = Figure(
    "growing",
    "Growing workload",
    "Fig. 10a",
    "testbed-6 with 500 to 8000 tasks: do completion time and the cost of a decision stay flat?",
    tuple(
        Setting(
            f"{tasks} tasks",
            "testbed-6",
            (f"tasks={tasks}",),
            x=float(tasks),
            least_seeds=30 if tasks < 2000 else 10,
        )
        for tasks in _LENGTHS
    ),
    (OURS, "greedy", "optimus-central", "optimus-published", "tiresias"),
    ("sweep", "cost"),
    (
        Less(
            "With any number of tasks the mean completion time is 14.5 % below that of Tiresias",
            ("tiresias",),
            percent=14.5,
            paper="-14.5 %",
        ),
        Less(
            "With any number of tasks it is 10 % below that of Optimus",
            ("optimus-central",),
            published=("optimus-published",),
            percent=10.0,
            paper="-10 %",
        ),
        Flat("From 500 to 8000 tasks the mean completion time changes by at most 3 %", 3.0),
        Flat(
            "The time of a decision does not grow with the number of tasks (at most 10 %)",
            10.0,
            growth=True,
            measure="decision_ms_mean",
        ),
    ),
    seeds=20,
    quick_seeds=10,
    axis="tasks",
    log_axis=True,
    notes=(_TESTBED_NOTE,),
)

GPU_LONG = Figure(
    "gpu-long",
    "GPUs in use on the long run",
    "Fig. 10b",
    "Share of GPUs in use in the runs of testbed-6: is the shorter completion time bought with more resources?",
    (Setting("testbed-6", "testbed-6"),),
    (OURS, "greedy", "optimus-central", "optimus-published", "tiresias"),
    ("utilisation",),
    (
        Less(
            "The best completion time is reached with a moderate share of GPUs: less than Optimus uses",
            ("optimus-central",),
            published=("optimus-published",),
            measure="utilisation.gpu",
            paper="by its picture",
        ),
    ),
    seeds=20,
    quick_seeds=10,
    measure="utilisation.gpu",
)
