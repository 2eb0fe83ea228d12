"""The HTTP interface against its own description: whatever is sent, it answers as it says it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from live.sites import RealSite
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: Requests for each operation and kind of data.
EXAMPLES = 15


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    made = RealSite(tmp_path_factory.mktemp("fuzz"))
    made.serve()
    yield made
    made.close()


def with_short_values(schema: Any) -> Any:
    """The same description, but nothing long is made up: that takes most of the time, and finds nothing."""
    if isinstance(schema, dict):
        short = {"maxLength": 50, "maxItems": 5, "maxProperties": 5}
        return {k: min(v, short[k]) if k in short else with_short_values(v) for k, v in schema.items()}
    return [with_short_values(item) for item in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_interface_answers_as_it_says(site: RealSite, mode: GenerationMode) -> None:
    raw = httpx.get(f"{site.url}/openapi.json", trust_env=False).json()
    schema = schemathesis.openapi.from_dict(with_short_values(raw))
    token = (site.state / "token").read_text().strip()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 12
    for operation in operations:

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def play(case: schemathesis.Case) -> None:
            if isinstance(case.query, dict) and "wait" in case.query:
                case.query["wait"] = 0  # an answer that comes later is the same answer
            response = case.call(base_url=site.url, headers={"Authorization": f"Bearer {token}"})
            case.validate_response(response, checks=CHECKS)

        with suppress(Unsatisfiable):  # an operation that takes nothing cannot be given anything wrong
            play()
    assert site.processes["coordinator"].poll() is None
