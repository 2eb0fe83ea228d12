"""Who may do what. A token is shown once, to whom it was made for; the store keeps only its hash."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from tapfinger.errors import ConfigError
from tapfinger.live.store.store import Store, Token

#: What each role may do; an agent only speaks for its cluster.
ROLES: dict[str, frozenset[str]] = {
    "viewer": frozenset({"read"}),
    "submitter": frozenset({"read", "submit"}),
    "operator": frozenset({"read", "submit", "operate"}),
    "agent": frozenset({"agent"}),
}


def hashed(token: str) -> str:
    """A token has 256 random bits, so one round of a plain hash cannot be guessed back."""
    return hashlib.sha256(token.encode()).hexdigest()


def issue(store: Store, name: str, role: str, cluster: str | None, now: float, lasts: float | None = None) -> str:
    """A new token; one of the same name stops working. ``lasts``: seconds until it does itself; None: for ever."""
    if role not in ROLES:
        raise ConfigError(f"there is no role {role!r}; roles are {', '.join(ROLES)}")
    if (role == "agent") != (cluster is not None):
        raise ConfigError("a token for an agent names its cluster, and no other token names one")
    token = f"tf_{secrets.token_urlsafe(32)}"
    store.add_token(Token(hashed(token), name, role, cluster, now, None if lasts is None else now + lasts))
    return token


def holder(store: Store, token: str, now: float) -> Token | None:
    """Whose token this is, if it is valid."""
    found = store.token(hashed(token))
    return found if found is not None and not found.expired(now) else None


def first(store: Store, state: Path, now: float) -> str:
    """The token of the one who set the site up, kept in the state directory; "" where another coordinator has it."""
    path = state / "token"
    if path.exists():
        kept = path.read_text(encoding="ascii").strip()
        if holder(store, kept, now) is not None:
            return kept
    if store.shared and any(token.name == "first" for token in store.tokens()):
        return ""
    path.unlink(missing_ok=True)
    token = issue(store, "first", "operator", None, now)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{token}\n")
    return token
