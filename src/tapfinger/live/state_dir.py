"""The state directory of a coordinator, and how commands find the coordinator."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import IO, Any

from tapfinger.errors import ConfigError, CoordinatorError
from tapfinger.live.agent.leases import boot_id, replace_file
from tapfinger.live.backends.spool import read_json
from tapfinger.live.backends.supervise import start_time

#: Keys that a note has besides those that identify a process, by the name of its file.
_ALSO: dict[str, dict[str, type]] = {"coordinator.json": {"url": str}}
#: What to do about a note that cannot be used.
_REMEDY = "choose another --state, or remove the file if nothing of this site runs"


def state_directory(given: Path | None) -> Path:
    """The directory as given, from TAPFINGER_STATE, or the user's default."""
    if given is not None:
        return given
    if named := os.environ.get("TAPFINGER_STATE"):
        return Path(named)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tapfinger"


def make_directory(path: Path) -> None:
    """Make a directory that only this user can access; an existing one stays as it is."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"--state {path} cannot be used: {error.strerror}") from None


def hold(directory: Path, complaint: str, name: str = "lock") -> IO[str]:
    """Lock a directory for this process until the returned file is closed. ``name``: of the lock's file."""
    try:
        lock = _open_lock(directory / name, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"--state {directory} cannot be used: {name}: {error.strerror or error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"{directory} is in use by another {complaint}") from None
    return lock


def _open_lock(path: Path, flags: int) -> IO[str]:
    """Open the file of a lock. What a task may have put in its place raises OSError: links, and pipes that block."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is no regular file; remove it")
    return os.fdopen(handle, "r" if flags == os.O_RDONLY else "r+")


def held(directory: Path, name: str = "lock") -> bool:
    """Whether a process has locked the directory. ``name``: of the lock's file."""
    try:
        with _open_lock(directory / name, os.O_RDONLY) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def myself() -> dict[str, Any]:
    """Identity of this process, distinct from a later process with the same pid."""
    return {"pid": os.getpid(), "start": start_time(os.getpid()), "boot": boot_id()}


def alive(process: dict[str, Any]) -> bool:
    """Whether the noted process is still running, and not another with the same pid."""
    try:
        return bool(process["boot"] == boot_id() and start_time(process["pid"]) == process["start"])
    except (OSError, KeyError):
        return False


def exited(child: int) -> bool:
    """Whether a child of this process has ended; reaps it."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def announce(state: Path, name: str, **more: Any) -> Path:
    """Write a note about this process to the state directory."""
    path = state / f"{name}.json"
    replace_file(path, {**myself(), **more})
    return path


def noted(path: Path) -> dict[str, Any] | None:
    """The note of a process, if it exists and the process is running. Raises ConfigError for any other file."""
    note = read_note(path)
    return note if note is not None and alive(note) else None


def read_note(path: Path) -> dict[str, Any] | None:
    """The note of a process that may have ended, if it exists. Raises ConfigError for any other file."""
    try:
        note = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {_REMEDY}") from None
    wanted: dict[str, type] = {"pid": int, "start": str, "boot": str, **_ALSO.get(path.name, {})}
    wrong = [key for key, kind in wanted.items() if not isinstance(note, dict) or not isinstance(note.get(key), kind)]
    if wrong:
        raise ConfigError(f"{path} is no note of a process of tapfinger: it has no {wrong[0]!r}; {_REMEDY}")
    found: dict[str, Any] = note
    return found


def find_coordinator(state: Path | None, url: str | None) -> tuple[str, str]:
    """Address and token: as given, from the environment, or from a state directory."""
    token = os.environ.get("TAPFINGER_TOKEN")
    url = url or (os.environ.get("TAPFINGER_URL") if state is None else None)
    directory = state_directory(state)
    if url is None:
        note = noted(directory / "coordinator.json")
        if note is None:
            raise CoordinatorError(
                f"no coordinator runs in {directory}; start one with 'tapfinger up', or name another with --state or "
                "--url"
            )
        url = note["url"]
    if token is None:
        try:
            token = (directory / "token").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise CoordinatorError(f"there is no token in {directory}; set TAPFINGER_TOKEN, or use --state") from None
    return str(url), token


def local_note(state: Path | None, url: str | None) -> dict[str, Any]:
    """The note of the coordinator that is found by its state directory; empty if it is named by an address."""
    named = url or (os.environ.get("TAPFINGER_URL") if state is None else None)
    return (noted(state_directory(state) / "coordinator.json") if named is None else None) or {}


def find_trust(state: Path | None, url: str | None) -> tuple[str | None, str | None]:
    """A certificate file to trust in addition, and the name that the coordinator's certificate must be valid for.

    The file is that of TAPFINGER_TLS_CA, or the local coordinator's own certificate. Without a name, it is the
    address's.
    """
    note = local_note(state, url)
    return os.environ.get("TAPFINGER_TLS_CA") or note.get("ca"), note.get("server_name")
