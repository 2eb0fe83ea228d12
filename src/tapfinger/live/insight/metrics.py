"""Metrics for Prometheus, in a registry of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapfinger.core.contract import Phase
from tapfinger.live.coordinator.inputs import Instructions
from tapfinger.live.protocol import events
from tapfinger.live.protocol.records import ENDED

#: Seconds; for tasks, which take from moments to days.
TASK_BUCKETS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
#: Seconds; for work that should take moments.
QUICK_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
#: Methods that are counted by name. A request may name any other, and each name would be kept for ever.
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


class Telemetry:
    """Counts events; gauges are computed on request."""

    def __init__(self, gauges: Callable[[], Iterable[Metric]]) -> None:
        """``gauges``: returns the current gauges."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_Now(gauges))
        made: dict[str, Any] = {"registry": self.registry, "namespace": "tapfinger"}
        self._submitted = Counter("submitted_tasks", "Tasks that were taken.", ["type"], **made)
        self._outcomes = Counter("outcomes", "Tasks that came to their end.", ["type", "outcome"], **made)
        self._attempts = Counter("attempts", "Attempts that ended, by how.", ["result"], **made)
        self._requeued = Counter("requeued_tasks", "Times that a task had to wait again.", **made)
        self._repeated = Counter(
            "repeated_attempts", "Old attempts that ended by themselves when a newer one had begun.", ["result"], **made
        )
        self._recovered = Counter("recovered_attempts", "Lost attempts whose result came in time.", **made)
        self.faults = Counter("decision_faults", "Rounds in which a scheduler failed.", **made)
        self._wait = Histogram(
            "wait_seconds", "From submission to the start of the first attempt.", ["type"], buckets=TASK_BUCKETS, **made
        )
        self._completion = Histogram(
            "completion_seconds",
            "From submission to the end, of finished tasks.",
            ["type"],
            buckets=TASK_BUCKETS,
            **made,
        )
        self.decision = Histogram(
            "decision_seconds", "Thinking time of a round.", ["scheduler"], buckets=QUICK_BUCKETS, **made
        )
        self.commit = Histogram("store_commit_seconds", "Saving one change.", buckets=QUICK_BUCKETS, **made)
        self.loop_lag = Histogram(
            "loop_lag_seconds", "LoopLag of the loop that keeps leases.", buckets=QUICK_BUCKETS, **made
        )
        self.longest_lag = Gauge("longest_loop_lag_seconds", "The longest of it in the last minute.", **made)
        self.requests = Counter("http_requests", "Requests, by route.", ["method", "route", "status"], **made)
        self.request_seconds = Histogram(
            "http_request_seconds",
            "Time to an answer, without those that wait.",
            ["route"],
            buckets=QUICK_BUCKETS,
            **made,
        )

    def saw(self, instructions: Instructions) -> None:
        """Count events that were saved."""
        records = {record.id: record for record in instructions.records}
        for line in instructions.history:
            if isinstance(line, events.Submitted):
                self._submitted.labels(line.type).inc()
            elif isinstance(line, events.Requeued):
                self._requeued.inc()
            elif isinstance(line, events.AttemptRefused):
                self._repeated.labels(line.result).inc()
            elif isinstance(line, events.AttemptRecovered):
                self._recovered.inc()
            elif isinstance(line, events.AttemptEnded):
                self._attempts.labels(line.result).inc()
            elif isinstance(line, events.AttemptStarted) and line.attempt == 1:
                record = records[line.task or 0]
                self._wait.labels(record.spec.type).observe(line.at - record.submitted)
        for record in instructions.records:
            if record.phase in ENDED and record.ended is not None:
                self._outcomes.labels(record.spec.type, record.phase.value).inc()
                if record.phase is Phase.FINISHED:
                    self._completion.labels(record.spec.type).observe(record.ended - record.submitted)


class _Now(Collector):
    def __init__(self, gauges: Callable[[], Iterable[Metric]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that registering does not collect."""
        return iter(())


class CountRequests:
    """Counts and times requests by route, not by path: paths with task numbers would make too many labels."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        """Wrap ``app``."""
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note its status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), "500"

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._telemetry.requests.labels(method, route, status).inc()
            if b"wait=" not in scope.get("query_string", b""):
                self._telemetry.request_seconds.labels(route).observe(time.perf_counter() - began)
