"""Floods of requests against one coordinator on this machine: nobody's and a viewer's, each for a few seconds."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from live.sites import RealSite

from tapfinger.live.http.tls import AGENT_PROTOCOL, trust

#: Bytes of the longest body that a coordinator takes.
BODY = 16 * 1024 * 1024


@dataclass
class Target:
    """Where a flood goes, and whose tokens it has."""

    port: int
    ca: str | None
    viewer: str
    submitter: str
    #: Attempts so far.
    count: int = 0
    #: Connections that are held open until the flood is over.
    held: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, alpn: str = "http/1.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context: ssl.SSLContext | None = None
        if self.ca is not None:
            context = trust(self.ca)
            context.set_alpn_protocols([alpn])
        self.count += 1
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)


def head(method: str, path: str, token: str = "", **more: object) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def ask(target: Target, request: bytes, more: bytes = b"", alpn: str = "http/1.1") -> bytes:
    """Send a request on a connection of its own, and read the answer to its end, or for two seconds."""
    reader, writer = await target.connect(alpn)
    try:
        writer.write(request)
        if more:
            for start in range(0, len(more), 1 << 18):
                writer.write(more[start : start + (1 << 18)])
                await writer.drain()
        async with asyncio.timeout(2.0):
            return await reader.read(1 << 16)
    finally:
        writer.transport.abort()


async def bodies(target: Target) -> None:
    """Nobody's long bodies, with their length."""
    await ask(target, head("POST", "/api/v1/tasks", Content_Length=BODY), b"x" * BODY)


async def both_ways(target: Target) -> None:
    """A short length, and chunks without end."""
    request = head("POST", "/api/v1/tasks", target.submitter, Content_Length=5, Transfer_Encoding="chunked")
    chunk = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
    await ask(target, request, chunk * 64)


async def half_bodies(target: Target) -> None:
    """A submitter's long bodies that never end."""
    _, writer = await target.connect()
    writer.write(head("POST", "/api/v1/tasks", target.submitter, Content_Length=BODY) + b"[" * (1 << 20))
    target.held.append(writer)
    await asyncio.sleep(0.005)


async def silent(target: Target) -> None:
    """Connections that say nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    del reader
    target.count += 1
    target.held.append(writer)


async def slow_heads(target: Target) -> None:
    """Heads of requests that never end."""
    _, writer = await target.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")
    target.held.append(writer)


async def strangers(target: Target) -> None:
    """Agents without a token."""
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": 13}
    request = head("GET", "/api/v1/agent", **upgrade, Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==")
    await ask(target, request, alpn=AGENT_PROTOCOL)


async def garbage(target: Target) -> None:
    """What is no request."""
    await ask(target, b"\x00\xff no request\r\n\r\n" * 20)


async def guesses(target: Target) -> None:
    """Tokens that are none, from invented addresses."""
    await ask(target, head("GET", "/api/v1/tasks", f"tf_{target.count}", X_Forwarded_For=f"10.0.0.{target.count % 99}"))


async def long_lists(target: Target) -> None:
    """A viewer's longest lists."""
    await ask(target, head("GET", "/api/v1/tasks?limit=1000", target.viewer))


async def questions(target: Target) -> None:
    """A viewer's questions that need the machine."""
    for path in ("queue?limit=1000", "tasks/2/explain", "clusters", "overview", "profiles"):
        await ask(target, head("GET", f"/api/v1/{path}", target.viewer))
    await ask(target, head("GET", "/metrics", target.viewer))


async def unread(target: Target) -> None:
    """A viewer's long lists that are never read."""
    _, writer = await target.connect()
    writer.write(head("GET", "/api/v1/tasks?limit=1000", target.viewer))
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    target.held.append(writer)
    await asyncio.sleep(0.01)


async def scrapes(target: Target) -> None:
    """Metrics, of which some are made from the machine."""
    await ask(target, head("GET", "/metrics", target.viewer))


async def kept_secrets(target: Target) -> None:
    """A submitter's secrets, each of which is a transaction of its own."""
    body = json.dumps({"value": "x" * 16_000}).encode()
    name = f"KEY_{target.count % 64}"
    await ask(target, head("PUT", f"/api/v1/secrets/{name}", target.submitter, Content_Length=len(body)), body)


async def given_secrets(target: Target) -> None:
    """A submitter's tasks that all bring a long secret, in a short body."""
    tasks = [{"argv": ["true"], "type": "demo", "minimum": {"cpu": 4}, "secrets": ["KEY"]}] * 100
    body = json.dumps({"tasks": tasks, "secrets": {"KEY": "x" * 16_000}}).encode()
    await ask(target, head("POST", "/api/v1/tasks", target.submitter, Content_Length=len(body)), body)


async def submits_and_cancels(target: Target) -> None:
    """A submitter's tasks, each cancelled at once, and files and output of theirs."""
    body = json.dumps({"tasks": [{"argv": ["true"], "type": "demo", "minimum": {"cpu": 4}}]}).encode()
    answer = await ask(target, head("POST", "/api/v1/tasks", target.submitter, Content_Length=len(body)), body)
    task = answer.rpartition(b"[")[2].partition(b"]")[0].decode() or "1"
    for path in ("files", "logs", "explain"):
        await ask(target, head("GET", f"/api/v1/tasks/{task}/{path}", target.submitter, Connection="close"))
    await ask(target, head("POST", f"/api/v1/tasks/{task}/cancel", target.submitter, Content_Length=0))


async def wrong_batches(target: Target) -> None:
    """A submitter's long batches with a fault at their end."""
    tasks = [{"argv": ["x", "y" * 1000], "type": "demo"}] * 9_999 + [{"argv": [], "type": "demo"}]
    body = json.dumps({"tasks": tasks}).encode()
    await ask(target, head("POST", "/api/v1/tasks", target.submitter, Content_Length=len(body)), body)


Flood = Callable[[Target], Awaitable[None]]

#: By name: what is done again and again, and by how many at once.
FLOODS: dict[str, tuple[Flood, int]] = {
    "nobody: long bodies": (bodies, 16),
    "nobody: silent connections": (silent, 8),
    "nobody: endless heads": (slow_heads, 8),
    "nobody: as agents": (strangers, 8),
    "nobody: garbage": (garbage, 8),
    "nobody: guessed tokens": (guesses, 8),
    "viewer: long lists": (long_lists, 40),
    "viewer: questions": (questions, 16),
    "viewer: answers not read": (unread, 8),
    "viewer: scrapes": (scrapes, 40),
    "submitter: length and chunks": (both_ways, 8),
    "submitter: half bodies": (half_bodies, 4),
    "submitter: wrong batches": (wrong_batches, 8),
    "submitter: secrets": (kept_secrets, 16),
    "submitter: secrets with tasks": (given_secrets, 16),
    "submitter: submits and cancels": (submits_and_cancels, 16),
}

#: Connections that a flood holds at most; the oldest are dropped.
HELD = 1200


def flood(site: RealSite, names: Iterable[str], seconds: float, tokens: dict[str, str]) -> dict[str, int]:
    """Flood the site's coordinator for some seconds, with several kinds at once. Returns the attempts of each."""
    targets = {name: Target(site.port, site.ca, tokens["viewer"], tokens["submitter"]) for name in names}

    async def all_kinds() -> None:
        await asyncio.gather(*(_flood(target, *FLOODS[name], seconds) for name, target in targets.items()))

    asyncio.run(all_kinds())
    return {name: target.count for name, target in targets.items()}


async def _flood(target: Target, one: Flood, at_once: int, seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds

    async def again() -> None:
        while asyncio.get_running_loop().time() < end:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
                await one(target)
            while len(target.held) > HELD:
                target.held.pop(0).close()
            await asyncio.sleep(0)

    await asyncio.gather(*(again() for _ in range(at_once)))
    for writer in target.held:
        writer.transport.abort()
    await asyncio.sleep(0.1)  # transports end in later turns of the loop


def memory(pid: int, what: str = "VmRSS") -> float:
    """Megabytes that a process uses, or with ``VmHWM`` has used at most."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024


def longest_lag(metrics: str) -> float:
    """Seconds: the longest lateness of the last minute, from the metrics' text."""
    (line,) = (line for line in metrics.splitlines() if line.startswith("tapfinger_longest_loop_lag_seconds "))
    return float(line.split()[1])
