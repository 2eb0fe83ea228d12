"""Requests of people and agents to the coordinator: tasks, clusters, tokens, reports and output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from tapfinger.core.contract import Phase
from tapfinger.errors import AgentRefused, ConfigError, NotFound, NotLeading, TooMany
from tapfinger.live.backends.environment import refused_names
from tapfinger.live.coordinator.group_commit import Change
from tapfinger.live.coordinator.inputs import Cancel, Drain, GiveUp, Submit
from tapfinger.live.protocol.events import Granted
from tapfinger.live.protocol.messages import VERSION, AttemptId, Report
from tapfinger.live.protocol.records import TaskRecord, TaskSpec
from tapfinger.live.protocol.wire import LogChunk, LogSize, Message
from tapfinger.live.service import standby
from tapfinger.live.service.leading import Leading
from tapfinger.live.store import tokens
from tapfinger.live.store.secrets import MAX_GIVEN, TaskSecret
from tapfinger.live.store.store import Piece

#: No secrets are given.
NOTHING: Mapping[str, str] = MappingProxyType({})


class Service(Leading):
    """One coordinator. Must be used from one thread."""

    # --------------------------------------------------------------------- people

    async def submit(self, specs: Sequence[TaskSpec], owner: str, secrets: Mapping[str, str] = NOTHING) -> list[int]:
        """Accept tasks and return their ids; they are on disk by then. A key used before returns the earlier task.

        ``secrets``: values for these tasks only.
        """
        for spec in specs:
            if refused := refused_names([*spec.env, *spec.secrets], self.config.env_names):
                raise ConfigError(
                    f"variable {refused[0]!r} may not be set; this site allows {', '.join(self.config.env_names)}"
                )
        room = self.config.max_waiting - self._machine.waiting
        known = self._known(owner, [spec.key for spec in specs if spec.key is not None])
        fresh: list[TaskSpec] = []
        keys: dict[str, int] = {}  # position in fresh
        places: list[tuple[bool, int]] = []  # for each spec: whether it is new; its position in fresh, or its id
        for spec in specs:
            record = known.get(spec.key) if spec.key is not None else None
            same = record.spec if record is not None else fresh[keys[spec.key]] if spec.key in keys else None
            if same not in (None, spec):
                raise ConfigError(f"key {spec.key!r} was used for another task; use another key")
            if record is not None:
                places.append((False, record.id))
                continue
            if same is None:
                fresh.append(spec)
                if spec.key is not None:
                    keys[spec.key] = len(fresh) - 1
            places.append((True, len(fresh) - 1 if spec.key is None else keys[spec.key]))
        if unused := sorted(secrets.keys() - {name for spec in specs for name in spec.secrets}):
            raise ConfigError(f"a value for secret {unused[0]!r} was given, but no task names it in its secrets")
        self._check_secrets(fresh, owner, secrets)
        if len(fresh) > room:
            raise TooMany(f"{len(fresh)} tasks are more than the {max(0, room)} that may still wait; try again later")
        made = self._act(Submit(fresh, owner)) if fresh else ()
        unsaved = {(owner, record.spec.key): record for record in made if record.spec.key is not None}
        self._unsaved |= unsaved
        given = [
            TaskSecret(owner, name, record.id, record.submitted, secrets[name])
            for record in made
            for name in record.spec.secrets
            if name in secrets
        ]
        if given:  # in the same transaction as the tasks, since nothing else ran in between
            self._commits.put(Change(secrets=given), lambda: None)
        await self._commits.flush()
        for pair in unsaved:
            self._unsaved.pop(pair, None)
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
        count = sum(name in given for spec in specs for name in spec.secrets)
        if count and count + self.store.secrets.given(owner) > MAX_GIVEN:
            raise TooMany(
                f"{owner} may have given {MAX_GIVEN} secrets with tasks that have not ended; keep those that many "
                "tasks use with 'tapfinger secret set'"
            )

    async def keep_secret(self, owner: str, name: str, value: str) -> None:
        """Keep a secret for later tasks of its owner, or give it another value."""
        if refused := refused_names([name], self.config.env_names):
            raise ConfigError(
                f"variable {refused[0]!r} may not be set; this site allows {', '.join(self.config.env_names)}"
            )
        self.check_leading()
        await self._commits.flush()  # tasks that were accepted before have lower numbers than those in the store
        self.store.secrets.keep(owner, name, value, self.store.next_id(), self.now())

    def remove_secret(self, owner: str, name: str) -> None:
        """Remove a secret that its owner keeps."""
        self.check_leading()
        if not self.store.secrets.remove(owner, name):
            raise NotFound(f"{owner} keeps no secret {name!r}")

    def _known(self, owner: str, keys: Sequence[str]) -> dict[str, TaskRecord]:
        """Tasks submitted with these keys, including those not yet on disk."""
        unsaved = {key: self._unsaved[owner, key] for key in keys if (owner, key) in self._unsaved}
        return self.store.by_keys(owner, [key for key in keys if key not in unsaved]) | unsaved

    async def cancel(self, ident: int) -> TaskRecord:
        """Cancel a task, or order its agent to stop it; a task that has ended stays as it is."""
        if ident in self._machine.tasks:
            self._act(Cancel(ident))
        await self._commits.flush()
        return self.task(ident)

    def task(self, ident: int) -> TaskRecord:
        """The current record of a task."""
        record = self.store.task(ident)
        if record is None:
            raise NotFound(f"there is no task {ident}")
        return self._fresh(record)

    def _fresh(self, record: TaskRecord) -> TaskRecord:
        """Add the progress that the task has reported since its record was last saved."""
        running = None if self._leading is None else self._leading.tasks.get(record.id)
        if running is not None and running.attempt == record.attempt:
            record.progress, record.metrics = running.progress, running.metrics
        return record

    @property
    def heard(self) -> int:
        """A counter that increases when tasks report new progress."""
        return 0 if self._leading is None else self._leading.progress.count

    def progress(self) -> list[dict[str, object]]:
        """Progress of each running task that reports any."""
        running = () if self._leading is None else self._leading.tasks.values()
        return [
            {"task": r.id, "attempt": r.attempt, "progress": r.progress, "metrics": r.metrics}
            for r in running
            if r.progress is not None
        ]

    def tasks(self, phases: Sequence[Phase], limit: int, before: int | None) -> list[TaskRecord]:
        """The latest tasks in these phases, or in any phase, newest first."""
        return [self._fresh(record) for record in self.store.tasks(phases, limit, before)]

    def clusters(self) -> list[dict[str, object]]:
        """Every cluster, as shown to people."""
        return standby.clusters(self.site, self.store) if self._leading is None else self._leading.clusters(self.now())

    async def drain(self, cluster: str, drained: bool) -> None:
        """Drain a cluster so that it takes no new tasks, or let it take them again."""
        self._act(Drain(cluster, drained))
        await self._commits.flush()

    async def give_up(self, cluster: str) -> None:
        """Give up a silent cluster that a person says is gone."""
        self._act(GiveUp(cluster))
        await self._commits.flush()

    def issue(self, name: str, role: str, cluster: str | None, lasts: float | None = None) -> str:
        """Make a token. ``lasts``: seconds, None for unlimited."""
        if self._leading is None:
            raise NotLeading(self._leader)
        if cluster is not None and cluster not in self.site.index:
            raise NotFound(f"there is no cluster {cluster!r}")
        return tokens.issue(self.store, name, role, cluster, self.now(), lasts)

    def revoke(self, name: str) -> None:
        """Revoke the token of this name."""
        if not self.store.remove_token(name):
            raise NotFound(f"there is no token of the name {name!r}")

    # --------------------------------------------------------------------- agents

    def check_leading(self) -> None:
        """Raise NotLeading, with the leader's address, if another coordinator leads."""
        if self._leading is None:
            raise NotLeading(self._leader)

    def disconnect(self, cluster: str, send: Callable[[Message], None]) -> None:
        """Forget a connection that is gone, unless the agent has a new one."""
        if self._senders.get(cluster) is send:
            del self._senders[cluster]

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
            self.disconnect(report.cluster, send)
            if before is not None and before is not send:
                self._senders[report.cluster] = before
            raise
        if heard != self.heard:
            self._announce()

    def output(self, cluster: str, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        """Keep a piece of output if its attempt is or was on that cluster; ``answer`` is called once it is kept."""
        record = self.store.task(chunk.id[0])
        known = record is not None and 1 <= chunk.id[1] <= record.attempt
        if not known or (record is not None and not self._ran_on(record, chunk.id, cluster)):
            answer(LogSize(chunk.id, chunk.offset, full=True))
            return
        data, change = chunk.data.encode("latin-1"), Change()
        if self.kept.files is not None:
            self.kept.files.add(chunk.id, chunk.offset, data, chunk.skipped)
        elif data:
            change = Change(output=[Piece(chunk.id, chunk.offset, data, self.config.max_log, chunk.skipped)])
        self._commits.put(change, partial(self._kept, chunk, answer))

    def _kept(self, chunk: LogChunk, answer: Callable[[LogSize], None]) -> None:
        answer(LogSize(chunk.id, self.kept.logs.size(chunk.id)))
        if chunk.data:
            self._announce()

    def _ran_on(self, record: TaskRecord, ident: AttemptId, cluster: str) -> bool:
        if record.attempt_id == ident and record.cluster is not None:
            return record.cluster == cluster
        return any(
            isinstance(line, Granted) and (line.attempt, line.cluster) == (ident[1], cluster)
            for _, line in self.store.history(0, 10_000, record.id)
        )
