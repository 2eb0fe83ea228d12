"""Requests of people and agents to the coordinator: tasks, clusters, tokens, reports and output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from types import MappingProxyType

from tapfinger.core.contract import Phase
from tapfinger.errors import AgentRefused, ConfigError, NotFound, NotLeading, StoreUnavailable, TooMany
from tapfinger.live.backends.environment import refused_names
from tapfinger.live.coordinator.group_commit import Change
from tapfinger.live.coordinator.inputs import Cancel, Disconnected, Drain, GiveUp, Submit
from tapfinger.live.protocol.events import Granted
from tapfinger.live.protocol.messages import VERSION, Report
from tapfinger.live.protocol.records import ENDED, TaskRecord, TaskSpec
from tapfinger.live.protocol.wire import FileAnswer, LogChunk, LogSize, Message
from tapfinger.live.service import standby
from tapfinger.live.service.earlier_tasks import check_same
from tapfinger.live.service.files import FileDesk
from tapfinger.live.service.leading import Leading
from tapfinger.live.store import tokens
from tapfinger.live.store.retention import DAY
from tapfinger.live.store.store import Piece

logger = logging.getLogger(__name__)

#: Tasks of a submission beyond which it waits until the one before it is saved.
BULK = 100
#: How often a cancel looks for a task that is taken at the same time; twice suffices.
LOOKS = 3
#: Seconds until output that could not be written is asked for again.
ASK_AGAIN = 10.0
#: No secrets are given.
NOTHING: Mapping[str, str] = MappingProxyType({})

#: Called with seconds of work that somebody has caused.
Spent = Callable[[float], None]


class Service(Leading):
    """One coordinator. What changes it, and ``clusters`` of a leader, must run on its loop; see ``bridge``.

    Reads of single tasks, lists and progress may come from any thread: they need the store, and single records of the
    machine.
    """

    # --------------------------------------------------------------------- people

    async def submit(
        self,
        specs: Sequence[TaskSpec],
        owner: str,
        secrets: Mapping[str, str] = NOTHING,
        spent: Spent = lambda _: None,
    ) -> list[int]:
        """Accept tasks and return their ids; they are on disk by then. A key used before returns the earlier task.

        ``secrets``: values for these tasks only. ``spent`` is told of work in a thread, and called there.
        """
        if len(specs) > BULK:
            async with self._bulk:  # one after the other: agents get their turn while each is saved
                return await self._submit_slowly(specs, owner, secrets, spent)
        ids = self._accept_at_once(specs, owner, secrets)
        if ids is None:
            return await self._submit_slowly(specs, owner, secrets, spent)
        await self._commits.flush()
        return ids

    async def take(self, specs: Sequence[TaskSpec], owner: str, secrets: Mapping[str, str], spent: Spent) -> list[int]:
        """``submit`` for people's loop."""
        if len(specs) > BULK:
            return await self.bridge.run(partial(self.submit, specs, owner, secrets, spent))
        accept = partial(self._accept_at_once, specs, owner, secrets)
        ids = await self.bridge.save(accept, lambda told: self._commits.on_disk(told))
        if ids is None:
            return await self.bridge.run(partial(self._submit_slowly, specs, owner, secrets, spent))
        return ids

    async def _submit_slowly(
        self, specs: Sequence[TaskSpec], owner: str, secrets: Mapping[str, str], spent: Spent
    ) -> list[int]:
        """Look in the store for tasks with the same keys first, without keeping this loop busy."""
        while True:
            leading = self._machine
            known = await self._earlier.look(owner, specs, spent)
            if self._machine is leading:  # else another coordinator may have taken tasks with these keys
                break
        ids = self._accept(specs, owner, secrets, known)
        await self._commits.flush()
        return ids

    def _accept_at_once(self, specs: Sequence[TaskSpec], owner: str, secrets: Mapping[str, str]) -> list[int] | None:
        """``_accept``, unless some keys are in the store already: comparing their tasks may take long."""
        _ = self._machine  # only the leader knows
        known = self._earlier.glance(owner, specs)
        return None if known is None else self._accept(specs, owner, secrets, known)

    def _accept(
        self, specs: Sequence[TaskSpec], owner: str, secrets: Mapping[str, str], known: Mapping[str, int]
    ) -> list[int]:
        """Accept tasks and return their ids; they are on disk when all changes so far are.

        ``known``: ids of the earlier tasks with the same keys.
        """
        for spec in specs:
            if refused := refused_names([*spec.env, *spec.secrets], self.config.env_names):
                raise ConfigError(
                    f"variable {refused[0]!r} may not be set; this site allows {', '.join(self.config.env_names)}"
                )
        room = self.config.max_waiting - self._machine.waiting
        fresh, places = _sorted_out(specs, known)
        if unused := sorted(secrets.keys() - {name for spec in specs for name in spec.secrets}):
            raise ConfigError(f"a value for secret {unused[0]!r} was given, but no task names it in its secrets")
        self._check_secrets(fresh, owner, secrets)
        if len(fresh) > room:
            raise TooMany(f"{len(fresh)} tasks are more than the {max(0, room)} that may still wait; try again later")
        if fresh:
            self._machine.texts.check_room(fresh, owner, self.config.max_waiting_mb)
        made = self._act(Submit(fresh, owner)) if fresh else ()
        unsaved = self._earlier.made(made)
        if given := self._given.of(made, secrets):
            # In the same transaction as the tasks, since nothing else ran in between.
            self._commits.put(Change(secrets=given), partial(self._given.saved, given))
        if unsaved:
            self._commits.put(Change(), partial(self._earlier.saved, unsaved))
        return [made[place].id if new else place for new, place in places]

    def _check_secrets(self, specs: Sequence[TaskSpec], owner: str, given: Mapping[str, str]) -> None:
        """Refuse tasks whose secrets could not be given to them."""
        named = {name for spec in specs for name in spec.secrets}
        if not named:
            return
        for spec in specs:
            if len(set(spec.secrets)) < len(spec.secrets):
                raise ConfigError(f"a task names a secret twice: {', '.join(spec.secrets)}; name each once")
        for name in sorted(named):
            if name.startswith("TAPFINGER_") or any(name in s.env and name in s.secrets for s in specs):
                raise ConfigError(f"variable {name!r} of the task cannot be a secret: it has another value already")
        if missing := sorted(named - given.keys() - {one.name for one in self.store.secrets.kept(owner)}):
            raise ConfigError(
                f"{owner} keeps no secret {missing[0]!r}; keep it with 'tapfinger secret set {missing[0]}', or give "
                f"its value with the task (--secret {missing[0]}=FILE)"
            )
        self._given.check_room(specs, owner, given)

    async def all_saved(self) -> None:
        """Wait until everything so far is on disk."""
        self.check_leading()
        await self._commits.flush()

    def keep_secret(self, owner: str, name: str, value: str) -> None:
        """Keep a secret for later tasks of its owner, or give it another value. For any thread but the loop's.

        To be called when what was there before is saved: tasks that were accepted have lower numbers than those in the
        store only then.
        """
        if refused := refused_names([name], self.config.env_names):
            raise ConfigError(
                f"variable {refused[0]!r} may not be set; this site allows {', '.join(self.config.env_names)}"
            )
        self.check_leading()
        self.store.secrets.keep(owner, name, value, self.store.next_id(), self.now())

    def remove_secret(self, owner: str, name: str) -> None:
        """Remove a secret that its owner keeps."""
        self.check_leading()
        if not self.store.secrets.remove(owner, name):
            raise NotFound(f"{owner} keeps no secret {name!r}")

    async def cancel(self, ident: int) -> TaskRecord:
        """Cancel a task, or order its agent to stop it; a task that has ended stays as it is."""
        for _ in range(LOOKS):
            if ident in self._machine.tasks:
                self._act(Cancel(ident))
            await self._commits.flush()
            record = self.task(ident)
            if record.cancelled or record.phase in ENDED:
                return record
            # It was taken meanwhile: here, or by another coordinator, which the next look finds out.
        raise StoreUnavailable(f"task {ident} could not be cancelled yet; try again in a moment")

    def task(self, ident: int) -> TaskRecord:
        """The current record of a task."""
        record = self.store.task(ident)
        if record is None:
            raise NotFound(f"there is no task {ident}")
        return self._fresh(record)

    def _fresh(self, record: TaskRecord) -> TaskRecord:
        """Add the progress that the task has reported since its record was last saved."""
        leading = self._leading
        running = None if leading is None else leading.tasks.get(record.id)
        if running is not None and running.attempt == record.attempt:
            record.progress, record.metrics = running.progress, running.metrics
        return record

    @property
    def heard(self) -> int:
        """A counter that increases when tasks report new progress."""
        leading = self._leading
        return 0 if leading is None else leading.progress.count

    def progress(self) -> list[dict[str, object]]:
        """Progress of each running task that reports any."""
        leading = self._leading
        running = [] if leading is None else list(leading.tasks.values())  # copied at once: it may change meanwhile
        return [
            {"task": r.id, "attempt": r.attempt, "progress": r.progress, "metrics": r.metrics}
            for r in running
            if r.progress is not None
        ]

    def tasks(self, phases: Sequence[Phase], limit: int, before: int | None) -> Iterator[TaskRecord]:
        """The latest tasks in these phases, or in any phase, newest first; read as far as they are asked for."""
        return map(self._fresh, self.store.tasks(phases, limit, before))

    def clusters(self) -> list[dict[str, object]]:
        """Every cluster, as shown to people."""
        leading = self._leading
        return standby.clusters(self.site, self.store) if leading is None else leading.clusters(self.now())

    async def drain(self, cluster: str, drained: bool) -> None:
        """Drain a cluster so that it takes no new tasks, or let it take them again."""
        self._act(Drain(cluster, drained))
        await self._commits.flush()

    async def give_up(self, cluster: str) -> None:
        """Give up a silent cluster that a person says is gone."""
        self._act(GiveUp(cluster))
        await self._commits.flush()

    def ended_before(self, days: float) -> tuple[float, int]:
        """The time this many days ago, and the number of tasks that had ended by then; only a leader says it."""
        self.check_leading()
        if self.store.shared:
            self.store.renew()
        before = self.now() - days * DAY
        return before, self.store.count_before(before)

    def issue(
        self, name: str, role: str, cluster: str | None, lasts: float | None = None, inherit: bool = False
    ) -> str:
        """Make a token. ``lasts``: seconds, None for unlimited. ``inherit``: tasks left of a revoked name are its."""
        if self._leading is None:
            raise NotLeading(self._leader)
        if cluster is not None and cluster not in self.site.index:
            raise NotFound(f"there is no cluster {cluster!r}")
        if name in (".", ".."):
            raise ConfigError(f"a token cannot have the name {name!r}: no address of a request can hold it")
        token = tokens.issue(self.store, name, role, cluster, self.now(), lasts, inherit)
        self._tell_void(name)  # an earlier one of that name
        return token

    def revoke(self, name: str) -> None:
        """Revoke the token of this name."""
        if not self.store.remove_token(name):
            raise NotFound(f"there is no token of the name {name!r}")
        self._tell_void(name)

    def _tell_void(self, name: str) -> None:
        for tell in self.on_void:
            tell(name)

    # --------------------------------------------------------------------- agents

    def check_leading(self) -> None:
        """Raise NotLeading, with the leader's address, if another coordinator leads."""
        if self._leading is None:
            raise NotLeading(self._leader)

    def disconnect(self, cluster: str, send: Callable[[Message], None]) -> None:
        """Forget a connection that is gone, unless the agent has a new one."""
        if self._senders.get(cluster) is send:
            del self._senders[cluster]
            self.proposals.gone(cluster)
            if self._leading is not None and self._broken is None:
                with suppress(NotLeading, StoreUnavailable):
                    self._act(Disconnected(cluster))

    def report(self, report: Report, send: Callable[[Message], None]) -> None:
        """Process the report of an agent. Once it is accepted, orders for its cluster are sent with ``send``."""
        if report.version != VERSION:
            raise AgentRefused(f"the agent speaks version {report.version}, the coordinator {VERSION}; use the same")
        heard, before = self.heard, self._senders.get(report.cluster)
        self._senders[report.cluster] = send  # the answer may be sent before ``_act`` returns
        try:
            self._act(report)
        except BaseException:
            # A second agent that is refused must not take over the connection of the first.
            if before is None:
                self._senders.pop(report.cluster, None)
            else:
                self._senders[report.cluster] = before
            raise
        self.proposals.heard(report.cluster, report.infers)
        if heard != self.heard:
            self.changes.announce()

    @cached_property
    def files(self) -> FileDesk:
        """Requests for files that agents have not answered yet."""
        return FileDesk(self._send)

    def _send(self, cluster: str, message: Message) -> bool:
        """Send a message to the agent of a cluster. Returns whether it is connected."""
        send = self._senders.get(cluster)
        if send is not None:
            send(message)
        return send is not None

    def place_of_files(self, record: TaskRecord, attempt: int | None) -> tuple[int, str]:
        """The number of an attempt of a task, by default the latest, and the cluster where its files are.

        The history of the task may be long, so this is for any thread but the loop's.
        """
        self.check_leading()
        which = attempt or record.attempt
        where = self._place_of(record, which)
        if where is None:
            raise NotFound(f"task {record.id} has no attempt {which}" if which else f"task {record.id} has not run yet")
        if record.spec.cwd is not None:
            raise NotFound(
                f"task {record.id} ran in {record.spec.cwd} on cluster {where}; TapFinger keeps no files of it"
            )
        return which, where

    async def files_of(
        self,
        task: int,
        place: tuple[int, str],
        path: str,
        listed: bool = False,
        after: str = "",
        offset: int = 0,
        asker: str = "",
    ) -> FileAnswer:
        """Part of the files that a task has left. ``place``: as ``place_of_files`` says. ``asker``: who asks."""
        self.check_leading()
        attempt, cluster = place
        return await self.files.ask(cluster, (task, attempt), path, listed, after, offset, asker)

    def _place_of(self, record: TaskRecord, attempt: int) -> str | None:
        """The cluster of an attempt; None if there is none."""
        if attempt == record.attempt and record.cluster is not None:
            return record.cluster
        lines = (line for _, line in self.store.history(0, 10_000, record.id) if isinstance(line, Granted))
        return next((line.cluster for line in lines if line.attempt == attempt), None)

    def output(self, cluster: str, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        """Keep a piece of output if its attempt is or was on that cluster; ``answer`` is called once it is kept."""
        record = self.store.task(chunk.id[0])
        known = record is not None and 1 <= chunk.id[1] <= record.attempt
        if not known or (record is not None and self._place_of(record, chunk.id[1]) != cluster):
            answer(LogSize(chunk.id, chunk.offset, full=True))
            return
        data, change = chunk.data.encode("latin-1"), Change()
        if self.kept.files is not None:
            try:
                self.kept.files.add(chunk.id, chunk.offset, data, chunk.skipped)
            except OSError as error:
                self._not_kept(chunk, answer, error)
                return
        elif data:
            change = Change(output=[Piece(chunk.id, chunk.offset, data, self.config.max_log, chunk.skipped)])
        self._commits.put(change, partial(self._kept, chunk, answer))

    def _not_kept(self, chunk: LogChunk, answer: Callable[[LogSize], None], error: OSError) -> None:
        """Ask for a piece again later: its agent has it, and the disk may have room by then."""
        why = error.strerror or error
        logger.warning("output of task %d cannot be kept: %s; it is asked for again", chunk.id[0], why)
        asyncio.get_running_loop().call_later(ASK_AGAIN, self._ask_again, chunk, answer)

    def _ask_again(self, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        try:
            size = self.kept.logs.size(chunk.id)
        except OSError:
            size = chunk.offset  # the same piece; what is there already is left out of it
        answer(LogSize(chunk.id, size))

    def _kept(self, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        try:
            size = self.kept.logs.size(chunk.id)
        except OSError as error:  # no failed save: only the store may stop a coordinator
            self._not_kept(chunk, answer, error)
            return
        answer(LogSize(chunk.id, size))
        if chunk.data:
            self.changes.announce()


def _sorted_out(specs: Sequence[TaskSpec], known: Mapping[str, int]) -> tuple[list[TaskSpec], list[tuple[bool, int]]]:
    """The tasks that are new; and for each of all whether it is new, with its position among these or its id."""
    fresh: list[TaskSpec] = []
    places: list[tuple[bool, int]] = []
    first: dict[str, tuple[TaskSpec, tuple[bool, int]]] = {}  # by key
    for spec in specs:
        if spec.key is not None and spec.key in first:
            earlier, place = first[spec.key]
            check_same(earlier, spec)
        elif spec.key is not None and spec.key in known:
            place = (False, known[spec.key])
        else:
            place = (True, len(fresh))
            fresh.append(spec)
        if spec.key is not None:
            first.setdefault(spec.key, (spec, place))
        places.append(place)
    return fresh, places
