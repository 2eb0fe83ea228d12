"""Runs tasks as jobs of a Ray cluster, each under a supervisor on Ray's node that asks the agent for its lease.

Ray chooses the node and counts the resources. Everything else is as with local processes: the same supervisor runs on
Ray's node, and ends the task when the lease ends, even if the agent is dead or the network is cut.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shlex
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapfinger.errors import ConfigError, LaunchFailed, UnsupportedOperation
from tapfinger.live.agent.leases import boot_clock, replace_file
from tapfinger.live.backends import ray_driver, spool, starting, supervise
from tapfinger.live.backends.base import BackendContext, Run
from tapfinger.live.backends.callback_server import CallbackServer, NotYet, Refused, decode_end, decode_word, reported
from tapfinger.live.backends.environment import ALLOWED, task_environment
from tapfinger.live.backends.ray_jobs import LOCAL_ADDRESS, RayJobs, RayUnreachable, in_rays_words
from tapfinger.live.backends.spool import Spool
from tapfinger.live.backends.supervision import task_plan
from tapfinger.live.protocol.messages import AttemptId, Outcome
from tapfinger.reporting import LONGEST

logger = logging.getLogger(__name__)

#: Seconds between checks of a run; seconds that a driver may be silent before Ray is asked about it.
PULSE, SILENCE = 0.1, 3.0
#: Seconds beyond ``stop_seconds`` after which Ray is asked to stop a job that its driver has not stopped.
PATIENCE = 5.0
#: Seconds after its start in which an agent may not have found all runs of an earlier agent.
SETTLING = 10.0
#: Variables that tasks inherit on Ray's node; Ray itself says which accelerators a job has.
INHERITED = (*ALLOWED, "CUDA_VISIBLE_DEVICES")

_FILES = (ray_driver, supervise, starting, spool)


class Ray:
    """Runs each task as a job of a Ray cluster."""

    def __init__(
        self,
        address: str = LOCAL_ADDRESS,
        token: str | None = None,
        callback_address: str | None = None,
        python: str = "python3",
        linger: float = 10.0,
    ) -> None:
        """``address``: Ray's dashboard. ``token``: for Ray; by default ``$RAY_AUTH_TOKEN``.

        ``callback_address``: this machine, as Ray's nodes reach it; by default, its address on the route to Ray.
        ``python``: Python program on Ray's nodes. ``linger``: seconds that an ended task waits for an agent to take its
        output, before its end is written to Ray's log.
        """
        self._linger = linger
        self._jobs = RayJobs(address, token or os.environ.get("RAY_AUTH_TOKEN"))
        self._host = callback_address
        self._python = python
        self._context = BackendContext(Path())
        self._server: CallbackServer | None = None
        self._since = boot_clock()
        self._lock = threading.Lock()  # guards the files in the directories of runs
        self._watches: dict[str, _WatchedRun] = {}
        #: Whether the machine has refused the latest thread.
        self._refused = False
        self._watching = threading.Lock()  # guards these and the server: several threads may start runs at once

    def open(self, context: BackendContext) -> None:
        """Listen for tasks, and warn if the configured capacity exceeds what Ray has: tasks would wait there."""
        if context.cores:
            raise ConfigError("--cores names cores of this machine, but Ray chooses where tasks run; leave it out")
        self._context = context
        self._listen(context.directory)
        try:
            totals = self._jobs.totals()
        except RayUnreachable as error:
            logger.warning("%s; tasks start once it answers", error)
            return
        for name, amount in in_rays_words(context.resources, context.capacity).items():
            has = totals.get(name, 0.0)
            if amount > has:
                logger.warning(
                    "the cluster has %g %s by its configuration, Ray has %g: tasks will wait", amount, name, has
                )

    def close(self) -> None:
        """Stop listening and watching; jobs run on for as long as the lease lasts."""
        for watch in self._watches.values():
            watch.over.set()
        if self._server is not None:
            self._server.close()
        self._jobs.close()

    # ------------------------------------------------------------------ four methods

    def start(self, run: Run) -> None:
        """Write the task's files to its directory, and let a thread hand it to Ray."""
        run.make_directories()
        mark = secrets.token_hex(16)
        plan = task_plan(run, self._context, mark) | {
            "env": task_environment(run, self._context.resources, mark),
            "inherit": INHERITED,
            "cwd": run.launch.cwd,
            "linger": self._linger,
        }
        files = {Path(m.__file__ or "").name: Path(m.__file__ or "").read_text(encoding="utf-8") for m in _FILES}
        replace_file(run.directory / "payload.json", {**files, "plan.json": json.dumps(plan)}, sync=True)
        self._watch(run)

    def resize(self, run: Run, allocation: Mapping[str, float], devices: Mapping[str, tuple[int, ...]]) -> None:  # noqa: ARG002
        """Unsupported: Ray cannot change the resources of a job."""
        raise UnsupportedOperation(f"the ray backend cannot resize a running task ({run.id[0]})")

    def stop(self, run: Run, at_once: bool) -> None:
        """Stop the task with the answer to its driver's next message; a driver that has not asked yet never begins."""
        with self._lock:
            if _read(run, "end.json") is not None:
                return
            if not (run.directory / "begun").exists():
                _write_end(run, Outcome("stopped", reason="it had not started"))
            elif at_once or _read(run, "stop.json") is None:
                replace_file(run.directory / "stop.json", {"how": "now" if at_once else "polite", "at": boot_clock()})
        self._watch(run)

    def poll(self, run: Run) -> Outcome | None:
        """The recorded end of a run; None while any of its processes may be alive."""
        end = _read(run, "end.json")
        if end is None and not (run.directory / "payload.json").exists():
            with self._lock:
                return _write_end(run, Outcome("lost", reason="it was not handed to Ray before the agent ended"))
        if end is None:
            self._watch(run)
            return None
        if (watch := self._watches.pop(_name(run.id), None)) is not None:
            watch.over.set()
        return Outcome(**end)

    # ------------------------------------------------------------------- the driver

    def _listen(self, directory: Path) -> CallbackServer:
        """The server that drivers call; started on first use. ``directory``: the agent's directory."""
        if self._server is None:
            host = self._host or _address_towards(self._jobs.host)
            self._server = CallbackServer(directory / "desk.json", host, self._answer)
        return self._server

    def _watch(self, run: Run) -> None:
        """Start a thread that follows this run to its end, unless there is one.

        Where the machine refuses it, the next look at the run tries again.
        """
        name = _name(run.id)
        with self._watching:
            if name in self._watches:
                return
            # There before the thread: the run's driver may call at once.
            watch = self._watches[name] = _WatchedRun(self, run, self._listen(run.lease.parent))
            try:
                watch.thread.start()
            except (RuntimeError, MemoryError) as error:
                self._watches.pop(name, None)
                if not self._refused:
                    logger.error("task %d cannot be followed: %s; it is tried again", run.id[0], error)
                self._refused = True
            else:
                self._refused = False

    def _answer(self, attempt: str, question: str, said: bytes) -> bytes:
        """Answer a driver's request."""
        watch = self._watches.get(attempt)
        if watch is None and boot_clock() < self._since + SETTLING:
            raise NotYet
        if watch is None:
            raise Refused
        with self._lock:
            if _read(watch.run, "end.json") is not None:
                raise Refused
            watch.heard = boot_clock()
            return self._begin(watch.run) if question == "begin" else self._beat(watch, said)

    def _begin(self, run: Run) -> bytes:
        if (run.directory / "begun").exists() or self._too_late(run):
            raise Refused
        # On disk before the answer: a later agent must know that the task may be running.
        replace_file(run.directory / "begun", {}, sync=True)
        payload = (run.directory / "payload.json").read_bytes()
        replace_file(run.directory / "payload.json", {})  # a task begins once; its environment may hold secrets
        return payload

    def _too_late(self, run: Run) -> bool:
        """Whether the lease has ended. If the run has not begun by then, this is recorded as its end."""
        late = not run.keep and not run.lease_left()
        if late and not (run.directory / "begun").exists():
            _write_end(run, Outcome("stopped", reason="the lease of its agent ended before it began"))
        return late

    def _beat(self, watch: _WatchedRun, said: bytes) -> bytes:
        run = watch.run
        if not (run.directory / "begun").exists():
            raise Refused
        offset, skipped, data, end = decode_word(said)
        self._keep_output(run, offset, skipped, data)
        self._keep_report(watch, reported(said))
        if end is not None:
            replace_file(run.directory / "word.json", end, sync=True)
            watch.news.set()
        stop = _read(run, "stop.json")
        answer = {
            "left": run.lease_left(),
            "stop": stop["how"] if stop is not None else "",
            "have": Spool(run.output).end,
        }
        return json.dumps(answer).encode()

    def _keep_report(self, watch: _WatchedRun, line: str) -> None:
        """Write the task's latest report to the file that the agent reads, unless it is unchanged."""
        if line and line != watch.report:
            watch.report = line
            path = watch.run.reports
            fresh = path.exists() and path.stat().st_size > LONGEST
            with path.open("w" if fresh else "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _keep_output(self, run: Run, offset: int, skipped: int, data: bytes) -> None:
        output = Spool(run.output, self._context.max_log)
        if data and offset - skipped <= output.end:
            output.append(data, offset)

    # --------------------------------------------------------------------- the watch

    def entrypoint(self, run: Run, server: CallbackServer) -> str:
        """The command line that Ray gives to a shell. It contains nothing of the task, not even its arguments."""
        digest = hashlib.sha256((run.directory / "payload.json").read_bytes()).hexdigest()
        words = [self._python, "-I", "-S", "-c", ray_driver.BOOT, server.url(_name(run.id)), digest]
        return "exec " + shlex.join(words)

    def follow(self, watch: _WatchedRun) -> None:
        """Follow a run in a thread of its own, from its submission to Ray until its end."""
        run, ident = watch.run, f"tapfinger-{watch.server.name}-{_name(watch.run.id)}"
        while not watch.over.is_set():
            try:
                if _read(run, "end.json") is not None:
                    return
                self._look(watch, ident)
            except RayUnreachable as error:
                logger.warning("task %d: %s", run.id[0], error)
                watch.over.wait(1.0)
            except Exception:  # a full disk, say; nobody else would follow the task
                logger.exception("task %d could not be followed; it is tried again", run.id[0])
                watch.over.wait(1.0)
            watch.news.wait(PULSE)
            watch.news.clear()

    def _look(self, watch: _WatchedRun, ident: str) -> None:
        run, now = watch.run, boot_clock()
        begun = (run.directory / "begun").exists()
        if not begun:
            with self._lock:
                if self._too_late(run):
                    return
        if not begun and not watch.submitted:
            amounts = in_rays_words(self._context.resources, run.launch.allocation)
            try:
                self._jobs.submit(ident, self.entrypoint(run, watch.server), amounts)
            except LaunchFailed as error:
                self._end(run, Outcome("failed", 127, str(error)))
                return
            watch.submitted, watch.heard = True, boot_clock()
            return
        word = _read(run, "word.json")
        if word is not None:
            # Recording the end frees the resources for other tasks, so Ray must have them back first.
            if self._jobs.gone(ident):
                self._end(run, Outcome(**word))
            return
        stop = _read(run, "stop.json")
        if stop is not None and now > max(stop["at"], watch.urged) + self._context.stop_seconds + PATIENCE:
            watch.urged = now
            self._jobs.stop(ident)  # the driver does not react
        if now > max(watch.heard, watch.asked) + SILENCE:
            watch.asked = now
            if self._jobs.status(ident) not in ("PENDING", "RUNNING") and self._jobs.gone(ident):
                self._conclude(watch, ident)

    def _conclude(self, watch: _WatchedRun, ident: str) -> None:
        """Record the end of a job whose driver has not reported it; Ray's log may tell how the task ended."""
        run, lines = watch.run, self._jobs.log(ident).splitlines()
        for line in reversed(lines):
            if line.startswith(ray_driver.MARKER):
                # The task may have written it: whatever it says, its end must be recorded.
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    last: dict[str, Any] = json.loads(line.removeprefix(ray_driver.MARKER))
                    end = decode_end(last["end"])
                    if "data" in last:
                        word = json.dumps({**last, "skipped": 0}).encode()
                        at, _, data, _ = decode_word(word)
                        self._keep_output(run, at, max(0, at - Spool(run.output).end), data)
                        self._keep_report(watch, reported(word))
                    self._end(run, Outcome(**end))
                    return
        if not (run.directory / "begun").exists():
            self._end(run, self._not_begun(ident, lines))
        elif _read(run, "stop.json") is not None:
            self._end(run, Outcome("stopped", reason="stopped", output=Spool(run.output).end))
        else:
            self._end(run, Outcome("lost", reason="its job on Ray ended before it did", output=Spool(run.output).end))

    def _not_begun(self, ident: str, lines: list[str]) -> Outcome:
        if self._jobs.exit_code(ident) in (126, 127):  # of a shell: the program cannot be executed, or does not exist
            return Outcome("failed", 127, f"the node that Ray chose cannot run {self._python!r}")
        # Only lines of the boot program: Ray's log also contains the agent's address, with its secret.
        why = [line[:300] for line in lines if line.startswith(ray_driver.NO)]
        return Outcome("lost", reason=f"its job on Ray ended before it began{f': {why[-1]}' if why else ''}")

    def _end(self, run: Run, outcome: Outcome) -> None:
        with self._lock:
            _write_end(run, outcome)


class _WatchedRun:
    """A run, and what is known about its job."""

    def __init__(self, backend: Ray, run: Run, server: CallbackServer) -> None:
        self.run = run
        self.server = server
        self.submitted = False
        #: Latest progress report of the task.
        self.report = ""
        #: When the driver last called; when Ray was last asked for the job's status, and to stop the job.
        self.heard, self.asked, self.urged = boot_clock(), 0.0, 0.0
        self.news, self.over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=backend.follow, args=(self,), name=f"run-{_name(run.id)}", daemon=True)


def _name(ident: AttemptId) -> str:
    return f"{ident[0]}.{ident[1]}"


def _read(run: Run, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((run.directory / name).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found


def _write_end(run: Run, outcome: Outcome) -> Outcome:
    """Record the end of a run, unless one is recorded already. Returns the recorded end."""
    end = _read(run, "end.json")
    if end is not None:
        return Outcome(**end)
    plain = {"result": outcome.result, "code": outcome.code, "reason": outcome.reason, "output": outcome.output}
    replace_file(run.directory / "end.json", plain, sync=True)
    return outcome


def _address_towards(host: str) -> str:
    """The address of this machine on the route to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
