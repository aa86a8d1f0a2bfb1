"""The description of an HTTP API (OpenAPI 3.1): what its routes say, completed by what every answer may be.

A route says its summary, its message and its answer (`openapi_body`, `openapi_answer` in `http_bodies.py`). An
`Operation` adds the rest: who may ask, the parameters' bounds, and every refusal with its status and headers.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from epochal.runtime.explanations import HELP_PATH
from epochal.runtime.http.api_page import render_page
from epochal.runtime.http.help_pages import PAGE_RULES, help_routes
from epochal.runtime.http.parameters import MAX_SECONDS, MAX_WHOLE
from epochal.state.refusals import PROBLEM_JSON, PROBLEM_TYPE_PREFIX, Refusal

DESCRIPTION_PATH = "/openapi.json"
PAGE_PATH = "/docs"

EVERY_REQUEST = (Refusal.HOST_MISSING, Refusal.HOST_NOT_ALLOWED, Refusal.INTERNAL)
"""Refusals of any request."""
EVERY_MESSAGE = (Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT, Refusal.BODY_TOO_LARGE, Refusal.INVALID_BODY)
"""Refusals of any request with a message."""

Schema = Mapping[str, Any]
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": int(MAX_SECONDS)}
TEXT: Schema = {"type": "string", "minLength": 1}
HELP_PARAMETERS: Mapping[str, Schema] = {"kind": {"type": "string", "pattern": "^[A-Za-z_:-]+$"}}
SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_STRING: Schema = {"schema": {"type": "string"}}
_PROBLEM: Schema = {
    "type": "object",
    "description": "A refusal (RFC 9457). Further members give details by name.",
    "required": ["type", "title", "status", "detail", "retry"],
    "properties": {
        "type": {"type": "string", "description": "The kind of problem, for programs."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong and what is allowed, for people."},
        "retry": {"type": "boolean", "description": "Whether the same request, or a new one, may succeed."},
        "help": {"type": "string", "description": "Page with cause and remedy, relative to this request's path."},
    },
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in a query or a header. `default` is what leaving it out means, if it is a value."""

    name: str
    schema: Schema
    place: str = "query"
    default: Any = None
    required: bool = False

    def described(self) -> dict[str, Any]:
        """Return its description."""
        schema = dict(self.schema) if self.default is None else {**self.schema, "default": self.default}
        return {"name": self.name, "in": self.place, "required": self.required, "schema": schema}


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of one method of one path, as far as its route does not give it.

    Attributes:
        refusals: why it may be refused, in addition to `EVERY_REQUEST`.
        tokens: names of the security schemes of which a request shows one; None among them: it may show none.
        parameters: in query and headers.
        answers: descriptions by status, in place of the route's.
        body: the request's body, in place of the route's.
        summary: in place of the route's.
    """

    refusals: tuple[Refusal, ...] = ()
    tokens: tuple[str | None, ...] = (None,)
    parameters: tuple[Parameter, ...] = ()
    answers: Mapping[int | str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    summary: str | None = None


UNDESCRIBED = Operation()
"""The operation of a route that nobody describes."""
Operations = Mapping[tuple[str, str], Operation]
"""Operations by method and path."""


def content(media_type: str, description: str, schema: Schema | None = None) -> dict[str, Any]:
    """Return the description of an answer, or of a body, of this media type."""
    return {"description": description, "content": {media_type: {"schema": dict(schema or {"type": "string"})}}}


def described(found: dict[str, Any], operations: Operations, path_parameters: Mapping[str, Schema]) -> dict[str, Any]:
    """Complete the description of an API and return it.

    Args:
        found: what FastAPI says of the routes; changed in place.
        operations: of the methods and paths that it has, and of others.
        path_parameters: schemas by name.
    """
    for method, path in operations:
        found["paths"].setdefault(path, {}).setdefault(method.lower(), {})
    for path, methods in found["paths"].items():
        for method, described_so_far in methods.items():
            operation = operations.get((method.upper(), path), UNDESCRIBED)
            _complete(described_so_far, path, operation, {**HELP_PARAMETERS, **path_parameters})
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = dict(_PROBLEM)
    return found


def _complete(found: dict[str, Any], path: str, operation: Operation, path_parameters: Mapping[str, Schema]) -> None:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": dict(path_parameters[name])} for name in names
    ]
    parameters += [parameter.described() for parameter in operation.parameters]
    if parameters:
        found["parameters"] = parameters
    if operation.summary is not None:
        found["summary"] = operation.summary
    if operation.body is not None:
        found["requestBody"] = {"required": True, **operation.body}
    answers = {status: answer for status, answer in found.get("responses", {}).items() if status < "400"}
    answers |= {str(status): answer for status, answer in operation.answers.items()}
    for status, kinds in _by_status((*EVERY_REQUEST, *operation.refusals)).items():
        problem = _problem_answer(status, kinds)
        other = answers.get(str(status), {"content": {}})  # such as /readyz, which answers 503 in plain text
        answers[str(status)] = {**problem, **other, "content": {**other["content"], **problem["content"]}}
    found["responses"] = dict(sorted(answers.items()))
    found["security"] = [{} if token is None else {token: []} for token in operation.tokens]


def _by_status(refusals: Iterable[Refusal]) -> dict[int, list[Refusal]]:
    found: dict[int, list[Refusal]] = defaultdict(list)
    for refusal in dict.fromkeys(refusals):
        found[refusal.status].append(refusal)
    return found


def _problem_answer(status: int, kinds: list[Refusal]) -> dict[str, Any]:
    """Return the description of the refusals of one status."""
    types = {"type": "string", "enum": [PROBLEM_TYPE_PREFIX + kind for kind in kinds]}
    schema = {
        "allOf": [{"$ref": "#/components/schemas/Problem"}],
        "properties": {"type": types, "status": {"const": status}},
    }
    answer = content(PROBLEM_JSON, ", ".join(kinds), schema)
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"required": True, **_STRING}}
    if status == 401:
        answer["headers"] = {"WWW-Authenticate": {"required": True, **_STRING}}
    if status == 416:
        answer["headers"] = {"Content-Range": {"required": True, **_STRING}}
    return answer


def description_operations() -> Operations:
    """Return the operations of the routes that `description_routes` returns."""
    return {
        ("GET", DESCRIPTION_PATH): Operation(
            summary="This description", answers={200: content("application/json", "OpenAPI 3.1", {"type": "object"})}
        ),
        ("GET", PAGE_PATH): Operation(summary="This page", answers={200: content("text/html", "A page for people")}),
        ("GET", HELP_PATH.rstrip("/")): Operation(
            summary="Every kind of refusal, error and warning", answers={200: content("text/html", "A page for people")}
        ),
        ("GET", f"{HELP_PATH}{{kind}}"): Operation(
            (Refusal.NOT_FOUND,),
            summary="Cause and remedy of one kind",
            answers={200: content("text/html", "A page for people")},
        ),
    }


def description_routes(describe: Callable[[], dict[str, Any]]) -> list[Route]:
    """Return the routes of a description, of a page that shows it, and of the pages that explain refusals.

    The description and its page are made once, when they are first read.
    """
    made: dict[str, bytes] = {}

    async def description(request: Request) -> Response:
        if DESCRIPTION_PATH not in made:
            found = describe()
            made[DESCRIPTION_PATH], made[PAGE_PATH] = json.dumps(found).encode(), render_page(found).encode()
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if path == PAGE_PATH:
            headers = {"Content-Security-Policy": PAGE_RULES, "X-Content-Type-Options": "nosniff"}
            return Response(made[path], headers=headers, media_type="text/html")
        return Response(made[DESCRIPTION_PATH], media_type="application/json")

    routes = [Route(path, description, methods=["GET"]) for path in (DESCRIPTION_PATH, PAGE_PATH)]
    for route in routes:
        only_get(route)
    return [*routes, *help_routes()]


def only_get(route: Route) -> Route:
    """Return the route without the HEAD that Starlette adds, as FastAPI's own routes are."""
    route.methods = {"GET"}
    return route
