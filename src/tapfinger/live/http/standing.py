"""Whether the token of a request is still valid when the request has taken its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request

from tapfinger.errors import StoreFailed, StoreUnavailable
from tapfinger.live.store.store import Token

#: Seconds after a lookup in which a token is not looked up again: most requests take less.
RECENT = 0.05

NO_LONGER = "the token has expired, or was revoked or replaced, while the request was under way"


class Standing:
    """The holder of a request's token, who is looked up again when time has passed."""

    def __init__(self, look: Callable[[], Awaitable[Token | None]], holder: Token) -> None:
        """``look`` has just found ``holder``."""
        self._look = look
        self._holder = holder
        self._at = asyncio.get_running_loop().time()

    async def check(self) -> None:
        """Raise an HTTPException unless the token is valid as it was."""
        now = asyncio.get_running_loop().time()
        if now < self._at + RECENT:
            return
        try:
            found = await self._look()
        except (StoreFailed, StoreUnavailable) as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        if found != self._holder:
            raise HTTPException(401, NO_LONGER, {"Connection": "close"})
        self._at = now


async def check_standing(request: Request) -> None:
    """Raise an HTTPException if the request's token has become invalid. To be called after each wait."""
    standing: Standing | None = getattr(request.state, "standing", None)
    if standing is not None:
        await standing.check()
