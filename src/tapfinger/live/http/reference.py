"""The page ``/docs``: the interface described in plain HTML, without a script and without anything from elsewhere."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response
from jinja2 import Environment

from tapfinger.live.http.dashboard_routes import CACHING, SECURITY


def add_reference(app: FastAPI) -> None:
    """Add the page."""

    @cache
    def made() -> bytes:
        return reference_page(app.openapi(), app.openapi_url or "").encode()

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def docs() -> Response:
        return Response(made(), media_type="text/html", headers={**SECURITY, **CACHING})


def reference_page(description: dict[str, Any], url: str) -> str:
    """A page made from an OpenAPI description, which programs get at ``url``."""
    template = files("tapfinger.live.http").joinpath("reference.html").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(template).render(api=description, description=url, shape=_shape)


def _shape(schema: dict[str, Any]) -> str:
    """A schema as text: references by name, and no titles, which repeat names."""
    if set(schema) - {"title"} <= {"type", "default"} and "type" in schema:
        given = f" = {json.dumps(schema['default'])}" if "default" in schema else ""
        return f"{schema['type']}{given}"
    return json.dumps(_bare(schema), indent=1, ensure_ascii=False)


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$ref"}:
        return str(value["$ref"]).rpartition("/")[2]
    return {key: _bare(one) for key, one in value.items() if not (key == "title" and isinstance(one, str))}
