"""A real PostgreSQL for tests and benchmarks, as a user who is not root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from itertools import count
from pathlib import Path

import psycopg


def binaries() -> Path | None:
    """Where initdb and postgres are, if they are anywhere: Debian keeps them out of the path."""
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if found := shutil.which("postgres"):
        places.insert(0, Path(found).resolve().parent)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


class PostgresServer:
    """One server with its data in a directory; hands out new databases."""

    def __init__(self, directory: Path) -> None:
        where = binaries()
        assert where is not None
        directory.mkdir(parents=True, exist_ok=True)
        self._socket = directory
        self._numbers = count(1)
        #: PostgreSQL refuses to run as root.
        self._prefix: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(directory, "nobody", "nogroup")
            self._prefix = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        subprocess.run(
            [*self._prefix, where / "initdb", "-D", directory / "data", "-U", "tapfinger", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync"],
            check=True, capture_output=True, cwd=directory,
        )  # fmt: skip
        self._command = [
            *self._prefix, where / "postgres", "-D", directory / "data", "-k", directory, "-c", "listen_addresses=",
            "-c", "max_connections=60", "-c", "shared_buffers=32MB",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start the server, for the first time or again, and wait until it answers."""
        log = self._socket / "log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(self._command, stdout=file, stderr=file, cwd=self._socket)
        deadline = time.monotonic() + 120
        while True:
            try:
                self.run("postgres", "SELECT 1")
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "PostgreSQL does not start"
                time.sleep(0.05)

    def url(self, database: str) -> str:
        return f"postgresql://tapfinger@/{database}?host={self._socket}"

    def run(self, database: str, statement: str) -> None:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def database(self) -> str:
        """Address of a new empty database."""
        name = f"site{next(self._numbers)}"
        self.run("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def close(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once: nobody wants the data any more
        self._process.wait(120)
