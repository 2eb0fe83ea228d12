"""A backend from outside the package.

tapfinger up --backend examples.nohup_backend:Nohup --backend-option nice=5
"""

import subprocess

from tapfinger.errors import ConfigError, LaunchFailed
from tapfinger.live.backends.base import Run
from tapfinger.live.backends.supervision import Supervised, supervisor_log


class Nohup(Supervised):
    """Runs tasks through ``nohup``, in the background of a shell, with a lower priority if wanted."""

    def __init__(self, nice: int = 0) -> None:
        """``nice``: from 0 to 19; a task with more of it gives way to others."""
        if not 0 <= nice <= 19:
            raise ConfigError(f"nice = {nice} must be from 0 to 19")
        self._nice = nice

    def launch(self, run: Run, command: list[str]) -> int:
        """Let a shell put the supervisor into the background, and say its process id."""
        script = 'nohup nice -n "$1" "${@:3}" > "$2" 2>&1 < /dev/null & echo $!'
        words = ["bash", "-c", script, "bash", str(self._nice), str(supervisor_log(run)), *command]
        shell = subprocess.run(words, env={}, start_new_session=True, capture_output=True, text=True, check=False)
        if not shell.stdout.strip().isdigit():
            raise LaunchFailed(f"nohup did not start task {run.id[0]}: {shell.stderr.strip()}")
        return int(shell.stdout)
