"""The coordinator's process: it listens, serves, and writes its address to the state directory."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.live.http.agents import AgentEndpoint
from tapfinger.live.http.app import make_app
from tapfinger.live.http.connections import LoopServer
from tapfinger.live.http.door import Door
from tapfinger.live.http.known_addresses import KnownAddresses
from tapfinger.live.http.options import ServeOptions
from tapfinger.live.http.sockets import PacedSocket
from tapfinger.live.http.tls import AGENT_PROTOCOL, Certificate, covers, is_loopback
from tapfinger.live.service.service import Service
from tapfinger.live.state_dir import announce

logger = logging.getLogger(__name__)

#: Seconds after which Python lets another thread run: longer than most turns of the loop with the leases.
SWITCH = 0.01


def check_address(host: str, allow_remote: bool, encrypted: bool) -> None:
    """Refuse to listen beyond this machine, unless encrypted or explicitly allowed."""
    try:
        loopback = is_loopback(host)
    except ValueError:
        raise ConfigError(f"--host {host!r} must be an address such as 127.0.0.1, or localhost") from None
    if not loopback and not allow_remote and not encrypted:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and tokens would travel unencrypted; give "
            "--tls-cert and --tls-key, put a proxy with TLS before 127.0.0.1, or say --allow-remote"
        )


def addresses(host: str, port: int, names: Sequence[str] | None, advertise: str | None) -> dict[str, str]:
    """What a coordinator notes of its addresses. ``names``: those in its certificate; None without encryption.

    ``url`` works on this machine, with ``server_name`` as the name to find in the certificate where it is another.
    ``advertised`` is the address for others.
    """
    everywhere = host != "localhost" and ipaddress.ip_address(host).is_unspecified
    local = ("::1" if ":" in host else "127.0.0.1") if everywhere else host
    scheme = "http" if names is None else "https"
    found = {"url": _url(scheme, local, port)}
    # A name with a star stands for many, and is nobody's address.
    whole = [name for name in names or () if "*" not in name]
    if names and not any(covers(name, local) for name in names):
        found["server_name"] = whole[0] if whole else names[0].replace("*", "tapfinger")
    found["advertised"] = advertise or (_url(scheme, whole[0], port) if everywhere and whole else found["url"])
    return found


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_proxy(address: str | None) -> None:
    """Refuse a proxy that is not an address: names could be anyone's."""
    try:
        ipaddress.ip_address(address or "::1")
    except ValueError:
        raise ConfigError(f"--trust-proxy {address!r} must be an address such as 10.0.0.5") from None


def serve_site(state: Path, service: Service, options: ServeOptions, tls: Certificate | None = None) -> None:
    """Serve until told to stop; a failure of the store ends it with an error."""
    check_proxy(options.trust_proxy)
    listener = _listen(options.host, options.port)
    port = listener.getsockname()[1]
    here = addresses(options.host, port, None if tls is None else tls.names(), options.advertise)
    service.url = here["advertised"]
    site = _Serving(service, listener, tls, options.trust_proxy, KnownAddresses(state / "agent-addresses.json"))
    note = announce(state, "coordinator", **here, **({} if tls is None else {"ca": str(tls.cert)}))
    try:
        asyncio.run(site.run())
    finally:
        note.unlink(missing_ok=True)
    if site.failed:
        raise ConfigError(service.failure or "the coordinator could not go on, and the log says why; start it again")
    if site.signal is not None:
        signal.raise_signal(site.signal)  # end as anyone does who gets it


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}; try another --port") from None
    listener.listen(2048)  # before the address is announced
    return listener


class _Serving:
    """A coordinator's event loops: the service's with the agents on the main thread, and one for people on another."""

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        tls: Certificate | None,
        proxy: str | None,
        known: KnownAddresses,
    ) -> None:
        """``proxy``: an address that stands for many. ``known``: addresses from which agents have shown a token."""
        self._service = service
        #: Whether the service could not go on; the signal that ended it.
        self.failed = False
        self.signal: int | None = None
        context = None if tls is None else _context(tls)
        # The door knows agents by their first bytes; only a proxy may bring them in on connections of people.
        sockets = None if proxy is None else PacedSocket
        self._people = LoopServer(make_app(service, runs_service=False), context, proxy, sockets=sockets)
        endpoint = AgentEndpoint(service, lambda scope: self._door.book.prove(tuple(scope["client"])))
        self._agents = LoopServer(endpoint, context, lifespan=False)
        self._door = Door(listener, tls is not None, self._people.admit, self._agents.admit, proxy, known)
        self._thread = threading.Thread(target=self._serve_people, name="people")

    def _serve_people(self) -> None:
        try:
            asyncio.run(self._people.serve([]))
        except BaseException:
            logger.critical("people can no longer be served", exc_info=True)

    async def run(self) -> None:
        """Serve until the service fails, or a signal comes."""
        # Some work of other threads cannot be interrupted, such as reading a long JSON. So the loop with the leases
        # must get done what it has to do in one turn: else it waits for such work again and again.
        sys.setswitchinterval(SWITCH)
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number, ended)
        work = asyncio.create_task(self._service.run())
        work.add_done_callback(lambda _: ended.set())
        agents = asyncio.create_task(self._agents.serve([]))
        self._thread.start()
        try:
            await self._started(ended)
            self._door.open()
            while self._thread.is_alive() and not ended.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await ended.wait()
            self.failed = self.signal is None
        finally:
            await self._end(work, agents)

    async def _started(self, ended: asyncio.Event) -> None:
        while not (self._people.started and self._agents.started) and self._thread.is_alive() and not ended.is_set():
            await asyncio.sleep(0.01)

    def _signalled(self, number: int, ended: asyncio.Event) -> None:
        self.signal = number
        ended.set()

    async def _end(self, work: asyncio.Task[None], agents: asyncio.Task[None]) -> None:
        """Let nobody in, let requests end, then the agents' connections, then the service."""
        await asyncio.to_thread(self._door.close)
        self._people.should_exit = True
        await asyncio.to_thread(self._thread.join)
        self._agents.should_exit = True
        await asyncio.gather(agents, return_exceptions=True)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        self._service.close()


def _context(tls: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols([AGENT_PROTOCOL, "http/1.1"])
    return context
