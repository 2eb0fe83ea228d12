"""``tapfinger up``: starts the processes of a site or takes over those that run, and starts again what dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tapfinger.errors import ConfigError, CoordinatorError, TapfingerError
from tapfinger.live.http.client import Client
from tapfinger.live.local_site import UP_LOCK, LocalSite, clear
from tapfinger.live.ownership import is_mine
from tapfinger.live.site_parts import ENDING, PATIENCE, Part, end_parts
from tapfinger.live.site_plan import SitePlan, address_of
from tapfinger.live.state_dir import announce, hold, make_directory, noted, read_note

#: Seconds between looks at the processes.
PULSE = 0.2
#: Seconds before a process that has died is started again: the first time, and at most.
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
#: Seconds after which a process counts as well again, and the next pause is the first one.
STEADY = 60.0
#: Seconds that an agent that ran already has to reach the coordinator; then it is started again, with a new token.
RECONNECT = 10.0
#: Most seconds to wait for an answer of the coordinator.
ANSWER = 5.0


@dataclass(slots=True)
class _Watched:
    """A process, and when it is started again. Times are those of the monotonic clock, in seconds."""

    part: Part
    #: Of agents: the name of the cluster.
    cluster: str = ""
    pause: float = FIRST_PAUSE
    since: float = 0.0
    #: When to start it again; None while it runs.
    due: float | None = None
    #: Of agents: whether tasks ran, or results waited, in its directory before this process started it.
    inherited: bool = False


class Supervisor:
    """The one ``up`` of a state directory. It ends what it has started, and nothing else."""

    def __init__(
        self,
        state: Path,
        config: Path | None = None,
        backend: str | None = None,
        options: Sequence[str] = (),
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``options``: of the backend, as ``key=value``. ``tell``: called with a line for whoever looks on."""
        self.state = state
        self._site = LocalSite(state)
        self._tell = tell
        self._plan = SitePlan(state, config, backend, options)  # faults are found before anything is started
        self._coordinator = _Watched(self._site.coordinator)
        self._agents = [_Watched(self._site.agent(name), name) for name in self._plan.names]
        self._lock: IO[str] | None = None
        self._port = 0
        self._url = ""

    def refuse_second(self) -> None:
        """Raise ConfigError if another ``up`` watches over this directory."""
        note = noted(self._site.watcher.folder / "up.json")
        if note is not None and note["pid"] != os.getpid():
            raise ConfigError(
                f"tapfinger up (pid {note['pid']}) watches over {self.state} already; end it with: tapfinger down "
                f"--state {self.state}"
            )

    # ------------------------------------------------------------------------ start

    def up(self, port: int) -> str:
        """Start what does not run yet. Returns the coordinator's address once all agents are connected.

        ``port``: of the coordinator; 0 for the one that it had before, or any that is free. What was started is ended
        again if this fails.
        """
        self.refuse_second()
        make_directory(self.state)
        self._lock = hold(self.state, "tapfinger up; end it with: tapfinger down", UP_LOCK)
        self._port = port
        try:
            announce(self.state, "up")
            self._refuse_strangers()
            self._begin()
            announce(self.state, "up", url=self._url)
        except BaseException:
            self._end(
                [one for one in self._agents if not one.inherited], [one for one in self._agents if one.inherited]
            )
            raise
        return self._url

    def in_background(self, port: int) -> str:
        """The same by a process of its own, which goes on to watch. Returns the address when everything runs."""
        self.refuse_second()
        make_directory(self.state)
        watcher = self._site.watcher
        try:
            watcher.start(self._plan.up_words(port), quiet=True)
            while (note := watcher.note() or {}).get("pid") != watcher.pid or "url" not in note:
                if not watcher.running():
                    raise CoordinatorError(watcher.last_words() or watcher.how_it_ended())
                time.sleep(0.05)
        except BaseException:
            end_parts([watcher], signal.SIGTERM, 3 * PATIENCE)
            raise
        return str(note["url"])

    def _refuse_strangers(self) -> None:
        """Agents that run and that this configuration does not have would be left without a coordinator."""
        known = {"coordinator", *(one.part.name for one in self._agents)}
        strangers = [name for name in self._site.running() if name not in known]
        if strangers:
            raise ConfigError(
                f"{', '.join(strangers)} runs in {self.state}, and the configuration has only "
                f"{', '.join(self._plan.names)}; name the file of that site with --config, or end it: tapfinger down"
            )

    def _begin(self) -> None:
        coordinator = self._coordinator.part
        found = [one.part.name for one in (self._coordinator, *self._agents) if one.part.find()]
        if found:
            self._say(f"runs already, and is taken over: {', '.join(found)}")
        if coordinator.name not in found:
            self._start_coordinator()
        note = self._await(coordinator.note, coordinator)
        self._await(self._token, coordinator)  # of coordinators that share a store, the first one that leads makes it
        self._url = note["url"]
        with self._client(note) as client:
            if not coordinator.started:
                self._compare(client)
            for one in self._agents:
                if one.part.name in found:
                    if address_of(note) in (one.part.note() or {}).get("coordinator", ()):
                        continue
                    self._say(f"{one.part.name} knows another address of the coordinator; it is started again")
                    end_parts([one.part], signal.SIGTERM)  # which leaves its tasks running
                self._start_agent(one, client, note)
            self._connect(client, note)

    def _connect(self, client: Client, note: dict[str, Any]) -> None:
        """Wait until all agents are connected."""

        def silent() -> set[str]:
            return {str(cluster["name"]) for cluster in client.clusters() if not cluster["connected"]}

        early = [one for one in self._agents if not one.part.started]
        deadline = time.monotonic() + RECONNECT
        while early and time.monotonic() < deadline and any(one.cluster in silent() for one in early):
            time.sleep(PULSE)
        for one in early:
            if one.cluster in silent():
                self._say(f"{one.part.name} does not reach the coordinator; it is started again")
                end_parts([one.part], signal.SIGTERM)
                self._start_agent(one, client, note)
        parts = [one.part for one in self._agents]
        # A coordinator that ran already may not know yet that an agent has died.
        self._await(lambda: all(part.note() for part in parts), *parts)
        self._await(lambda: not silent() & set(self._plan.names), *parts)

    def _compare(self, client: Client) -> None:
        """Refuse to start agents for a coordinator with another configuration."""
        ours, theirs = self._plan.clusters, client.site()["scenario"]["clusters"]
        if theirs != ours:
            names = [", ".join(cluster["name"] for cluster in clusters) for clusters in (theirs, ours)]
            raise ConfigError(
                f"the coordinator that runs in {self.state} has other clusters ({names[0]}) than the configuration "
                f"({names[1]}), or other capacities; name the file of that site with --config, or end it first: "
                "tapfinger down"
            )
        if self._port and self._port != _port_of(self._url):
            self._say(f"the coordinator runs at {self._url} already; --port {self._port} is left aside")

    def _await(self, condition: Callable[[], Any], *parts: Part) -> Any:
        """Wait for a condition. A process that ends meanwhile is an error."""
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            for part in (one.part for one in (self._coordinator, *self._agents)):
                if part.started and not part.running():
                    raise CoordinatorError(f"the {part.name} did not start: it {part.how_it_ended()}")
            if time.monotonic() > deadline:
                names = ", ".join(part.name for part in parts)
                raise CoordinatorError(
                    f"{names} did not get ready within {PATIENCE:g} s; see the log: {parts[0].log} ends with: "
                    f"{parts[0].last_words()}"
                )
            time.sleep(0.05)
        return found

    # --------------------------------------------------------------------- processes

    def _start_coordinator(self) -> None:
        self._coordinator.part.start(self._plan.serve_words(self._port or self._former_port()))
        self._coordinator.since = time.monotonic()

    def _former_port(self) -> int:
        """The port that agents know, if it is free; 0 otherwise."""
        notes = [read_note(self.state / "coordinator.json") or {}, *(one.part.note() or {} for one in self._agents)]
        urls = [self._url, notes[0].get("url", ""), *(url for note in notes for url in note.get("coordinator", ()))]
        port = next((port for port in map(_port_of, urls) if port), 0)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return 0
        return port

    def _start_agent(self, one: _Watched, client: Client, note: dict[str, Any]) -> None:
        token = client.new_token(f"agent-{one.cluster}", "agent", one.cluster)
        runs = one.part.folder / "runs"
        one.inherited = runs.is_dir() and any(runs.iterdir())
        one.part.start(self._plan.agent_words(one.cluster, one.part.folder, note), token)
        one.since = time.monotonic()

    def _token(self) -> str:
        try:
            return (self.state / "token").read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.state / 'token'} cannot be read: {error}") from None

    def _client(self, note: dict[str, Any], timeout: float = PATIENCE) -> Client:
        return Client(note["url"], self._token(), timeout, note.get("ca"), note.get("server_name"))

    # ------------------------------------------------------------------------- watch

    def watch(self) -> None:
        """Start again whatever dies, until an interrupt."""
        complaint = ""
        while True:
            self._site.watcher.put_log_aside()
            try:
                self._look_around(time.monotonic())
            except (TapfingerError, OSError) as error:  # a full disk, a note that somebody has changed
                if complaint != (complaint := str(error)):
                    self._say(f"could not look after the site: {error}; it is tried again")
            time.sleep(PULSE)

    def _look_around(self, now: float) -> None:
        note = self._coordinator.part.note()
        if note is not None and note["url"] != self._url:
            self._move(note)
        for one in (self._coordinator, *self._agents):
            self._look(one, note, now)

    def _move(self, note: dict[str, Any]) -> None:
        """Have agents started again, since the coordinator has another address: its former port was taken."""
        self._url = note["url"]
        announce(self.state, "up", url=self._url)
        self._say(f"the coordinator is at {self._url} now; agents are started again, and their tasks run on")
        for one in self._agents:
            one.part.tell(signal.SIGTERM)

    def _look(self, one: _Watched, note: dict[str, Any] | None, now: float) -> None:
        """Look after one process. ``note``: of the coordinator, None while it is away."""
        if one.part.running():
            if now > one.since + STEADY:
                one.pause = FIRST_PAUSE
        elif one.due is None:
            self._wait_for(one, f"(pid {one.part.pid}) {one.part.how_it_ended()}", now)
        elif now >= one.due and (note is not None or one is self._coordinator):
            one.due = None
            try:
                self._start_again(one, note)
            except (TapfingerError, OSError) as error:
                self._wait_for(one, f"could not be started: {error}", now)
        one.part.put_log_aside()  # also of one that dies again and again, and writes why each time

    def _wait_for(self, one: _Watched, why: str, now: float) -> None:
        one.due = now + one.pause
        self._say(f"{one.part.name} {' '.join(why.split())}; it is started again in {one.pause:g} s")
        one.pause = min(LAST_PAUSE, 2 * one.pause)

    def _start_again(self, one: _Watched, note: dict[str, Any] | None) -> None:
        if one.part.find(patience=0.0):
            self._say(f"{one.part.name} was started by another, and is taken over")
            one.since = time.monotonic()
        elif note is None:
            self._start_coordinator()
        else:
            with self._client(note, ANSWER) as client:
                self._start_agent(one, client, note)

    def end(self) -> None:
        """End agents with their tasks, then the coordinator, as far as this process has started them."""
        self._end(self._agents, [])

    def _end(self, whole: Sequence[_Watched], alone: Sequence[_Watched]) -> None:
        """End what this process has started: agents with their tasks, and agents ``alone``, whose tasks run on."""
        agents = [one.part for one in whole if one.part.started]
        leaving = [one.part for one in alone if one.part.started]
        # An interrupt in the middle would leave processes that nobody ends; it comes when they have ended.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            if leaving:
                names = ", ".join(part.name for part in leaving)
                self._say(f"tasks of {names} run on, for the next up; tapfinger down would end them")
            end_parts(leaving, signal.SIGTERM)
            end_parts(agents, signal.SIGINT)
            end_parts([part for part in [self._coordinator.part] if part.started], signal.SIGTERM)
            for part in agents:
                if is_mine(part.folder, self.state) and not clear(part.folder):
                    self._say(f"tasks of {part.name} could not be ended within {PATIENCE:g} s, and are left behind")
            (self.state / "up.json").unlink(missing_ok=True)
            if self._lock is not None:
                self._lock.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _say(self, text: str) -> None:
        """Tell it to whoever looks on, and write it to ``up.log``."""
        log = self.state / "up.log"
        with suppress(OSError), os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(f"{datetime.now().astimezone().isoformat(' ', 'seconds')} {text}\n")
        with suppress(OSError):  # the terminal may be gone
            if not _is_standard_error(log):
                self._tell(text)


def _is_standard_error(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.__stderr__.fileno()), path.stat()) if sys.__stderr__ else False
    except (OSError, ValueError):
        return False


def _port_of(url: str) -> int:
    try:
        return urlsplit(url).port or 0
    except ValueError:
        return 0
