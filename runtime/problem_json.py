"""Errors as `application/problem+json` (RFC 9457). The only place where an error gets its HTTP status."""

import json
import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from state.errors import InvalidInput, Refused

log = logging.getLogger(__name__)

TYPE_PREFIX = "urn:epochal:problem:"
RETRY_AFTER_S = 1
STATUS_OF_KIND = {
    "invalid-body": 422,
    "invalid-parameter": 422,
    "body-incomplete": 400,
    "body-timeout": 408,
    "method-not-allowed": 405,
    "result-invalid": 422,
    "blob-mismatch": 422,
    "unauthorized": 401,
    "nonce-invalid": 401,
    "access-denied": 403,
    "ejected": 403,
    "forbidden": 403,
    "not-found": 404,
    "unknown-run": 404,
    "already-committed": 409,
    "behind": 409,
    "fingerprint-differs": 409,
    "late-result": 409,
    "nonce-consumed": 409,
    "not-committed": 409,
    "not-in-roster": 409,
    "not-now": 409,
    "replica-differs": 409,
    "stale-round": 409,
    "unsupported-protocol": 409,
    "blob-too-large": 413,
    "body-too-large": 413,
    "range-not-satisfiable": 416,
    "overloaded": 503,
    "run-full": 503,
    "store-failed": 503,
    "blobs-full": 507,
    "internal": 500,
}
"""Every kind of `Refused` that this service sends, and its status."""
RETRYABLE_KINDS = frozenset(
    {
        "overloaded",
        "store-failed",
        "run-full",
        "behind",
        "nonce-invalid",
        "nonce-consumed",
        "body-incomplete",
        "body-timeout",
    }
)
"""Kinds after which the same request, or one with a fresh challenge, may succeed."""


KIND_OF_HTTP_STATUS = {404: "not-found", 405: "method-not-allowed"}
"""What the framework refuses by itself."""
MAX_REASONS = 5


def problem_of(error: Exception) -> Refused:
    """The refusal that an error is for whoever sent the request."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InvalidInput):
        return Refused("invalid-body", error.message)
    if isinstance(error, RequestValidationError):
        places = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:MAX_REASONS])
        return Refused("invalid-parameter", places)
    if isinstance(error, HTTPException) and error.status_code in KIND_OF_HTTP_STATUS:
        return Refused(KIND_OF_HTTP_STATUS[error.status_code], "there is no such route, or not with this method")
    return Refused("internal", "the coordinator failed at this request; its log says more")


def problem_response(error: Exception) -> Response:
    """The error as an HTTP response."""
    refused = problem_of(error)
    status = STATUS_OF_KIND.get(refused.kind, 500)
    if refused.kind == "internal":
        log.error("request_failed", exc_info=error)
    body = {
        "type": TYPE_PREFIX + refused.kind,
        "title": refused.kind.replace("-", " "),
        "status": status,
        "detail": refused.message,
        "retry": refused.kind in RETRYABLE_KINDS,
        **{key: value for key, value in refused.context.items() if isinstance(value, str | int | float | bool)},
    }
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refused.kind == "body-timeout":
        headers["Connection"] = "close"  # or what still drips in would keep it (RFC 9110, 15.5.9)
    if refused.kind == "range-not-satisfiable":
        headers["Content-Range"] = f"bytes */{refused.context['size_bytes']}"
    return Response(json.dumps(body), status, headers, media_type="application/problem+json")


async def handle_error(_: Request, error: Exception) -> Response:
    """Starlette's exception handler for everything."""
    return problem_response(error)
