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

from epochal.runtime.connections.whole_answers import send_whole
from epochal.runtime.http.problem_json import problem_response

Endpoint = Callable[..., Awaitable[Response]]
_Found = tuple[APIRoute, ASGIApp]
"""A route, and what answers it."""


class HotRoutes:
    """ASGI middleware that answers some routes before the framework sees them.

    Args:
        app: the framework's, which answers everything else.
        routes: FastAPI's, whose endpoints take the parameters of the path by name, and the request. They are found by
            the last word of their path, or by the word before the parameter in which it ends.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._found: dict[tuple[str, str], list[_Found]] = {}
        for route in routes:
            assert isinstance(route, APIRoute)
            place, _, word = route.path.rpartition("/")
            key = place.rpartition("/")[2] + "/" if word.startswith("{") else word
            for method in route.methods or ():
                self._found.setdefault((method, key), []).append((route, _answering(route.endpoint)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._match(scope) if scope["type"] == "http" and not scope.get("root_path") else None
        await (self._app if found is None else found)(scope, receive, send)

    def _match(self, scope: Scope) -> ASGIApp | None:
        method: str = scope["method"]
        path: str = scope["path"]
        place, _, word = path.rpartition("/")
        keys = (method, word), (method, place.rpartition("/")[2] + "/")
        found: list[_Found] = [each for key in keys for each in self._found.get(key, ())]
        for route, answer in found:
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
        await send_whole(response, scope, receive, send)

    return answer
