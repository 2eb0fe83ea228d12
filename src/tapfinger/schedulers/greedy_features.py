"""The greedy schedulers whose advice is a feature of the schema ``profiles``."""

from __future__ import annotations

from tapfinger.profiles.greedy_options import ADVISERS
from tapfinger.schedulers.greedy import Greedy


def make_advisers() -> list[Greedy]:
    """One Greedy per adviser; the encoder lets them learn the site."""
    return [Greedy(**options) for options in ADVISERS]  # type: ignore[arg-type]
