"""The coordinator's REST service as a FastAPI application. Its routes only translate between HTTP and the handlers."""

from dataclasses import is_dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from coordinator.api.blobs import blob_routes
from coordinator.api.long_poll import RunDocumentEndpoint
from coordinator.api.membership import membership_routes
from coordinator.api.metrics import CoordinatorMetrics
from coordinator.api.operator import health_routes, operator_routes, origin_routes
from coordinator.api.reading import reading_routes
from coordinator.api.requests import RUN
from coordinator.handlers import Handlers
from coordinator.long_polls import LongPolls
from runtime.http_bodies import openapi_answer, openapi_schemas
from runtime.metrics import MeasuredRequests, metrics_route, new_registry
from runtime.problem_json import handle_error
from state import documents, messages
from state.documents import RunDocument
from state.errors import EpochalError

_NAMES = vars(documents) | vars(messages)
DOCUMENTS = tuple(kind for kind in _NAMES.values() if isinstance(kind, type) and is_dataclass(kind))
"""Every document and message, for the API's description."""


def create_app(handlers: Handlers, version: str, metrics: CoordinatorMetrics | None = None) -> FastAPI:
    """Return the application over these handlers, with new metrics unless some are given."""
    metrics = metrics or CoordinatorMetrics(new_registry())
    app = FastAPI(
        title="Epochal coordinator",
        version=version,
        description="Holds one training run. Errors are application/problem+json.",
        redoc_url=None,
    )
    for kind in (EpochalError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, handle_error)
    polls = LongPolls()
    metrics.watch(handlers.service, polls)
    app.add_middleware(MeasuredRequests, metrics=metrics.http)
    for router in (
        reading_routes(handlers, polls),
        membership_routes(handlers),
        blob_routes(handlers),
        operator_routes(handlers),
        origin_routes(handlers),
        health_routes(handlers, metrics.http.notes),
    ):
        app.include_router(router)
    app.router.routes.append(metrics_route(metrics.registry))
    app.router.routes.append(Route(RUN, RunDocumentEndpoint(handlers, polls), methods=["GET"], name="run_document"))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's description, with the raw long-poll route and the documents' schemas added."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        parameters = [
            {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "after", "in": "query", "schema": {"type": "integer", "default": -1}},
            {"name": "lineage", "in": "query", "schema": {"type": "string"}},
            {"name": "wait_s", "in": "query", "schema": {"type": "number", "default": 0}},
        ]
        schema.setdefault("components", {}).setdefault("schemas", {}).update(openapi_schemas(DOCUMENTS))
        answers = {str(key): value for key, value in openapi_answer(RunDocument).items()}
        schema["paths"][RUN] = {
            "get": {
                "summary": "The run document, as soon as it is newer than `after`; long poll",
                "parameters": parameters,
                "responses": {**answers, "304": {"description": "Nothing newer within `wait_s`"}},
            }
        }
    return app.openapi_schema or {}
