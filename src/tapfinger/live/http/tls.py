"""TLS between coordinator, agents and people: which certificate to present, and which to trust."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tapfinger.errors import ConfigError

#: Name by which agents say in the greeting of TLS (ALPN) what they are.
AGENT_PROTOCOL = "tapfinger-agent"
#: Number of the extension of TLS in which protocols are named (RFC 7301).
_ALPN = 16


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate that a coordinator presents, and its key."""

    cert: Path
    key: Path

    def names(self) -> tuple[str, ...]:
        """Host names and addresses that it is valid for, as written in it; none if it is not valid today."""
        return _names(self.cert, self.key)


def certificate(cert: Path | None, key: Path | None) -> Certificate | None:
    """Both files, after a check that they match; None if neither is given."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key are needed together: a certificate and the key that belongs to it")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"--tls-cert {cert} and --tls-key {key} cannot be used: {error}") from None
    return Certificate(cert.absolute(), key.absolute())


def _names(cert: Path, key: Path) -> tuple[str, ...]:
    """Names in a certificate. The standard library tells them of a peer alone, so one end here greets the other."""
    presents, reads = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    presents.load_cert_chain(cert, key)
    reads.load_verify_locations(cert)
    reads.check_hostname = False
    reads.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = reads.wrap_bio(back, there), presents.wrap_bio(there, back, server_side=True)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:  # the other end has the word
            continue
        except ssl.SSLError:  # too old, or for another purpose: whoever connects is told so
            return ()
    shown: Any = client.getpeercert() or {}
    alternatives = [name for kind, name in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    common = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return tuple(alternatives or common)


def offers(greeting: bytes, protocol: str) -> bool:
    """Whether a greeting of TLS names this protocol (ALPN), as far as it can be read."""

    def number(at: int, width: int) -> int:
        return int.from_bytes(greeting[at : at + width], "big")

    at = 43  # kinds, lengths, versions and random bytes
    for width in (1, 2, 1):  # the session, ciphers and compressions, each with its length
        at += width + number(at, width)
    at += 2  # the length of all extensions
    while at < len(greeting):
        kind, begin = number(at, 2), at + 4
        at = begin + number(at + 2, 2)
        if kind == _ALPN:
            return bytes([len(protocol)]) + protocol.encode() in greeting[begin:at]
    return False


def covers(name: str, host: str) -> bool:
    """Whether a name in a certificate is the one of this host."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        return name.lower() == host.lower()


def trust(ca: Path | str | None) -> ssl.SSLContext:
    """A context that trusts what this machine trusts, and the certificates in ``ca``, of an authority or not."""
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            raise ConfigError(f"{ca} cannot be read as a file of certificates: {error}") from None
        # A coordinator's own certificate is enough, even if an authority has signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def is_loopback(host: str) -> bool:
    """Whether an address is this machine itself; raises ValueError if it is not an address."""
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def travels_openly(url: str) -> bool:
    """Whether traffic to this URL leaves this machine unencrypted."""
    parts = urlsplit(url)
    try:
        return parts.scheme in ("http", "ws") and not is_loopback(parts.hostname or "")
    except ValueError:
        return parts.scheme in ("http", "ws")  # a name, which may be anywhere
