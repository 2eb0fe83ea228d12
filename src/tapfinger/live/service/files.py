"""Asks agents for files of tasks, on their own links: agents may be behind NAT, and nobody else can reach them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tapfinger.errors import AgentUnavailable, NotFound, TooMany
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.protocol.wire import FileAnswer, FileRequest, Message

#: Seconds to wait for an agent's answer.
PATIENCE = 15.0
#: Most requests to one agent at once: its reports share the link.
AT_ONCE = 4
#: Most requests that are under way: in all, to one agent, and of one person. An agent that does not answer takes up
#: only its own share, and so does whoever asks it.
WAITING, WAITING_AT_ONE, WAITING_OF_ONE = 256, 32, 16


@dataclass(slots=True)
class _Asked:
    cluster: str
    answer: asyncio.Future[FileAnswer]


@dataclass(slots=True)
class FileDesk:
    """Requests for files that agents have not answered yet. Must be used from one thread."""

    #: Sends a message to the agent of a cluster; returns whether that agent is connected.
    send: Callable[[str, Message], bool]
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _asked: dict[int, _Asked] = field(default_factory=dict)
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    #: Number of requests under way by cluster, and by who asks.
    _at: Counter[str] = field(default_factory=Counter)
    _of: Counter[str] = field(default_factory=Counter)

    async def ask(
        self,
        cluster: str,
        ident: AttemptId,
        path: str,
        listed: bool = False,
        after: str = "",
        offset: int = 0,
        asker: str = "",
    ) -> FileAnswer:
        """The answer of a cluster's agent. Raises NotFound, TooMany or AgentUnavailable."""
        request = FileRequest(next(self._numbers), ident, path, listed, after, offset)
        with self._counted(cluster, asker):
            try:
                async with asyncio.timeout(PATIENCE), self._turns.setdefault(cluster, asyncio.Semaphore(AT_ONCE)):
                    answer = await self._ask(cluster, request)
            except TimeoutError:
                raise AgentUnavailable(
                    f"the agent of cluster {cluster!r} has not answered for {PATIENCE:g} s; try again when it is "
                    "heard of"
                ) from None
        if answer.fault:
            raise NotFound(answer.fault)
        return answer

    @contextmanager
    def _counted(self, cluster: str, asker: str) -> Iterator[None]:
        if self._of[asker] >= WAITING_OF_ONE:
            raise TooMany(f"{WAITING_OF_ONE} of your requests for files are under way; try again later")
        if self._at[cluster] >= WAITING_AT_ONE:
            raise TooMany(f"{WAITING_AT_ONE} requests for files on cluster {cluster!r} are under way; try again later")
        if self._at.total() >= WAITING:
            raise TooMany(f"{WAITING} requests for files are under way; try again later")
        self._at[cluster] += 1
        self._of[asker] += 1
        try:
            yield
        finally:
            self._at -= Counter((cluster,))  # what is 0 then is dropped
            self._of -= Counter((asker,))

    async def _ask(self, cluster: str, request: FileRequest) -> FileAnswer:
        asked = _Asked(cluster, asyncio.get_running_loop().create_future())
        self._asked[request.number] = asked
        try:
            if not self.send(cluster, request):
                raise AgentUnavailable(
                    f"the agent of cluster {cluster!r}, where the files are, is not connected; try again when it is"
                )
            return await asked.answer
        finally:
            del self._asked[request.number]

    def answered(self, cluster: str, answer: FileAnswer) -> None:
        """Take an agent's answer. One that nobody waits for any more, or of another cluster, counts for nothing."""
        asked = self._asked.get(answer.number)
        if asked is not None and asked.cluster == cluster and not asked.answer.done():
            asked.answer.set_result(answer)
