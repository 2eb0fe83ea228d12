"""Options of Greedy that several parts of the package share: the tuned defaults, and those of a network's advisers."""

from __future__ import annotations

from typing import Final

#: Options of ``schedulers.greedy.Greedy`` as tuned; lookahead plays on with variants of them.
GREEDY_DEFAULTS: Final = {"queue_price": 6.0, "calm": 1.5, "patience": 2.2, "max_wait": 10.0, "short_first": 1.5}

#: Saves resources as soon as anything waits and accepts slow sizes: for long queues and long tasks.
THRIFTY_GREEDY: Final = {**GREEDY_DEFAULTS, "calm": 0.0, "patience": 5.0}

#: The greedies whose placements a profile-aware network sees: the one tuned for short queues, one that saves resources
#: as soon as anything waits, and the thrifty one.
ADVISERS: Final = (GREEDY_DEFAULTS, {**GREEDY_DEFAULTS, "calm": 0.0}, THRIFTY_GREEDY)
