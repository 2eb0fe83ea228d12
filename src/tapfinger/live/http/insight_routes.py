"""HTTP routes for explanations, shadow schedulers, the site, the history and metrics."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from tapfinger.core.contract import Phase
from tapfinger.live.http.task_view import seen_by
from tapfinger.live.insight.metrics import CountRequests
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

#: Phases of tasks that have run to an end.
RAN = (Phase.FINISHED, Phase.FAILED)

TaskId = Annotated[int, Field(ge=1, le=2**62)]


def add_insight(app: FastAPI, service: Service, may: Callable[[str], Any]) -> None:
    """Add the routes, and the counting of requests."""
    insight = service.insight
    app.add_middleware(CountRequests, telemetry=insight.telemetry)

    @app.get("/api/v1/tasks/{task}/explain")
    async def explain(task: TaskId, token: Annotated[Token, may("read")]) -> dict[str, Any]:
        """Why a task waits and when it may start, or why it got its cluster and size."""
        return await insight.reasons.explain(seen_by(token, service.task(task)))

    @app.get("/api/v1/queue", dependencies=[may("read")])
    async def queue(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> dict[str, Any]:
        """The first waiting tasks, each with a reason and an estimate."""
        return await insight.reasons.queue(limit)

    @app.get("/api/v1/shadow", dependencies=[may("read")])
    async def shadow() -> dict[str, Any]:
        """What the shadow schedulers would have done."""
        return {"scheduler": service.config.scheduler, "shadows": insight.shadows.report()}

    @app.get("/api/v1/site", dependencies=[may("read")])
    async def site() -> dict[str, Any]:
        """Clusters and task types as configured, the scheduler that decides, and learned speeds."""
        # Learned speeds reach the store a few seconds late; the latest tasks in the history cover the rest.
        learned = [asdict(row) for row in service.store.learned()]
        told = {"scenario": service.site.plan, "scheduler": service.config.scheduler}
        return {**told, "doubt": service.config.doubt, "learned": learned}

    @app.get("/api/v1/history", dependencies=[may("read")])
    async def history(
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
        phase: Annotated[list[Phase] | None, Query()] = None,
    ) -> dict[str, Any]:
        """Tasks that have run, newest first; ``next`` is the ``before`` of the next page."""
        found = service.tasks(phase or RAN, limit, before)
        return {
            "tasks": [_run(record, service) for record in found],
            "next": found[-1].id if len(found) == limit else None,
        }

    @app.get(
        "/metrics",
        dependencies=[may("see metrics")],
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(insight.telemetry.registry), media_type=CONTENT_TYPE_LATEST)


def _run(record: TaskRecord, service: Service) -> dict[str, Any]:
    spec, size = record.spec, record.allocation
    names, units = service.site.resources.names, service.site.resources.units
    return {
        "task": record.id,
        "type": spec.type,
        "minimum": spec.minimum,
        "maximum": spec.maximum,
        "clusters": list(spec.clusters),
        "phase": record.phase.value,
        "submitted": record.submitted,
        "started": record.started,
        "ended": record.ended,
        "cluster": record.cluster,
        "allocation": size and {n: a * u for n, a, u in zip(names, size, units, strict=True)},
        "code": record.code,
        "progress": record.progress,
        "metrics": record.metrics,
        "incomplete": record.incomplete,
        "steady": not record.resized,
    }
