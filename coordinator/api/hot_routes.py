"""The routes that every member asks in every round, called without the framework between the server and the handler.

FastAPI describes them, and answers their other methods. It would find the route by trying all others, and prepare each
call in ways that none of these needs: together that takes longer than the answer.
"""

from collections.abc import Awaitable, Callable, Iterable
from inspect import signature
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.runtime.http.problem_json import problem_response

Endpoint = Callable[..., Awaitable[Response]]
_Found = tuple[APIRoute, ASGIApp]
"""A route, and what answers it."""


class HotRoutes:
    """ASGI middleware that answers some routes before the framework sees them.

    Args:
        app: the framework's, which answers everything else.
        document: the route of the run document, whose path ends in a parameter.
        routes: FastAPI's, of which those are answered here whose path ends in a word; their endpoints take the
            parameters of the path by name, and the request.
    """

    def __init__(self, app: ASGIApp, document: BaseRoute, routes: Iterable[BaseRoute]) -> None:
        assert isinstance(document, APIRoute)
        self._app = app
        self._document: _Found = (document, _answering(document.endpoint))
        self._found: dict[tuple[str, str], list[_Found]] = {}
        for route in routes:
            word = route.path.rpartition("/")[2] if isinstance(route, APIRoute) else "{"
            if isinstance(route, APIRoute) and not word.startswith("{"):
                for method in route.methods or ():
                    self._found.setdefault((method, word), []).append((route, _answering(route.endpoint)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._match(scope) if scope["type"] == "http" and not scope.get("root_path") else None
        await (self._app if found is None else found)(scope, receive, send)

    def _match(self, scope: Scope) -> ASGIApp | None:
        method, path = scope["method"], scope["path"]
        candidates = self._found.get((method, path.rpartition("/")[2]), ())
        for route, answer in (*candidates, self._document) if method == "GET" else candidates:
            match = route.path_regex.match(path)
            if match is not None:
                scope["path_params"], scope["route"], scope["endpoint"] = match.groupdict(), route, route.endpoint
                return answer
        return None


def _answering(endpoint: Endpoint) -> ASGIApp:
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
