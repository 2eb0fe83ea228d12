"""Settings for all tests, and fixtures that tests of several folders share."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from engines.postgres import PostgresServer

# The same examples on every run, and no limits in seconds: machines are shared.
settings.register_profile(
    "tapfinger",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tapfinger")

# Under nohup, and in the background of a script, these are ignored, and so they would be by all that tests start.
for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)

#: Folders that only `make test-all` runs. Every test in one carries the folder's name as a marker.
FOLDERS = ("engines", "soak")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for each process that runs tests, started when the first test asks for it."""
    from engines.postgres import PostgresServer, binaries

    if binaries() is None:
        pytest.skip("there is no PostgreSQL on this machine: install Debian's postgresql, or put its programs in PATH")
    # Not pytest's own directory: nobody else may enter that, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="tapfinger-pg-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder) / "server")
        yield server
        server.close()
