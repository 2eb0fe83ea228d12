"""Asks agents for files of tasks, on their own links: agents may be behind NAT, and nobody else can reach them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tapfinger.errors import AgentUnavailable, NotFound, TooMany
from tapfinger.live.protocol.messages import AttemptId
from tapfinger.live.protocol.wire import FileAnswer, FileRequest, Message

#: Seconds to wait for an agent's answer.
PATIENCE = 15.0
#: Most requests to one agent at once: its reports share the link.
AT_ONCE = 4
#: Most requests that wait for their turn, of all people and agents together.
WAITING = 64


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
    _waiting: int = 0

    async def ask(
        self, cluster: str, ident: AttemptId, path: str, listed: bool = False, after: str = "", offset: int = 0
    ) -> FileAnswer:
        """The answer of a cluster's agent. Raises NotFound, TooMany or AgentUnavailable."""
        if self._waiting >= WAITING:
            raise TooMany(f"{WAITING} requests for files are under way; try again later")
        request = FileRequest(next(self._numbers), ident, path, listed, after, offset)
        self._waiting += 1
        try:
            async with asyncio.timeout(PATIENCE), self._turns.setdefault(cluster, asyncio.Semaphore(AT_ONCE)):
                answer = await self._ask(cluster, request)
        except TimeoutError:
            raise AgentUnavailable(
                f"the agent of cluster {cluster!r} has not answered for {PATIENCE:g} s; try again when it is heard of"
            ) from None
        finally:
            self._waiting -= 1
        if answer.fault:
            raise NotFound(answer.fault)
        return answer

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
