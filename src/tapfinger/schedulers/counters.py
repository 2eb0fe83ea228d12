"""Counters of the learned scheduler: each is declared here, with a sentence that says what it counts."""

from __future__ import annotations

from typing import Final

#: Name -> what it counts in one run. Rules cannot count anything else; live and Prometheus read them all.
COUNTERS: Final = {
    "fallbacks": "Slots that Greedy decided because the network failed or had used up its time.",
    "failed": "Passes of the network that raised an error or gave no numbers.",
    "over_budget": "Slots in which the network took longer than its time budget.",
    "crowded": "Slots that the thrifty Greedy decided because very many tasks waited.",
    "forced": "Overdue or late tasks that were started without asking the network.",
    "holds": "Times a cluster was held for an overdue task.",
    "refused": "Proposals of the network that were refused because the size was far too slow.",
    "late_starts": "Starts of the network that were given to a late task.",
    "exchanged": "Starts of the network that were given to an older task of the same type.",
    "moved": "Starts of the network that went to another cluster.",
    "lent": "Times a running task was lent spare resources.",
    "made_room": "Tasks that were started because running tasks shrank for them.",
}


class Counting:
    """Base of a rule that counts what it does; an undeclared name raises KeyError."""

    def __init__(self, counters: dict[str, int] | None = None) -> None:
        """``counters``: counters of the scheduler that the rule belongs to; if None, the rule has its own."""
        self.counters = new_counters() if counters is None else counters


def new_counters() -> dict[str, int]:
    """All counters at zero."""
    return dict.fromkeys(COUNTERS, 0)
