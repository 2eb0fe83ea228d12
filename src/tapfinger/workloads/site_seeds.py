"""Which seeds of drawn sites are for what. No part shares a seed with another, so that a report shows new sites."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tapfinger.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SiteSeeds:
    """The seeds of one purpose, from ``first`` up to but not including ``end``."""

    purpose: str
    first: int
    end: int

    def __contains__(self, seed: int) -> bool:
        """Whether a seed is for this purpose."""
        return self.first <= seed < self.end

    def check(self, seeds: Iterable[int]) -> None:
        """Refuse sites that are for another purpose, or for none."""
        for seed in seeds:
            if seed not in self:
                other = purpose_of(seed)
                said = "is for nothing yet" if other is None else f"is for {other.purpose}"
                raise ConfigError(
                    f"site {seed} {said}, and this is {self.purpose}: choose sites from {self.first} to "
                    f"{self.end - 1}, such as {self.first}:{self.first + 40}"
                )


#: Sites that networks are trained on, teachers included.
TRAINING = SiteSeeds("training", 100_000, 300_000)
#: Sites on which a checkpoint, a rule or a constant is chosen; looked at as often as needed.
CHOOSING = SiteSeeds("choosing", 300_000, 400_000)
#: Sites of reports. A model is reported once on sites that nobody has looked at, and nothing is changed afterwards.
REPORTING = SiteSeeds("reporting", 900_000, 1_000_000)

PURPOSES = {part.purpose: part for part in (TRAINING, CHOOSING, REPORTING)}


def purpose_of(seed: int) -> SiteSeeds | None:
    """The purpose of a seed; None if it has none."""
    return next((part for part in PURPOSES.values() if seed in part), None)
