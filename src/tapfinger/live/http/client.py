"""The typed Python client. It uses the same terms as the command line and the HTTP interface."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from tapfinger.core.contract import Phase
from tapfinger.errors import ConfigError, CoordinatorError, NotFound, TooMany
from tapfinger.live.http.fetching import TaskFile, fetch_all, listed
from tapfinger.live.http.tls import trust
from tapfinger.live.protocol.records import DEFAULT_TYPE, ENDED, TaskSpec, unknown_field, without_limits

#: Most seconds to wait for the output of an ended task.
PATIENCE = 10.0

#: Most seconds to wait until another coordinator leads, which takes time if it must restore a long queue.
ELECTION = 30.0
#: Seconds without an answer, beyond a requested wait, after which one of several coordinators is considered stuck.
ANSWER = 15.0
#: Most tasks or events that are asked for at a time.
PAGE = 1000
#: How often a request is repeated if the answer has a Retry-After header.
RETRIES = 4

_specs = TypeAdapter(TaskSpec)


@dataclass(frozen=True)
class TaskInfo:
    """A task as the coordinator shows it."""

    id: int
    spec: TaskSpec
    owner: str
    submitted: float
    phase: Phase
    attempt: int
    cluster: str | None
    #: Natural amounts by resource.
    allocation: dict[str, float] | None
    started: float | None
    ended: float | None
    failures: int
    losses: int
    cancelled: bool
    code: int | None
    reason: str
    output: int
    agent: str | None = None
    #: Reported progress from 0 to 1, with metrics of the task's own; None if it has not reported any.
    progress: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    #: Whether it ended with exit code 0 before it had reported progress 1.
    incomplete: bool = False
    #: What was wrong with its reports.
    warnings: tuple[str, ...] = ()
    #: Seconds that a waiting task still rests after attempts in vain; 0 if it does not.
    rests: float = 0.0
    #: Attempts in a row that ended early and without success.
    setbacks: int = 0
    #: Directory on its cluster with the files that it has left, and until when they are kept at most, in seconds
    #: since the epoch. Fetch them with ``Client.fetch``.
    results: str = ""
    results_until: float | None = None
    #: Natural amounts that its next attempts get at least, by resource: an attempt ran out with less.
    least: dict[str, float] = field(default_factory=dict)
    #: Whether arguments, environment and texts that may quote them were left out: the task is someone else's.
    redacted: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether the task has ended."""
        return self.phase in ENDED


#: Tasks of the coordinator's store may be from a time with other limits.
_infos = SchemaValidator(without_limits(TypeAdapter(TaskInfo).core_schema))


def _info(shown: object) -> TaskInfo:
    found: TaskInfo = _infos.validate_python(shown)
    return found


def make_spec(**given: Any) -> TaskSpec:
    """A task to submit. Raises ConfigError with the same messages as the coordinator."""
    if fault := unknown_field(given):
        raise ConfigError(fault)
    try:
        return _specs.validate_python(given)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(faults)) from None


def _checked(answer: httpx.Response) -> httpx.Response:
    """The answer if it is a success; otherwise raises its error."""
    if answer.is_success:
        return answer
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:200]
    if isinstance(detail, list):  # faults as pydantic finds them
        detail = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in detail)
    kinds = {404: NotFound, 422: ConfigError, 429: TooMany}
    raise kinds.get(answer.status_code, CoordinatorError)(str(detail))


def _part(name: str) -> str:
    """A name as a part of an address."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise _no_text(name) from None


def _no_text(given: str) -> ConfigError:
    """The error about words of a command that are no text in UTF-8."""
    return ConfigError(f"{given[:100]!r} is no text that could be sent; use characters of Unicode")


class Client:
    """Talks to the coordinator that leads. Use it as a context manager, or call ``close``."""

    def __init__(
        self, url: str, token: str, timeout: float = 35.0, ca: str | None = None, server_name: str | None = None
    ) -> None:
        """``url``: one or several, separated by commas. ``timeout``: seconds; longer than the longest wait.

        ``ca``: file with certificates to trust in addition to those that this machine trusts. ``server_name``: what the
        certificate must be valid for, if it is not the host in ``url``.
        """
        self._urls = [one.strip().rstrip("/") for one in url.split(",")]
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = timeout
        self._ca = ca
        self._named = {} if server_name is None else {"sni_hostname": server_name}
        self._lines: dict[str, httpx.Client] = {}
        for one in self._urls:
            self._line(one)
        self._current = self._urls[0]
        #: Seconds that a sole coordinator may be unreachable before an error is raised: it may be restarting while
        #: tasks run on. Raise it to wait for a task; leave it at 0 for commands that should fail at once.
        self.patience = 0.0

    def _line(self, url: str) -> httpx.Client:
        """Connections to one coordinator."""
        if url not in self._lines:
            try:
                local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
                self._lines[url] = httpx.Client(
                    base_url=f"{url}/api/v1/",
                    headers=self._headers,
                    trust_env=not local,  # no proxy for this machine
                    verify=trust(self._ca) if url.startswith("https:") else True,
                )
            except (httpx.InvalidURL, ValueError) as error:
                raise CoordinatorError(f"{url!r} is no address of a coordinator: {error}") from None
        return self._lines[url]

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for line in self._lines.values():
            line.close()

    def _call(self, method: str, path: str, again: bool = True, **more: Any) -> httpx.Response:
        """Send a request to the leader. ``again``: the request is idempotent, so it is repeated if no answer came."""
        deadline, tries = math.inf, 0
        wait = float((more.get("params") or {}).get("wait", 0.0))
        patience = ANSWER + wait if len(self._urls) > 1 else self._timeout
        while True:
            url, following, fault, bound = self._current, "", None, max(ELECTION, self.patience)
            try:
                named = self._named if url in self._urls else {}  # a leader elsewhere has a certificate of its own
                bounded = min(patience, self._timeout)
                answer = self._line(url).request(method, path, timeout=bounded, extensions=named, **more)
                # With this header, the request can be repeated after a pause. Only of a database that was lost in the
                # middle of it, nobody knows whether something was done.
                unclear = answer.status_code == 503 and "X-Leader" not in answer.headers
                if "Retry-After" in answer.headers and tries < RETRIES and (again or not unclear):
                    tries += 1
                    time.sleep(min(5.0, float(answer.headers["Retry-After"])))
                    continue
                if answer.status_code != 503 or "X-Leader" not in answer.headers:
                    return _checked(answer)
                following = answer.headers["X-Leader"]
            except UnicodeEncodeError as error:
                raise _no_text(error.object) from None
            except httpx.HTTPError as error:
                fault = f"no answer from the coordinator at {url}: {error}"
                unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if self._urls == [url]:
                    bound = self.patience
                    if not (bound and again):
                        raise CoordinatorError(fault) from None
                if not unsent and not again:
                    raise CoordinatorError(
                        f"{fault}. Whether it took the tasks is not known; look at the list, and submit with a key to "
                        "be free to submit again"
                    ) from None
            deadline = min(deadline, time.monotonic() + bound)
            if time.monotonic() >= deadline:
                raise CoordinatorError(fault or f"no coordinator leads: {', '.join(self._urls)} stand by")
            self._turn(url, following)

    def _turn(self, url: str, leader: str) -> None:
        """Choose the next coordinator to ask: the leader if it is known and was not just asked, or the next URL."""
        if leader and leader.rstrip("/") != url:
            self._current = leader.rstrip("/")
            return
        place = self._urls.index(url) + 1 if url in self._urls else 0
        self._current = self._urls[place % len(self._urls)]
        time.sleep(0.2)

    # --------------------------------------------------------------------- tasks

    def submit(self, *specs: TaskSpec, secrets: Mapping[str, str] | None = None) -> list[int]:
        """Submit tasks, all or none; the coordinator has saved them when this returns.

        ``secrets``: values of secrets that the tasks name, for these tasks only.
        """
        body: dict[str, Any] = {"tasks": [_specs.dump_python(spec, mode="json") for spec in specs]}
        if secrets:
            body["secrets"] = dict(secrets)
        keyed = all(spec.key is not None for spec in specs)
        ids: list[int] = self._call("POST", "tasks", again=keyed, json=body).json()["ids"]
        return ids

    def list(self, phases: Sequence[Phase] = (), limit: int = 100, before: int | None = None) -> list[TaskInfo]:
        """The latest tasks in these phases, or in any phase, newest first; asks for one page after the other."""
        asked: dict[str, Any] = {"phase": [p.value for p in phases]}
        found: list[TaskInfo] = []
        while len(found) < limit:
            asked["limit"] = min(PAGE, limit - len(found))
            if before is not None:
                asked["before"] = before
            page = self._call("GET", "tasks", params=asked).json()
            found += [_info(task) for task in page["tasks"]]
            before = page["next"]
            if before is None:
                break
        return found

    def counts(self) -> dict[str, int]:
        """Number of tasks in each phase."""
        counts: dict[str, int] = self._call("GET", "tasks", params={"limit": 1}).json()["counts"]
        return counts

    def show(self, task: int, wait: float = 0.0) -> TaskInfo:
        """One task with its history. ``wait``: seconds to wait for its end, at most 30."""
        return _info(self._call("GET", f"tasks/{task}", params={"wait": wait}).json())

    def cancel(self, task: int) -> TaskInfo:
        """Cancel a task. Its processes may take a moment to end; use ``wait`` for that."""
        return _info(self._call("POST", f"tasks/{task}/cancel").json())

    def wait(self, task: int, timeout: float | None = None) -> TaskInfo:
        """Wait until a task has ended. Raises TimeoutError after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 20.0 if deadline is None else min(20.0, deadline - time.monotonic())
            info = self.show(task, max(0.0, left))
            if info.over:
                return info
            if left <= 0:
                raise TimeoutError(f"task {task} is {info.phase.value} after {timeout} s")

    def logs(self, task: int, attempt: int | None = None, follow: bool = False, offset: int = 0) -> Iterator[bytes]:
        """Output of an attempt, by default the latest. ``follow``: yield output as it comes, also of later attempts.

        ``offset``: bytes of that attempt to skip. Where the middle of a long output was left out, a line says how much.
        """
        which = attempt or max(1, self.show(task).attempt)
        quiet_since = time.monotonic()
        while True:
            asked = {"attempt": which, "offset": offset, "wait": 5.0 if follow else 0.0}
            answer = self._call("GET", f"tasks/{task}/logs", params=asked)
            left_out, offset = int(answer.headers["X-Start"]) - offset, int(answer.headers["X-Offset"])
            if answer.content:
                quiet_since = time.monotonic()
                if left_out > 0:
                    yield f"\n[{left_out} bytes left out]\n".encode()
                yield answer.content
                continue
            late = answer.headers["X-Over"] == "1" and time.monotonic() > quiet_since + PATIENCE
            if not (answer.headers["X-Complete"] == "1" or late or not follow):
                continue
            if attempt is not None or not follow or self.show(task).over:
                return
            which, offset = which + 1, 0

    def files(self, task: int, path: str = "", attempt: int | None = None) -> Iterator[TaskFile]:
        """Files that a task has left in its own directory, or that are there so far: all at or below a path."""
        return listed(self._get, task, path, attempt)

    def fetch(self, task: int, path: str = "", to: str | Path = ".", attempt: int | None = None) -> Sequence[Path]:
        """Fetch a file of a task, or all files below a directory, into the directory ``to``. Returns where they are.

        Call it again after an error: it goes on where it stopped. Links and special files are left out. NotFetched
        says which files could not be written; all others are there.
        """
        return fetch_all(self._get, task, path, Path(to), attempt)

    def _get(self, path: str, params: dict[str, Any]) -> httpx.Response:
        return self._call("GET", path, params=params)

    # ------------------------------------------------------------------- insight

    def explain(self, task: int) -> dict[str, Any]:
        """Why a task waits and when it may start, or why it got its cluster and size."""
        found: dict[str, Any] = self._call("GET", f"tasks/{task}/explain").json()
        return found

    def queue(self, limit: int = 100) -> dict[str, Any]:
        """The first waiting tasks, each with a reason and an estimate, and the number of all waiting tasks."""
        found: dict[str, Any] = self._call("GET", "queue", params={"limit": limit}).json()
        return found

    def shadow(self) -> dict[str, Any]:
        """What the schedulers of ``live.shadow`` would have done."""
        found: dict[str, Any] = self._call("GET", "shadow").json()
        return found

    def profiles(self) -> Sequence[Mapping[str, Any]]:
        """The believed speed of each task type: runs seen, seconds as believed and as configured, doubt, drift."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "profiles").json()["types"]
        return found

    def profile(self, name: str, every: bool = False) -> Mapping[str, Any]:
        """One task type, with the sizes seen so far or with every size."""
        path = f"profiles/{_part(name)}"
        found: Mapping[str, Any] = self._call("GET", path, params={"all": every}).json()
        return found

    def history(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """Tasks that have run, newest first, at most ``most`` of them."""
        asked: dict[str, Any] = {"limit": min(PAGE, most or PAGE)}
        given = 0
        while True:
            page = self._call("GET", "history", params=asked).json()
            for row in page["tasks"]:
                yield row
                given += 1
                if given == most:
                    return
            if page["next"] is None:
                return
            asked["before"] = page["next"]

    def site(self) -> dict[str, Any]:
        """Clusters and task types as configured, and the scheduler that decides."""
        found: dict[str, Any] = self._call("GET", "site").json()
        return found

    def default_type(self) -> str:
        """Task type of tasks that name none: ``demo`` if the site has it, else its only type. Raises ConfigError."""
        names = [kind["name"] for kind in self.site()["scenario"]["task_types"]]
        if DEFAULT_TYPE not in names and len(names) > 1:
            raise ConfigError(f"the site has several task types: {', '.join(names)}; say which with --type")
        return DEFAULT_TYPE if DEFAULT_TYPE in names else names[0]

    # ---------------------------------------------------------------------- site

    def clusters(self) -> Sequence[Mapping[str, Any]]:
        """Every cluster: its capacity, what is free, whether its agent is connected."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "clusters").json()["clusters"]
        return found

    def drain(self, cluster: str, undo: bool = False) -> None:
        """Drain a cluster so that it takes no new tasks; ``undo``: let it take them again."""
        self._call("POST", f"clusters/{_part(cluster)}/drain", params={"undo": undo})

    def give_up(self, cluster: str) -> None:
        """Declare a silent cluster gone for good, with nothing on it alive."""
        self._call("POST", f"clusters/{_part(cluster)}/give-up")

    def events(
        self, after: int = 0, limit: int = 1000, wait: float = 0.0, last: int | None = None
    ) -> Sequence[dict[str, Any]]:
        """Events after the one with number ``after``, or the ``last`` ones. ``wait``: seconds to wait for the next."""
        found: list[dict[str, Any]] = []
        asked: dict[str, Any] = {"after": after, "wait": wait, **({} if last is None else {"last": last})}
        most = max(limit, last or 0)
        while len(found) < most:
            asked["limit"] = min(PAGE, most - len(found))
            page = self._call("GET", "events", params=asked).json()["events"]
            found += page
            if len(page) < asked["limit"]:
                break
            asked = {"after": page[-1]["seq"]}
        return found

    def new_token(
        self, name: str, role: str, cluster: str | None = None, lasts: float | None = None, inherit: bool = False
    ) -> str:
        """Make a token, valid for ``lasts`` seconds or forever. An earlier token of the same name stops working.

        A name that was revoked, and of which tasks are left, is refused without ``inherit``.
        """
        body = {"name": name, "role": role, "cluster": cluster, "lasts": lasts, "inherit": inherit}
        token: str = self._call("POST", "tokens", json=body).json()["token"]
        return token

    def tokens(self) -> Sequence[Mapping[str, Any]]:
        """The holders of tokens."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "tokens").json()["tokens"]
        return found

    def revoke(self, name: str) -> None:
        """Revoke the token of this name."""
        self._call("DELETE", f"tokens/{_part(name)}")

    def prune(self, days: float, dry_run: bool = False) -> int:
        """Remove tasks that ended this many days ago or earlier. Returns their number; ``dry_run``: only that."""
        body = {"days": days, "dry_run": dry_run}
        count: int = self._call("POST", "prune", json=body).json()["tasks"]
        return count

    def keep_secret(self, name: str, value: str) -> None:
        """Keep a secret for later tasks of the token's holder, or give it another value."""
        self._call("PUT", f"secrets/{_part(name)}", json={"value": value})

    def secrets(self) -> Sequence[Mapping[str, Any]]:
        """Names of the secrets that the token's holder keeps, and when each was set; never their values."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "secrets").json()["secrets"]
        return found

    def remove_secret(self, name: str) -> None:
        """Remove a secret. Tasks that wait with it will fail when they are to start."""
        self._call("DELETE", f"secrets/{_part(name)}")

    def audit(self, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """The latest lines of the audit log, oldest first."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", "audit", params={"limit": limit}).json()["lines"]
        return found
