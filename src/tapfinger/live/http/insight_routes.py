"""HTTP routes for explanations, shadow schedulers, the site, the history and metrics."""

# No `from __future__ import annotations` here: FastAPI reads the annotations.

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from tapfinger.core.contract import Phase
from tapfinger.live.http.answer_threads import AnswerThreads
from tapfinger.live.http.pages import MOST, page_of, with_tasks
from tapfinger.live.http.task_view import seen_by
from tapfinger.live.http.waiting import asked, explained
from tapfinger.live.insight.metrics import CountRequests
from tapfinger.live.protocol.records import TaskRecord
from tapfinger.live.service.service import Service
from tapfinger.live.store.store import Token

#: Phases of tasks that have run to an end.
RAN = (Phase.FINISHED, Phase.FAILED)

TaskId = Annotated[int, Field(ge=1, le=2**62)]


def add_insight(app: FastAPI, service: Service, workers: AnswerThreads, may: Callable[[str], Any]) -> None:
    """Add the routes, and the counting of requests."""
    insight = service.insight
    app.add_middleware(CountRequests, telemetry=insight.telemetry)

    @app.get("/api/v1/tasks/{task}/explain", response_model=dict[str, Any])
    async def explain(request: Request, task: TaskId, token: Annotated[Token, may("read")]) -> Response:
        """Why a task waits and when it may start, or why it got its cluster and size."""
        record = await workers.run(request, partial(service.task, task))
        found = await explained(request, service, partial(insight.reasons.explain, seen_by(token, record)))
        return await workers.answer(request, lambda: found)

    @app.get("/api/v1/queue", response_model=dict[str, Any])
    async def queue(
        request: Request, token: Annotated[Token, may("read")], limit: Annotated[int, Query(ge=1, le=MOST)] = 100
    ) -> Response:
        """The first waiting tasks, each with a reason and an estimate."""
        found = await explained(request, service, partial(insight.reasons.queue, limit, partial(seen_by, token)))
        return await workers.answer(request, lambda: found)

    @app.get("/api/v1/shadow", dependencies=[may("read")], response_model=dict[str, Any])
    async def shadow(request: Request) -> Response:
        """What the shadow schedulers would have done."""
        report = await asked(request, service, insight.shadows.report)
        return await workers.answer(request, lambda: {"scheduler": service.config.scheduler, "shadows": report})

    @app.get("/api/v1/site", dependencies=[may("read")], response_model=dict[str, Any])
    async def site(request: Request) -> Response:
        """Clusters and task types as configured, the scheduler that decides, and learned speeds."""

        def look() -> dict[str, Any]:
            # Learned speeds reach the store a few seconds late; the latest tasks in the history cover the rest.
            learned = [asdict(row) for row in service.store.learned()]
            told = {"scenario": service.site.plan, "scheduler": service.config.scheduler}
            return {**told, "doubt": service.config.doubt, "learned": learned}

        return await workers.answer(request, look)

    @app.get("/api/v1/history", dependencies=[may("read")], response_model=dict[str, Any])
    async def history(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MOST)] = MOST,
        before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
        phase: Annotated[list[Phase] | None, Query(max_length=len(Phase))] = None,
    ) -> Response:
        """Tasks that have run, newest first; ``next`` is the ``before`` of the next page."""

        def look() -> bytes:
            tasks, following = page_of(service, phase or RAN, limit, before, lambda record: _run(record, service))
            return with_tasks(tasks, next=following)

        return await workers.answer(request, look)

    @app.get(
        "/metrics",
        dependencies=[may("see metrics")],
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        # On the service's loop: gauges are made from the machine.
        found = await asked(request, service, partial(generate_latest, insight.telemetry.registry))
        return Response(found, media_type=CONTENT_TYPE_LATEST)


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
