"""A task that freezes its supervisor, which it can where tasks are not isolated, is ended when it is told to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live.sites import RealSite, python
from waiting import wait_for

from tapfinger.core.contract import Phase
from tapfinger.live.backends import supervise

FREEZE = "os.kill(above, signal.SIGSTOP)"
AT_ONCE = f"import os, signal, time; above = os.getppid(); {FREEZE}; time.sleep(600)"
WHEN_TOLD = f"""
import os, signal, time
above = os.getppid()
signal.signal(signal.SIGTERM, lambda *_: {FREEZE})
print("ready", flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize("code", [AT_ONCE, WHEN_TOLD])
def test_a_frozen_supervisor_does_not_protect_its_task(tmp_path: Path, code: str) -> None:
    site = RealSite(tmp_path)
    site.config.write_text(site.config.read_text() + 'isolation = "none"\n')
    try:
        client = site.serve()
        site.agent("left")
        (task,) = client.submit(python(code, clusters=["left"]))
        wait_for(lambda: client.show(task).phase is Phase.RUNNING)
        if code is AT_ONCE:
            note = site.state / "agents" / "left" / "runs" / f"{task}.1" / "pid.json"
            wait_for(lambda: supervise.is_frozen(supervise_pid(note)))
        else:
            wait_for(lambda: b"ready" in b"".join(client.logs(task)))
        client.cancel(task)
        wait_for(lambda: client.show(task).phase is Phase.CANCELLED)
        assert client.wait(client.submit(python("pass", clusters=["left"]))[0]).phase is Phase.FINISHED
    finally:
        site.close()


def supervise_pid(note: Path) -> int:
    return int(json.loads(note.read_text())["pid"]) if note.exists() else 0
