"""Jobs on a Ray cluster. The only user of ray.

A job is a Ray task: Ray runs it again elsewhere if its worker or machine is lost. Jobs and results travel as bytes
that we pickle ourselves, so that a worker can compare versions before it reads a job, and arrays come back writable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tapfinger.errors import ConfigError, MissingDependency, TapfingerError
from tapfinger.parallel.base import Job, JobFailed, Pool, Raised, Result, WorkerLost, attempt
from tapfinger.parallel.sameness import differences, fingerprint

#: Seconds that a cluster may take to answer.
ANSWER_SECONDS = 20

#: How often a job is restarted after its worker was lost.
RETRIES = 3

#: Jobs submitted to Ray at a time: enough for any cluster we know of, few enough to wait for.
IN_FLIGHT = 1000

#: Bytes for results in transit if we start Ray ourselves: Ray's own default is a third of the machine's memory.
_STORE_BYTES = 256 << 20

#: How often a Ray cluster of its own is started: a busy machine may not bring it up in the half minute that Ray waits.
_STARTS = 3

_log = logging.getLogger(__name__)


class RayUnavailable(TapfingerError):  # noqa: N818 - named for what happened, as the other errors
    """A Ray cluster that cannot be used: says which, why, and what to do."""


class RayPool(Pool):
    """Workers of a Ray cluster. A process that is already connected stays connected."""

    def __init__(self, address: str) -> None:
        """``HOST:PORT`` of a cluster this machine belongs to, ``auto`` to find it, ``local`` to start one here."""
        self._ray = _import_ray(address)
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _connect(self._ray, address)
        elif address not in ("auto", found := self._ray.get_runtime_context().gcs_address):
            raise RayUnavailable(f"this process is connected to the Ray cluster {found} already, not to {address!r}")
        if not self._ray.cluster_resources().get("CPU"):
            self.close()
            raise RayUnavailable(f"the Ray cluster {address!r} has no CPU to run anything; add a machine that has")
        self._task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(on_worker)

    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """Yield results as they finish. A job is run again if its worker is lost, at most ``RETRIES`` times."""
        waiting: dict[Any, int] = {}
        todo = iter(enumerate(jobs))
        try:
            while True:
                while len(waiting) < IN_FLIGHT and (following := next(todo, None)) is not None:
                    index, job = following
                    waiting[self._task.remote(fingerprint(), pickle.dumps((function, job)))] = index
                if not waiting:
                    return
                (done,), _ = self._ray.wait(list(waiting), num_returns=1)
                index = waiting.pop(done)
                yield index, pickle.loads(self._fetch(index, done))
        finally:
            for reference in waiting:  # empty, unless the batch was aborted
                self._ray.cancel(reference, force=True)

    def _fetch(self, index: int, reference: Any) -> bytes:
        errors = self._ray.exceptions
        try:
            kind, made = self._ray.get(reference)
        except (errors.RayTaskError, RuntimeError) as error:  # our own code failed before it ran the job
            raise RayUnavailable(
                f"a worker of the Ray cluster cannot run tapfinger; install the same one on all its machines: {error}"
            ) from None
        except errors.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise WorkerLost(
                index, f"the worker was lost {RETRIES + 1} times, perhaps because memory ran out: {reason}"
            ) from None
        if kind == "unlike":
            raise RayUnavailable(
                f"results would not be the same: {made}. Install the same versions on all machines of the Ray cluster"
            )
        if kind == "raised":
            raise JobFailed(index, made)
        content: bytes = made
        return content

    def close(self, now: bool = False) -> None:  # noqa: ARG002 - Ray ends what a driver leaves behind
        """Disconnect from the cluster; shut it down if we started it."""
        if self._connected:
            self._ray.shutdown()
            self._connected = False


def on_worker(wanted: Mapping[str, str], payload: bytes) -> tuple[str, Any]:
    """Run a job on the worker: ("result", pickled), ("raised", what), or ("unlike", how this machine differs).

    Returns plain data, because a worker of another version may not know our classes.
    """
    differing = differences(wanted, fingerprint())
    if differing:
        return "unlike", f"on {socket.gethostname()}, {differing}"
    made = attempt(_play, payload)
    return ("raised", made.what) if isinstance(made, Raised) else ("result", made)


def _play(payload: bytes) -> bytes:
    function, job = pickle.loads(payload)
    return pickle.dumps(function(job))


# ------------------------------------------------------------------ connecting


def _import_ray(address: str) -> Any:
    """Import ray with settings that it reads on import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise it reports usage to its makers
    if address == "local" and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        # A token for this run alone: otherwise Ray writes one into the home directory and keeps it.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingDependency("running on a Ray cluster needs ray: pip install 'tapfinger[ray]'") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quiet |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    else:
        check_answer(address)
    with _same_sigterm():
        for left in reversed(range(_STARTS if address == "local" else 1)):
            try:
                ray.init(address=address, **quiet)
                return
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise RayUnavailable(f"cannot use the Ray cluster {address!r}: {error}") from None
            except Exception as error:  # Ray has no class for a cluster that does not come up in its half minute
                ray.shutdown()
                if not left:
                    raise RayUnavailable(
                        f"a Ray cluster of its own did not start, {_STARTS} times ({error}); is the machine busy?"
                    ) from None
                _log.info("Ray did not start in its half minute; it is tried again")


def check_answer(address: str) -> None:
    """Ask first, in a process that can be killed: Ray itself waits for minutes and ignores signals meanwhile."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdecimal() or "/" in host:
            raise ConfigError(
                f"--ray {address!r} must be HOST:PORT of a Ray cluster that this machine has joined, auto or local"
            )
        command += ["--address", address]
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise RayUnavailable(f"no Ray cluster answers at {address}: {error}") from None
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RayUnavailable(f"no Ray cluster answers at {address} within {ANSWER_SECONDS} seconds") from None
    if "AuthenticationError" in asked.stderr:
        raise RayUnavailable(
            f"the Ray cluster at {address} asks for its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH as on its other machines"
        )
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise RayUnavailable(f"no Ray cluster answers at {address}: {said or 'it is not healthy'}")


@contextlib.contextmanager
def _same_sigterm() -> Iterator[None]:
    """Restore our SIGTERM handler, which ends a run cleanly: Ray replaces it with its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
