"""The description of an HTTP API (OpenAPI 3.1): FastAPI's own, from what each route declares.

FastAPI does not see two things: bodies, which are read under bounds, and parameters that are read strictly. A route
declares them with `takes`. Every operation may also answer a problem (RFC 9457), which is added to all of them.

The schemas of messages are made when the description is first asked for: they take half a second of processor time.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

from fastapi import FastAPI, Path
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from epochal.runtime.http.parameters import MAX_SECONDS, MAX_WHOLE
from epochal.state.refusals import PROBLEM_JSON

DESCRIPTION_PATH = "/openapi.json"
PAGE_PATH = "/docs"
SANDBOX = "sandbox allow-scripts allow-popups"

Schema = Mapping[str, Any]
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": int(MAX_SECONDS)}
_STRING: Schema = {"type": "string"}
TEXT: Schema = {"type": "string", "minLength": 1}
BYTES: Schema = {"type": "string", "format": "binary"}
Number = Annotated[str, Path(json_schema_extra={"pattern": "^(0|[1-9][0-9]{0,17})$"})]
"""A whole number in a path, which `parse_whole` reads."""
_SCHEMAS = "#/components/schemas/"
_NESTED = "$defs"
_PROBLEM_ANSWER = {
    "description": "A refusal or an error; its `type` says which",
    "content": {PROBLEM_JSON: {"schema": {"$ref": f"{_SCHEMAS}Problem"}}},
}
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
    },
}


_compiled = cache(compile_path)


class BytesResponse(Response):
    """Bytes without a type of their own."""

    media_type = "application/octet-stream"


class DescribedRoute(APIRoute):
    """A route whose messages become schemas with `describe`, if its answers are responses that it has made itself.

    What FastAPI makes of its endpoint takes a millisecond, a tenth of a second for all of a coordinator's, so it is
    made when it is first asked for: at the route's first request, or for the description.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path, self.endpoint = path, endpoint
        self.path_regex, self.path_format, self.param_convertors = _compiled(path)
        self.methods = {method.upper() for method in options.get("methods") or ("GET",)}
        self._declared: dict[str, Any] = options

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that is not made yet."""
        declared = self.__dict__.pop("_declared", None)
        if declared is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._make(self.path, self.endpoint, **declared)
        return getattr(self, name)

    def _make(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        answer = inspect.signature(endpoint).return_annotation
        makes_its_own = inspect.isclass(answer) and issubclass(answer, Response)
        self._undescribed = options.pop("response_model", None) if makes_its_own else None
        super().__init__(path, endpoint, **options)

    def describe(self) -> None:
        """Make the schemas of the request's body and of the answer, for the description."""
        if self._undescribed:
            described = APIRoute(
                self.path, self.endpoint, response_model=self._undescribed, name=self.name, methods=self.methods
            )
            self.response_field, self._undescribed = described.response_field, None
        for content in (self.openapi_extra or {}).get("requestBody", {}).get("content", {}).values():
            if not isinstance(content["schema"], Mapping):
                content["schema"] = TypeAdapter(content["schema"]).json_schema(ref_template=f"{_SCHEMAS}{{model}}")


class DescribedApp(FastAPI):
    """An application that describes itself completely at `/openapi.json`, and at `/docs` on FastAPI's page.

    That page's script comes from elsewhere, so the page is in a sandbox: it is of no origin, and can neither read nor
    do what the application's other pages may.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(openapi_url=None, docs_url=None, redoc_url=None, **options)

        @self.get(DESCRIPTION_PATH, include_in_schema=False)
        async def description() -> Response:
            return JSONResponse(self.openapi(), headers={"Access-Control-Allow-Origin": "*"})  # the sandbox reads it

        @self.get(PAGE_PATH, include_in_schema=False)
        async def page() -> Response:
            shown = get_swagger_ui_html(openapi_url=DESCRIPTION_PATH, title=self.title)
            shown.headers["Content-Security-Policy"] = SANDBOX
            return shown

    def openapi(self) -> dict[str, Any]:
        """Return the description, which is made once."""
        if self.openapi_schema is None:
            for route in self.routes:
                if isinstance(route, DescribedRoute):
                    route.describe()
            _complete(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema


def in_query(name: str, schema: Schema, description: str = "", default: Any = None) -> dict[str, Any]:
    """Return the description of a parameter; `default` is what leaving it out means, if it is a value."""
    schema = dict(schema) if default is None else {**schema, "default": default}
    return {"name": name, "in": "query", "schema": schema, "description": description}


def in_header(name: str, description: str = "", schema: Schema = _STRING) -> dict[str, Any]:
    """Return the description of a request's header."""
    return {"name": name, "in": "header", "schema": dict(schema), "description": description}


def takes(*parameters: dict[str, Any], body: Any = None, media_type: str = "application/json") -> dict[str, Any]:
    """Return what a `DescribedRoute` takes, as FastAPI's `openapi_extra`.

    Args:
        parameters: in the query and in headers.
        body: the message in the request's body, or a schema; None for no body.
        media_type: the body's.
    """
    found: dict[str, Any] = {"parameters": list(parameters)}
    if body is not None:
        is_schema = isinstance(body, Mapping)
        schema = dict(body) if is_schema else body
        found["requestBody"] = {"required": not is_schema, "content": {media_type: {"schema": schema}}}
    return found


def _complete(description: dict[str, Any]) -> None:
    """Add a problem to the answers of every operation, and move the parts of bodies to the other documents."""
    schemas = description.setdefault("components", {}).setdefault("schemas", {})
    for operation in (one for methods in description["paths"].values() for one in methods.values()):
        operation["responses"].pop("422", None)
        operation["responses"]["default"] = _PROBLEM_ANSWER
        for content in operation.get("requestBody", {}).get("content", {}).values():
            body = content["schema"]
            schemas.update(body.pop(_NESTED, {}))
            if "title" in body:
                schemas[body["title"]], content["schema"] = body, {"$ref": f"{_SCHEMAS}{body['title']}"}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = dict(_PROBLEM)
