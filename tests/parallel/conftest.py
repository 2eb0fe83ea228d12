"""A real Ray cluster on this machine, started as an administrator would; each process of a test run has its own."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ports import free_port


@pytest.fixture(scope="session")
def cluster():
    """Address of a head with two CPUs that asks for a token, which this process and its children have."""
    # Short, since the names of Ray's sockets may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    port = free_port()
    mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in mine}
    os.environ.update(mine)
    # An address of this machine's own: 127.0.0.1 would be replaced by the one other machines see.
    options = [f"--port={port}", "--node-ip-address=127.0.0.2", f"--temp-dir={folder}", "--num-cpus=2"]
    options += ["--include-dashboard=false", f"--object-store-memory={100 << 20}", "--disable-usage-stats"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options]
    log = Path(folder, "head.log")
    with log.open("w") as file:
        head = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    end = time.monotonic() + 100
    while "Ray runtime started" not in log.read_text():
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    yield f"127.0.0.2:{port}"
    head.terminate()  # it ends its own processes
    try:
        head.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    shutil.rmtree(folder, ignore_errors=True)
