"""The routes that every member asks in every round, called without the framework between the server and the handler.

FastAPI describes them, and answers their other methods. It would find the route by trying all others, and prepare each
call in ways that none of these needs: together that takes longer than the answer.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from re import Pattern
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.runtime.http.problem_json import problem_response

Endpoint = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Found:
    """A route: its path, and what answers it."""

    route: BaseRoute
    path: Pattern[str]
    answer: Callable[[Scope, Receive, Send], Awaitable[None]]


class HotRoutes:
    """ASGI middleware that answers some routes before the framework sees them.

    Args:
        app: the framework's, which answers everything else.
        document: the route of the run document, whose path ends in a parameter.
        routes: FastAPI's, of which those are answered here whose path ends in a word; their endpoints take the
            parameters of the path by name, and the request.
    """

    def __init__(self, app: ASGIApp, document: Route, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._document = _Found(document, document.path_regex, document.app)
        self._found: dict[tuple[str, str], list[_Found]] = {}
        for route in routes:
            word = route.path.rpartition("/")[2] if isinstance(route, APIRoute) else "{"
            if isinstance(route, APIRoute) and not word.startswith("{"):
                found = _Found(route, route.path_regex, _answering(route.endpoint))
                for method in route.methods or ():
                    self._found.setdefault((method, word), []).append(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._match(scope) if scope["type"] == "http" and not scope.get("root_path") else None
        await (self._app if found is None else found)(scope, receive, send)

    def _match(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        method, path = scope["method"], scope["path"]
        candidates = self._found.get((method, path.rpartition("/")[2]), ())
        for found in (*candidates, self._document) if method == "GET" else candidates:
            match = found.path.match(path)
            if match is not None:
                scope["path_params"], scope["route"] = match.groupdict(), found.route
                scope["endpoint"] = getattr(found.route, "endpoint", None)
                return found.answer
        return None


def _answering(endpoint: Endpoint) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an ASGI application that calls the endpoint, and answers its refusals."""
    takes_request = "request" in signature(endpoint).parameters

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        arguments: dict[str, Any] = dict(scope["path_params"])
        if takes_request:
            arguments["request"] = Request(scope, receive)
        try:
            response = await endpoint(**arguments)
        except Exception as error:
            response = problem_response(error)  # which logs what is no refusal
        await response(scope, receive, send)

    return answer
