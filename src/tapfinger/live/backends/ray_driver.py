"""The program above each task on a Ray cluster: ``supervise.py`` with a connection to the agent. It runs standalone.

The lease comes over this connection instead of from a file on the agent's disk, and output goes back over it. A thread
maintains the connection and writes the lease to a local file, which the supervisor reads. So the task ends in time if
the connection is cut or stuck.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from tapfinger.live.backends import supervise
    from tapfinger.live.backends.spool import Spool
else:  # files next to this one
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    supervise, Spool = import_module("supervise"), import_module("spool").Spool

#: Seconds between messages to the agent when nothing happens, and seconds to wait for an answer.
BEAT, PATIENCE = 0.3, 5.0
#: Most bytes of output in one message.
PIECE = 256 * 1024
#: Most bytes of output left in Ray's own log if the agent does not take it.
LAST_WORDS = 512 * 1024
#: Prefix of the line in Ray's log that says how the task ended.
MARKER = "tapfinger-end "

#: File to which the task reports its progress, and number of bytes read from its end.
REPORTS, LAST_BYTES = "reports", 4096

#: Prefix of the boot program's message if the agent refuses the attempt.
NO = "the agent does not let this attempt begin"

#: Boot program: fetches the files of a task from the agent, checks their digest, and starts the driver.
BOOT = """
import hashlib, json, os, sys, tempfile, time, urllib.request
url, digest = sys.argv[1:]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
until = time.monotonic() + 60
while True:
    try:
        with opener.open(urllib.request.Request(url + "/begin", data=b"", method="POST"), timeout=20) as answer:
            data = answer.read()
        break
    except OSError as error:
        # An agent that is being restarted is waited for; one that says no is not asked again.
        if getattr(error, "code", 503) != 503 or time.monotonic() > until:
            sys.exit(f"the agent does not let this attempt begin: {error}")
        time.sleep(0.5)
if hashlib.sha256(data).hexdigest() != digest:
    sys.exit("what came from the agent is not what it has announced")
place = tempfile.mkdtemp(prefix="tapfinger-")
for name, text in json.loads(data).items():
    with open(os.path.join(place, name), "w", encoding="utf-8") as file:
        file.write(text)
os.execv(sys.executable, [sys.executable, "-I", "-S", os.path.join(place, "ray_driver.py"), place, url])
"""


def last_line(path: str) -> str:
    """The last complete line of a report file. Only this line is sent: sending it twice does no harm."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read(LAST_BYTES).split(b"\n")
    except OSError:
        return ""
    return lines[-2].decode("utf-8", "replace") if len(lines) > 1 else ""


class CallbackClient:
    """Reports to the agent, and does what the agent answers."""

    def __init__(self, directory: str, url: str) -> None:
        """``directory``: the run's directory on this machine."""
        self._directory = directory
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._spool = Spool(os.path.join(directory, "output"))
        self._have = 0  # bytes of output that the agent has
        self._stopped = ""
        self._boot = supervise.boot_id()

    def say(self, end: dict[str, Any] | None = None) -> bool:
        """Send one message to the agent. Returns whether there is more output. Raises OSError without an answer."""
        at, data = self._spool.read(self._have, PIECE)
        word = {"offset": at, "skipped": at - self._have, "data": base64.b64encode(data).decode(), "end": end}
        word["report"] = last_line(os.path.join(self._directory, REPORTS))
        sent = supervise.clock()
        body = json.dumps(word).encode()
        request = urllib.request.Request(f"{self._url}/beat", body, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 410:
                raise
            said = {"left": 0.0, "stop": "now", "have": self._spool.end}  # the agent has given up this attempt
        # Counted from when the message was sent, so the lease is never longer than the agent intends.
        self._write_lease(sent + said["left"])
        self._have = said["have"]
        self._heed(said["stop"])
        return self._have < self._spool.end

    def _write_lease(self, until: float) -> None:
        path = os.path.join(self._directory, "lease")
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump({"boot": self._boot, "until": until}, file)
        os.replace(f"{path}.part", path)

    def _heed(self, stop: str) -> None:
        if stop and stop != self._stopped:
            self._stopped = stop
            # The file is for a supervisor that has not started yet; the signal is for one that has.
            with open(os.path.join(self._directory, "stop"), "w", encoding="ascii"):
                pass
            os.kill(os.getpid(), signal.SIGUSR1 if stop == "now" else signal.SIGTERM)

    def keep(self, above: int) -> None:
        """Report for as long as this process lives. ``above``: pid of the Ray process that holds the resources."""
        while True:
            more = False
            with suppress(OSError, ValueError, KeyError):
                more = self.say()
            if os.getppid() != above:
                self._heed("now")  # Ray's process is gone, so Ray counts these resources as free
            if not more:
                time.sleep(BEAT)

    def hand_over(self, end: dict[str, Any], patience: float) -> str:
        """Send the end and the rest of the output to the agent. Returns a line for Ray's log.

        ``patience``: seconds to keep trying if the agent does not answer.
        """
        until = time.monotonic() + patience
        while time.monotonic() < until:
            try:
                while self.say():
                    pass
                self.say(end)
                return MARKER + json.dumps({"end": end})
            except (OSError, ValueError, KeyError):
                time.sleep(BEAT)
        at, data = self._spool.read(max(self._have, self._spool.end - LAST_WORDS), LAST_WORDS)
        last = {"end": end, "offset": at, "data": base64.b64encode(data).decode()}
        return MARKER + json.dumps({**last, "report": last_line(os.path.join(self._directory, REPORTS))})


def main(directory: str, url: str) -> int:
    """Run the task of this directory. Returns the task's exit code."""
    # Blocked in this thread and all others: the supervisor waits for these signals, and no other thread may take them.
    signal.pthread_sigmask(signal.SIG_BLOCK, supervise.SIGNALS)
    above = os.getppid()
    with open(os.path.join(directory, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    env = {name: os.environ[name] for name in plan.pop("inherit") if name in os.environ} | plan.pop("env")
    place = plan["cwd"] or os.path.join(directory, "work")
    if plan["cwd"] is None:
        os.mkdir(place)
    env["TAPFINGER_REPORT"] = os.path.join(directory, REPORTS)
    plan |= {"cwd": place, "lease": os.path.join(directory, "lease")}
    for name, data in (("run.json", plan), (supervise.ENVIRONMENT, env)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(data, file)
    line = CallbackClient(directory, url)
    with suppress(OSError, ValueError, KeyError):
        line.say()
    threading.Thread(target=line.keep, args=(above,), daemon=True).start()
    supervise.main(directory)
    with open(os.path.join(directory, "end.json"), encoding="utf-8") as file:
        end = json.load(file)
    last = CallbackClient(directory, url).hand_over(end, plan["linger"])
    sys.stdout.write(f"{last}\n")
    sys.stdout.flush()
    os.chdir("/")
    shutil.rmtree(directory, ignore_errors=True)
    code = end["code"]
    return 1 if code is None else 128 - code if code < 0 else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
