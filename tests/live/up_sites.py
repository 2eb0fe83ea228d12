"""A site under ``tapfinger up``, as its user has it: a state directory, and commands in real processes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from live.sites import CONFIG, python
from waiting import PATIENCE, wait_for

from tapfinger.live.http.client import Client
from tapfinger.live.local_site import LocalSite
from tapfinger.live.state_dir import noted

#: Says when it begins, waits until it is let go.
WAITS = """
import os, time
open("begun." + os.environ["TAPFINGER_ATTEMPT"], "w").close()
while not os.path.exists("go"): time.sleep(0.02)
"""


class UpSite:
    """A directory for one site, and the commands that its user types."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.config = directory / "site.toml"
        self.config.write_text(CONFIG)
        self._clients: list[Client] = []
        self._ups: list[subprocess.Popen[str]] = []

    def words(self, command: str, *more: str) -> list[str]:
        given = ["--config", str(self.config)] if command == "up" and "--config" not in more else []
        return [sys.executable, "-m", "tapfinger", command, "--state", str(self.state), *given, *more]

    def call(self, command: str, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        environment = {**os.environ, **env}
        return subprocess.run(
            self.words(command, *more), capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
        )

    def start(self, *more: str) -> subprocess.Popen[str]:
        """``up`` in the foreground; what it says goes to the file ``said``."""
        with (self.directory / "said").open("w") as said:
            self._ups.append(subprocess.Popen(self.words("up", *more), stdout=said, stderr=said, text=True))
        return self._ups[-1]

    def said(self) -> str:
        return (self.directory / "said").read_text()

    def up(self, *more: str) -> subprocess.Popen[str]:
        """``up`` in the foreground, once everything runs."""
        process = self.start(*more)
        wait_for(lambda: "End it with" in self.said() or process.poll() is not None)
        assert process.poll() is None, self.said()
        return process

    def note(self, part: str) -> dict[str, Any] | None:
        path = f"{part}.json" if part in ("coordinator", "up") else f"agents/{part}/process.json"
        return noted(self.state / path)

    def pid(self, part: str) -> int:
        note = self.note(part)
        assert note is not None, f"{part} does not run"
        return int(note["pid"])

    def kill(self, part: str) -> int:
        """Kill a process; returns its pid."""
        pid = self.pid(part)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.note(part) is None)
        return pid

    def client(self) -> Client:
        note = wait_for(lambda: self.note("coordinator"))
        self._clients.append(Client(note["url"], (self.state / "token").read_text().strip()))
        self._clients[-1].patience = PATIENCE
        return self._clients[-1]

    def task(self) -> int:
        """A task that runs until it is let go."""
        (task,) = self.client().submit(python(WAITS, cwd=str(self.directory)))
        wait_for((self.directory / "begun.1").exists)
        return task

    def let_go(self, task: int) -> None:
        """Let the task end, and see that it was never disturbed."""
        (self.directory / "go").touch()
        info = self.client().wait(task, PATIENCE)
        assert (info.code, info.attempt, info.losses) == (0, 1, 0)

    def try_line(self, *more: str) -> None:
        """Start the site, and type the line that ``up`` prints to try it."""
        told = self.call("up", "--detach", *more)
        assert told.returncode == 0, told.stderr
        (line,) = re.findall(r"^Try: +tapfinger (.*)$", told.stdout, re.MULTILINE)
        command = [sys.executable, "-m", "tapfinger", *shlex.split(line)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr

    def left(self) -> list[str]:
        """Processes that have to do with this directory."""
        return subprocess.run(
            ["pgrep", "-af", str(self.directory)], capture_output=True, text=True, check=False
        ).stdout.splitlines()

    def close(self) -> None:
        LocalSite(self.state).down()
        for client in self._clients:
            client.close()
        for up in self._ups:
            if up.poll() is None:
                up.kill()
            up.wait()
        assert self.left() == []
