"""Errors as `application/problem+json` (RFC 9457). Each `Refusal` has its HTTP status."""

import json
import logging
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from epochal.runtime.metrics.metrics_registry import REFUSAL_IN_SCOPE
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import PROBLEM_JSON, PROBLEM_TYPE_PREFIX, Refusal

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""Value of `Retry-After` where the refusal names no other (`retry_after_s` in its context)."""
KIND_OF_HTTP_STATUS = {404: Refusal.NOT_FOUND, 405: Refusal.METHOD_NOT_ALLOWED}
"""Refusals by the web framework."""


class ProblemResponse(Response):
    """A refusal as an HTTP response, which is counted."""

    media_type = PROBLEM_JSON

    def __init__(self, refusal: Refusal, body: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(json.dumps(body), refusal.status, headers)
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REFUSAL_IN_SCOPE] = self._refusal
        await super().__call__(scope, receive, send)


def problem_of(error: Exception) -> Refused:
    """Return the refusal that answers a request whose handling raised this error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InvalidInput):
        return Refused(Refusal.INVALID_BODY, error.message)
    if isinstance(error, HTTPException) and error.status_code in KIND_OF_HTTP_STATUS:
        return Refused(KIND_OF_HTTP_STATUS[error.status_code], "there is no such route, or not with this method")
    return Refused(Refusal.INTERNAL, "the server failed to handle this request; its log says more")


def problem_response(error: Exception) -> Response:
    """Return the error as an HTTP response."""
    refused = problem_of(error)
    status = refused.kind.status
    if refused.kind == Refusal.INTERNAL:
        log.error("request_failed", exc_info=error)
    body = {
        "type": PROBLEM_TYPE_PREFIX + refused.kind,
        "title": refused.kind.replace("-", " "),
        "status": status,
        "detail": refused.message,
        "retry": refused.kind.may_retry,
        **{key: value for key, value in refused.context.items() if isinstance(value, str | int | float | bool)},
    }
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    if isinstance(asked_s := refused.context.get("retry_after_s"), float):
        headers["Retry-After"] = str(math.ceil(asked_s))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refused.kind == Refusal.BODY_TIMEOUT:
        headers["Connection"] = "close"  # the rest of the body would keep it open (RFC 9110, 15.5.9)
    if refused.kind == Refusal.RANGE_NOT_SATISFIABLE:
        headers["Content-Range"] = f"bytes */{refused.context['size_bytes']}"
    return ProblemResponse(refused.kind, body, headers)
