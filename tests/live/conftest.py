"""What live tests share: a PostgreSQL server per process that runs tests, started when the first test asks for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from live.postgres import PostgresServer, binaries


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    if binaries() is None:
        pytest.skip("there is no PostgreSQL on this machine: install Debian's postgresql, or put its programs in PATH")
    # Not pytest's own directory: nobody else may enter that, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="tapfinger-pg-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server")
        yield server
        server.close()
