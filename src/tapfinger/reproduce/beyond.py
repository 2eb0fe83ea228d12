"""Figures beyond the paper: load, scale, robustness, tails, and what our own additions bring."""

from __future__ import annotations

from tapfinger.reproduce.declare import OURS, Figure, Less, Setting

_MAIN = (OURS, "greedy", "optimus-central")
_LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)

LOAD = Figure(
    "load",
    "From an idle site to overload",
    "",
    "multi-3 at 0.3 to 1.2 of the greatest sustainable throughput (resources alone, perfectly packed).",
    tuple(Setting(f"load {load:g}", "multi-3", load=load, x=load) for load in _LOADS),
    (
        *_MAIN,
        "optimus",
        "optimus-first-wins",
        "optimus-static",
        "optimus-published",
        "tiresias-elastic",
        "tiresias",
        "tiresias-nonpreemptive",
        "random",
        "min",
        "fifo",
        "shortest-first",
        "exploring",
        "lookahead",
        "universal",
        "tapfinger+lookahead",
    ),
    ("sweep", "gaps"),
    (
        Less(
            "Up to a load of 0.9, TapFinger is better than Greedy and Optimus",
            ("greedy", "optimus-central"),
            settings=tuple(f"load {load:g}" for load in _LOADS if load <= 0.9),
        ),
        Less(
            "Beyond it, too",
            ("greedy", "optimus-central"),
            settings=tuple(f"load {load:g}" for load in _LOADS if load > 0.9),
        ),
    ),
    seeds=30,
    quick_seeds=10,
    axis="load",
    notes=("multi-3 itself lies at 0.875; its model was not trained at all of these loads.",),
)

_COUNTS = (3, 6, 12, 25, 50, 100)

SCALING = Figure(
    "scaling",
    "From 3 to 100 clusters",
    "",
    "multi-3 with more clusters and as many more tasks (64 per cluster) and arrivals (one per cluster and "
    "slot): quality, "
    "and the time of a decision.",
    tuple(
        Setting(
            f"{count} clusters",
            "multi-3",
            (f"clusters.edge.count={count}", f"arrivals.rate={count}", f"tasks={64 * count}"),
            x=float(count),
            quick=(f"tasks={64 * min(count, 12) + 8 * max(0, count - 12)}",),
        )
        for count in _COUNTS
    ),
    _MAIN,
    ("sweep", "cost"),
    (
        Less("TapFinger is better than Greedy at every size", ("greedy",)),
        Less("TapFinger is better than Optimus at every size", ("optimus-central",)),
    ),
    seeds=20,
    quick_seeds=10,
    axis="clusters",
    log_axis=True,
    notes=(
        "Only three clusters have a model of their own; elsewhere TapFinger takes the universal one, which also lends "
        "running tasks what is spare.",
    ),
)

_AMPLITUDES = (0.0, 0.05, 0.1, 0.2, 0.3)

NOISE = Figure(
    "noise",
    "Noise in progress",
    "",
    "synthetic-3 with noise of 0 to 0.3 on each slot's progress; models were trained with 0.1.",
    tuple(
        Setting(f"noise {amplitude:g}", "synthetic-3", (f"noise.amplitude={amplitude}",), x=amplitude)
        for amplitude in _AMPLITUDES
    ),
    (*_MAIN, "tiresias"),
    ("sweep", "gaps"),
    (Less("Whatever the noise, TapFinger is better than Greedy and Optimus", ("greedy", "optimus-central")),),
    quick_seeds=20,
    axis="amplitude of the noise on a slot's progress",
)

_FACTORS = (1, 2, 4, 8)

BURSTS = Figure(
    "bursts",
    "Bursts of arrivals",
    "",
    "multi-3 with the same mean rate, in bursts of 10 slots a fifth of the time, with 1 to 8 times the calm rate.",
    tuple(
        Setting(
            f"bursts of {factor} times",
            "multi-3",
            (f'arrivals={{kind="bursty", rate=3, burst_factor={factor}, burst_share=0.2, burst_slots=10}}',),
            x=float(factor),
        )
        for factor in _FACTORS
    ),
    (*_MAIN, "tiresias-elastic"),
    ("sweep", "gaps"),
    (Less("However bursty, TapFinger is better than Greedy and Optimus", ("greedy", "optimus-central")),),
    quick_seeds=30,
    axis="rate in a burst over the calm rate",
)

OUTAGE = Figure(
    "outage",
    "A cluster that fails mid-run",
    "",
    "The first cluster of multi-3 is lost in slot 20 and returns 20 slots later; its tasks start again elsewhere.",
    (
        Setting("all clusters up", "multi-3"),
        Setting("one fails", "multi-3", ("outages=[{cluster=0, start=20, end=40}]",)),
    ),
    (*_MAIN, "tiresias-elastic", "min"),
    ("settings", "accumulation"),
    (
        Less(
            "With one of three clusters away, TapFinger is still better than Greedy and Optimus",
            ("greedy", "optimus-central"),
            settings=("one fails",),
        ),
    ),
    quick_seeds=30,
    notes=("The load of 0.875 becomes 1.3: what is left of the site is overloaded while the cluster is away.",),
)

FAIRNESS = Figure(
    "fairness",
    "Tails and overtaking",
    "",
    "A short mean can hide a few tasks that wait for very long. 95th and 99th percentile, longest completion "
    "time, and how "
    "many tasks are overtaken by later ones.",
    tuple(Setting(name, name) for name in ("synthetic-3", "synthetic-6", "multi-3", "hetero-6")),
    _MAIN,
    ("tails",),
    (
        Less("The 99th percentile is below Greedy's", ("greedy",), measure="p99"),
        Less("The 99th percentile is below Optimus'", ("optimus-central",), measure="p99"),
        Less("The longest completion time is below Greedy's", ("greedy",), measure="max"),
        Less("Fewer tasks are overtaken than with Greedy", ("greedy",), measure="overtaken_share"),
    ),
    measure="p99",
)

ADDITIONS = Figure(
    "additions",
    "What our own additions bring",
    "",
    "multi-3: the shipped model as it is, without its guard rails, with lending, with lookahead on top, the "
    "universal model, and the paper's own training (MAPPO from scratch).",
    (Setting("multi-3", "multi-3"),),
    (OURS, "without guards", "lending", "tapfinger+lookahead", "lookahead", "universal", "mappo", "greedy"),
    ("differences", "completion"),
    (
        Less("Our training is better than the paper's", ("mappo",)),
        Less("Lookahead with the network is better than the network alone", (OURS,), one="tapfinger+lookahead"),
        Less("Lending is better than sizing a task once", (OURS,), one="lending"),
        Less("The network is better than lookahead without one", ("lookahead",)),
        Less("Guard rails shorten the longest completion time", ("without guards",), measure="max"),
    ),
    quick_seeds=20,
    notes=("The paper's own method (`--preset paper-small`) had 0.7 million env-steps; the paper has 8 million.",),
)

LEARNING_PARTS = Figure(
    "learning-parts",
    "What each part of the network and its training brings",
    "",
    "multi-3: five networks with 200,000 env-steps of training each. Brief: the shipped kind of network, imitation of "
    "Greedy on 60 workloads, then policy gradient with the mean of a group of rollouts as baseline. The others differ "
    "from it in one thing. No own features: a node is told of its neighbours only, as in the published code. Joint "
    "head: all amounts are drawn at once, as in the paper, not one after the other. Critic: the paper's MAPPO (critic, "
    "GAE, each agent's own reward) in place of the group. Cold start: no imitation.",
    (Setting("multi-3", "multi-3"),),
    ("brief", "no own features", "joint head", "critic", "cold start", "greedy"),
    ("differences", "completion"),
    (
        Less("A node's own features help", ("no own features",), one="brief"),
        Less("The factored head is better than the joint one", ("joint head",), one="brief"),
        Less("A group of rollouts is a better baseline than a critic", ("critic",), one="brief"),
        Less("Imitation is a better start than chance", ("cold start",), one="brief"),
        Less("A brief training is enough to be better than Greedy", ("greedy",), one="brief"),
    ),
    quick_seeds=30,
    notes=(
        "One training run each: what differs little here may differ the other way round with another seed. The shipped "
        "models had more training and another stage in it (deviations, docs/training.md).",
    ),
)

_AXES = ("synthetic-3", "synthetic-6", "multi-3", "hetero-6", "short-long-3")

OPTIMUS = Figure(
    "optimus",
    "Optimus as published, and corrected",
    "",
    "The paper's Optimus was fitted with the axes of CPU and GPU exchanged. What that is worth, and what the "
    "rule by which "
    "waiting tasks are admitted is worth.",
    tuple(Setting(name, name) for name in _AXES),
    ("optimus-published", "optimus-first-wins", "optimus", "optimus-central"),
    ("settings",),
    (
        Less(
            "With the axes right, Optimus is better than as published, where resources matter",
            ("optimus-published",),
            one="optimus-first-wins",
            settings=_AXES[:4],
        ),
        Less(
            "Central admission is better than drawing, conflicts to the first",
            ("optimus-first-wins",),
            one="optimus-central",
        ),
    ),
)

DEVIATIONS = Figure(
    "deviations",
    "Where text and published code differ",
    "",
    "The paper's text and the published code disagree in some settings (docs/deviations.md). What each choice changes.",
    (
        Setting("synthetic-3", "synthetic-3"),
        Setting("no noise", "synthetic-3", ("noise.amplitude=0.0",)),
        Setting("by bandwidth", "synthetic-3", ("eligibility.kind=bandwidth",)),
        Setting(
            "minimum (1, 1)",
            "synthetic-3",
            tuple(f"task_types.{name}.minimum={{cpu=1, gpu=1}}" for name in ("insensitive", "sensitive")),
        ),
        Setting("multi-3", "multi-3"),
        Setting("multi-3, rate 2", "multi-3", ("arrivals.rate=2",)),
        Setting("short-long-3", "short-long-3"),
        Setting("11 slots", "short-long-3", ("task_types.long.speed.slots=11",)),
    ),
    (OURS, "greedy", "optimus-central", "optimus-published", "tiresias-elastic", "min"),
    ("settings",),
    (Less("Whatever is meant, TapFinger is better than a corrected Optimus", ("optimus-central",)),),
    quick_seeds=20,
)

BEYOND = (LOAD, SCALING, NOISE, BURSTS, OUTAGE, FAIRNESS, ADDITIONS, LEARNING_PARTS, OPTIMUS, DEVIATIONS)
