"""Who may do what. A token is shown once, to whom it was made for; the store keeps only its hash."""

from __future__ import annotations

import hashlib
import secrets

from tapfinger.errors import ConfigError
from tapfinger.live.store import Store, Token

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


def issue(store: Store, name: str, role: str, cluster: str | None, now: float) -> str:
    """A new token; one of the same name stops working."""
    if role not in ROLES:
        raise ConfigError(f"there is no role {role!r}; roles are {', '.join(ROLES)}")
    if (role == "agent") != (cluster is not None):
        raise ConfigError("a token for an agent names its cluster, and no other token names one")
    token = f"tf_{secrets.token_urlsafe(32)}"
    store.add_token(Token(hashed(token), name, role, cluster, now))
    return token


def holder(store: Store, token: str) -> Token | None:
    """Whose token this is."""
    return store.token(hashed(token))
