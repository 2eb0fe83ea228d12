"""The same broken files as in ``tests/property``, thousands of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import broken
from property.test_broken_files import FILES, check


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_thousands_of_broken_files(name: str, tmp_path: Path, data: st.DataObject) -> None:
    file, sample, read = FILES[name]
    check(read, tmp_path / file, data.draw(broken(sample)))
