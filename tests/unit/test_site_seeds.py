"""Seeds of drawn sites are for one purpose each."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tapfinger.errors import ConfigError
from tapfinger.workloads.site_seeds import CHOOSING, PURPOSES, REPORTING, purpose_of


def test_no_seed_has_two_purposes() -> None:
    for one, next_ in pairwise(sorted(PURPOSES.values(), key=lambda part: part.first)):
        assert one.first < one.end <= next_.first


@pytest.mark.parametrize("part", PURPOSES.values(), ids=PURPOSES)
def test_a_range_holds_its_first_seed_and_not_its_end(part) -> None:
    assert purpose_of(part.first) is part
    assert purpose_of(part.end - 1) is part
    assert purpose_of(part.end) is not part


def test_a_site_for_another_purpose_is_refused() -> None:
    REPORTING.check(range(910_000, 910_040))
    with pytest.raises(ConfigError, match=r"site 300007 is for choosing, and this is reporting: .* 900000 to 999999"):
        REPORTING.check([910_000, 300_007])
    with pytest.raises(ConfigError, match="site 7 is for nothing yet, and this is choosing"):
        CHOOSING.check([7])
