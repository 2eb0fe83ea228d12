"""Tokens and the roles they give. A token is shown only once, when it is made; the store keeps only its hash."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.live.store.store import Store, Token

#: What each role may do; an agent may only speak for its own cluster.
ROLES: dict[str, frozenset[str]] = {
    "metrics": frozenset({"see metrics"}),
    "viewer": frozenset({"see metrics", "read"}),
    "submitter": frozenset({"see metrics", "read", "submit"}),
    "operator": frozenset({"see metrics", "read", "submit", "operate"}),
    "agent": frozenset({"agent"}),
}


def hashed(token: str) -> str:
    """The hash of a token. One round of a plain hash is safe, since a token has 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()


def issue(
    store: Store,
    name: str,
    role: str,
    cluster: str | None,
    now: float,
    lasts: float | None = None,
    inherit: bool = False,
) -> str:
    """Make a token; an earlier one of the same name stops working. ``lasts``: seconds; None for unlimited.

    ``inherit``: also if the name was revoked and tasks are left of whoever had it; the token is then the owner's.
    """
    if role not in ROLES:
        raise ConfigError(f"there is no role {role!r}; roles are {', '.join(ROLES)}")
    if (role == "agent") != (cluster is not None):
        raise ConfigError("a token for an agent names its cluster, and no other token names one")
    if not inherit and store.is_left(name):
        raise ConfigError(
            f"the name {name!r} was revoked, and tasks of it are left: whoever has the name next sees all of them and "
            "may cancel them. Choose another name; or, for the same person, say so with --inherit"
        )
    token = f"tf_{secrets.token_urlsafe(32)}"
    store.add_token(Token(hashed(token), name, role, cluster, now, None if lasts is None else now + lasts))
    return token


def holder(store: Store, token: str, now: float) -> Token | None:
    """The holder of this token; None if it is not valid."""
    found = store.token(hashed(token))
    return found if found is not None and not found.expired(now) else None


def first(store: Store, state: Path, now: float) -> str:
    """The first operator's token, kept in the state directory; empty if another coordinator has it."""
    path = state / "token"
    if path.exists():
        kept = path.read_text(encoding="ascii").strip()
        if holder(store, kept, now) is not None:
            return kept
    if store.shared and any(token.name == "first" for token in store.tokens()):
        return ""
    path.unlink(missing_ok=True)
    token = issue(store, "first", "operator", None, now, inherit=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{token}\n")
    return token
