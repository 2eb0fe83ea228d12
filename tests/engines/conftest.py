"""One real Ray cluster on this machine for all tests of Ray, which run in one process one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines.ray_head import Head, ray_head


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    """A head that takes jobs and tasks of those who have its token; its GPUs are declared and not there."""
    with ray_head(cpus=4, gpus=2) as found:
        yield found


@pytest.fixture(scope="session")
def cluster(head: Head) -> Iterator[str]:
    """Address of the head. This process and its children have the token from now on."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in head.environment.items():
            patch.setenv(name, value)
        yield head.address
