"""The page ``/docs``: the interface described in plain HTML, without a script and without anything from elsewhere."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi import FastAPI, Response
from jinja2 import Environment

from tapfinger.live.http.dashboard_routes import CACHING, SECURITY

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ api.info.title }} {{ api.info.version }}</title>
<link rel="icon" href="/dashboard/icon.svg">
<link rel="stylesheet" href="/dashboard/reference.css">
</head>
<body>
<h1>{{ api.info.title }} {{ api.info.version }}</h1>
<p>Send a token with each request: <code>Authorization: Bearer ...</code>. For programs:
<a href="{{ description }}">{{ description }}</a> (OpenAPI).</p>
{% for path, methods in api.paths.items() %}{% for method, operation in methods.items() %}
<section id="{{ operation.operationId }}">
<h2>{{ method | upper }} {{ path }}</h2>
{% if operation.description %}<p>{{ operation.description }}</p>{% endif %}
{% if operation.parameters %}<table>
<tr><th>parameter</th><th>in</th><th>value</th></tr>
{% for parameter in operation.parameters %}<tr><td><code>{{ parameter.name }}</code></td><td>{{ parameter["in"] }}</td>
<td><code>{{ shape(parameter.schema) }}</code>{% if parameter.required %}, needed{% endif %}</td></tr>
{% endfor %}</table>{% endif %}
{% if operation.requestBody %}<p>Body:</p>
<pre>{{ shape(operation.requestBody.content["application/json"].schema) }}</pre>{% endif %}
<p>Answers: {% for status, answer in operation.responses.items() %}
<b>{{ status }}</b> {{ answer.description }}{% if not loop.last %}; {% endif %}{% endfor %}</p>
</section>
{% endfor %}{% endfor %}
<h2>Bodies</h2>
{% for name, schema in api.components.schemas.items() %}
<section id="schema-{{ name }}"><h3>{{ name }}</h3>
{% if schema.description %}<p>{{ schema.description }}</p>{% endif %}
<pre>{{ shape(schema) }}</pre></section>
{% endfor %}
</body>
</html>
"""


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
    page = Environment(autoescape=True).from_string(_PAGE)
    return page.render(api=description, description=url, shape=_shape)


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
