"""HTTP routes for secrets. Their values go in, and never come out."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.protocol.records import MAX_VALUE, Variable
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

SecretValue = Annotated[str, Field(min_length=1, max_length=MAX_VALUE, pattern=r"^[^\x00]*$")]


class NewSecret(BaseModel):
    """The value of a secret."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    value: SecretValue


def add_secrets(app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any]) -> None:
    """Add the routes. Each token's holder sees and changes only secrets of their own."""

    @app.get("/api/v1/secrets", response_model=dict[str, Any])
    async def secrets(request: Request, token: Annotated[Token, may("submit")]) -> Response:
        """Names of the secrets that the token's holder keeps, and when each was set; never their values."""
        kept = service.store.secrets.kept
        return await workers.answer(request, lambda: {"secrets": [asdict(one) for one in kept(token.name)]})

    @app.put("/api/v1/secrets/{name}")
    async def keep(
        request: Request, name: Variable, body: NewSecret, token: Annotated[Token, may("submit")]
    ) -> dict[str, str]:
        """Keep a secret for later tasks of the token's holder, or give it another value."""
        await service.bridge.run(service.all_saved)
        await workers.run(request, partial(service.keep_secret, token.name, name, body.value))
        return {"kept": name}

    @app.delete("/api/v1/secrets/{name}")
    async def remove(request: Request, name: Variable, token: Annotated[Token, may("submit")]) -> dict[str, str]:
        """Remove a secret. Tasks that wait with it will fail when they are to start."""
        await workers.run(request, partial(service.remove_secret, token.name, name))
        return {"removed": name}
