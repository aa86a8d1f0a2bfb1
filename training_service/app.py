"""The training service's HTTP application; errors are `application/problem+json` (RFC 9457)."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from runtime.clock import Clock
from runtime.metrics import MeasuredRequests, metrics_route, new_registry
from runtime.problem_json import handle_error
from runtime.worker_thread import Worker
from state.errors import InvalidInput, Refused
from training_service.metrics import MeasuredWorker, TrainingMetrics
from training_service.routes import SessionRoutes
from training_service.service import TrainingService, TrainingServiceOptions


def create_app(options: TrainingServiceOptions, worker: Worker, clock: Clock) -> FastAPI:
    """Return the service's application; `worker` runs the arithmetic. Its OpenAPI page is at `/docs`."""
    metrics = TrainingMetrics(new_registry())
    worker = MeasuredWorker(worker, metrics)
    service = TrainingService(options, worker, clock, metrics)
    metrics.watch_sessions("epochal", lambda: len(service.sessions))
    app = FastAPI(title="Epochal training service")
    app.add_middleware(MeasuredRequests, metrics=metrics.http)
    app.router.routes.append(metrics_route(metrics.registry))
    for kind in (Refused, InvalidInput, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle_error)
    app.add_api_route("/healthz", _healthz, methods=["GET"])
    app.include_router(SessionRoutes(service).router())
    if options.tinker:
        from training_service.tinker.routes import tinker_router
        from training_service.tinker.service import TinkerService

        tinker = TinkerService(options, worker, clock, metrics)
        metrics.watch_sessions("tinker", lambda: len(tinker.sessions))
        app.include_router(tinker_router(tinker))
    return app


async def _healthz() -> dict[str, bool]:
    return {"ok": True}
