"""Error answers, as the OpenAPI description lists them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Problem(BaseModel):
    """What is wrong, as text, or as a list of each fault in the body with its location."""

    detail: str | list[dict[str, Any]]


_MEANINGS = {
    400: "not a request that can be understood",
    401: "no valid token",
    403: "the token's role may not do this",
    404: "there is no such thing",
    408: "the request did not come in time",
    411: "the request does not say how long it is",
    413: "the request is too long",
    422: "what was asked for is impossible; the reason says why",
    429: "more tasks than may wait, or too many requests",
    503: "another coordinator leads, and X-Leader says which; the store is away; or too much is sent at once",
}

#: Error answers of every operation.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": meaning} for status, meaning in _MEANINGS.items()
}
