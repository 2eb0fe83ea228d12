"""What tests of a live site share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def leaks_stay_at_home() -> Iterator[None]:
    """Collect garbage after each file: an open socket that a test has left behind fails that file, and no other.

    Once per file, because with torch it takes some hundredths of a second.
    """
    yield
    gc.collect()
