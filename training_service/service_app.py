"""The training service's HTTP application; errors are `application/problem+json` (RFC 9457)."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from epochal.runtime.clock import Clock
from epochal.runtime.http.allowed_hosts import ANY_HOST, CheckedHosts
from epochal.runtime.http.openapi import DescribedApp
from epochal.runtime.http.route_errors import answer_errors
from epochal.runtime.metrics.metrics_registry import MeasuredRequests, metrics_route, new_registry
from epochal.runtime.worker_thread import Worker
from epochal.training_service.metrics import TrainingMetrics
from epochal.training_service.routes import SessionRoutes
from epochal.training_service.service import TrainingService, TrainingServiceOptions

SUMMARY = """Trains for clients that have no device of their own.

A refused request is answered with application/problem+json, whose type says why. A path that is not listed here is
answered with 404, another method of a path with 405 and the header Allow, both as problems too."""


def create_app(
    options: TrainingServiceOptions, worker: Worker, clock: Clock, hosts: frozenset[str] | None = ANY_HOST
) -> FastAPI:
    """Return the service's application. Its description is at `/openapi.json`.

    Args:
        options: of the service.
        worker: runs the arithmetic.
        clock: measures how long sessions are idle.
        hosts: the names under which the application answers.
    """
    metrics = TrainingMetrics(new_registry())
    service = TrainingService(options, worker, clock, metrics)
    metrics.watch_sessions(lambda: len(service.sessions))
    app = DescribedApp(title="Epochal training service", description=SUMMARY)
    app.add_middleware(CheckedHosts, allowed=hosts)
    app.add_middleware(MeasuredRequests, metrics=metrics.http)
    app.router.routes += [metrics_route(metrics.registry)]
    answer_errors(app)
    app.add_api_route("/healthz", _healthz, methods=["GET"])
    app.add_api_route("/readyz", _ready_route(service), methods=["GET"], response_class=PlainTextResponse)
    app.router.routes += SessionRoutes(service).router().routes
    return app


async def _healthz() -> dict[str, bool]:
    return {"ok": True}


def _ready_route(service: TrainingService) -> Callable[[], Awaitable[Response]]:
    async def readyz() -> Response:
        if service.accepting:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not accepting: too many requests are waiting\n", 503)

    return readyz
