"""Facts about each route for the description of a training service's API, beyond its messages."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from epochal.runtime.http.bodies import openapi_answer, openapi_body, openapi_schemas
from epochal.runtime.http.openapi import (
    EVERY_MESSAGE,
    TEXT,
    WHOLE,
    Operation,
    Operations,
    Parameter,
    Schema,
    content,
    described,
    description_operations,
)
from epochal.state.refusals import Refusal
from epochal.trainers.remote.service_messages import (
    IDEMPOTENCY_KEY,
    SESSIONS,
    ChunkAnswer,
    OptimStepRequest,
    SessionOpened,
    SessionRequest,
)

SUMMARY = """Trains for clients that have no device of their own.

A refused request is answered with application/problem+json, whose type says why. A path that is not listed here is
answered with 404, another method of a path with 405 and the header Allow, both as problems too."""

TOKEN, API_KEY = "token", "API key"
SECURITY: Mapping[str, Any] = {
    TOKEN: {"type": "http", "scheme": "bearer", "description": "The service's token, if it was started with one."},
    API_KEY: {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "`tml-` and the service's token."},
}
PATH_PARAMETERS: Mapping[str, Schema] = {"session_id": TEXT, "round_key": TEXT, "local_step": WHOLE}
MAX_KEY_CHARACTERS = 128

_USES = (Refusal.UNAUTHORIZED, Refusal.UNKNOWN_SESSION, Refusal.OVERLOADED, Refusal.INVALID_PARAMETER)
_ACTS = (*_USES, *EVERY_MESSAGE, Refusal.STALE_STEP)
_TRAINS = (*_ACTS, Refusal.INCOMPLETE_STEP, Refusal.UNTRAINABLE, Refusal.INVALID_TENSORS)
_TOKENS = (None, TOKEN)
_KEY = Parameter(IDEMPOTENCY_KEY, {**TEXT, "maxLength": MAX_KEY_CHARACTERS}, "header", required=True)
_TENSORS = content("application/octet-stream", "A tensor file", {"type": "string", "format": "binary"})
_EMPTY = content("application/json", "Done", {"type": "object"})
_OF_SDK = (
    Refusal.UNAUTHORIZED, Refusal.OVERLOADED, *EVERY_MESSAGE, Refusal.GONE, Refusal.UNKNOWN_MODEL,
    Refusal.UNKNOWN_FUTURE, Refusal.NOT_FOUND, Refusal.NOT_SAVED, Refusal.UNTRAINABLE, Refusal.INCOMPLETE_STEP,
)  # fmt: skip
"""Refusals of the SDK's routes, of which only some apply to each."""

_ONE, _ROUND = f"{SESSIONS}/{{session_id}}", f"{SESSIONS}/{{session_id}}/rounds/{{round_key}}"
_STEP = f"{_ROUND}/steps/{{local_step}}"
OPERATIONS: Operations = {
    ("GET", "/healthz"): Operation(answers={200: content("application/json", "The process is alive")}),
    ("GET", "/readyz"): Operation(
        answers={
            200: content("text/plain", "Requests are accepted"),
            503: content("text/plain", "Too many requests are waiting"),
        }
    ),
    ("GET", "/metrics"): Operation(answers={200: content("text/plain", "For Prometheus")}),
    ("POST", SESSIONS): Operation(
        (Refusal.UNAUTHORIZED, Refusal.OVERLOADED, *EVERY_MESSAGE), _TOKENS,
        answers=openapi_answer(SessionOpened, 201), body=openapi_body(SessionRequest)["requestBody"],
    ),
    ("DELETE", _ONE): Operation((Refusal.UNAUTHORIZED,), _TOKENS, answers={204: {"description": "Closed"}}),
    ("PUT", _ROUND): Operation(
        (*_ACTS, Refusal.INVALID_TENSORS), _TOKENS, (Parameter("keep_last", {"type": "boolean"}, default=False), _KEY),
        answers={200: _EMPTY}, body={"content": _TENSORS["content"]},
    ),
    ("POST", f"{_STEP}/forward_backward"): Operation(
        _TRAINS, _TOKENS, (_KEY,), openapi_answer(ChunkAnswer), {"content": _TENSORS["content"]}
    ),
    ("GET", f"{_STEP}/parameters"): Operation((*_USES, Refusal.STALE_STEP), _TOKENS, answers={200: _TENSORS}),
    ("POST", f"{_ONE}/optim_step"): Operation(
        _TRAINS, _TOKENS, (_KEY,), openapi_answer(ChunkAnswer), openapi_body(OptimStepRequest)["requestBody"]
    ),
    ("POST", f"{_ONE}/discard"): Operation(_USES, _TOKENS, answers={200: _EMPTY}),
    **description_operations(),
}  # fmt: skip
"""Every method of every path, except those of the SDK."""


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the description of a training service's application."""
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    of_sdk = {
        (method.upper(), path): Operation(_OF_SDK, (None, API_KEY))
        for path, methods in found["paths"].items()
        for method in methods
        if (method.upper(), path) not in OPERATIONS
    }
    kinds = (SessionRequest, SessionOpened, ChunkAnswer, OptimStepRequest)
    found.setdefault("components", {}).setdefault("schemas", {}).update(openapi_schemas(kinds))
    found["components"]["securitySchemes"] = dict(SECURITY)
    return described(found, {**OPERATIONS, **of_sdk}, PATH_PARAMETERS)
