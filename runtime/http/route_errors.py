"""The errors of a FastAPI application's routes, and of the framework itself, answered as problems."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from epochal.runtime.http.problem_json import problem_response
from epochal.runtime.metrics.metrics_registry import METHODS
from epochal.state.errors import EpochalError, Refused
from epochal.state.refusals import Refusal

MAX_REASONS = 5
"""Maximum number of wrong parameters that an answer names."""


def answer_errors(app: FastAPI) -> None:
    """Let the application answer every error with `application/problem+json`."""
    for kind in (EpochalError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = _refusal_of(error)
    answer = problem_response(error)
    if answer.status_code == Refusal.METHOD_NOT_ALLOWED.status:
        answer.headers["Allow"] = ", ".join(_allowed_methods(request))
    return answer


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods with which a route takes the request's path, of those with the fewest parameters in it."""
    found: dict[int, list[str]] = {}
    for method in sorted(METHODS):
        for route in request.app.routes:
            match, scope = route.matches({**request.scope, "method": method, "path_params": {}})
            if match is Match.FULL and method not in (same := found.setdefault(len(scope["path_params"]), [])):
                same.append(method)
    return found[min(found)] if found else []


def _refusal_of(error: RequestValidationError) -> Refused:
    places = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:MAX_REASONS])
    return Refused(Refusal.INVALID_PARAMETER, places)
