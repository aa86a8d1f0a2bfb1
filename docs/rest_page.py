"""The body of the site's page of HTTP routes, made from the services' own descriptions (OpenAPI)."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from epochal.coordinator.api.app import create_app
from epochal.coordinator.api.public_route_facts import describe
from epochal.coordinator.handlers import Handlers
from epochal.runtime.http.api_page import schema_text


def body() -> str:
    """Return the page's body: every route of the coordinator, then every document that they take and give."""
    description = describe(create_app(cast("Handlers", _Nobody()), "of the site"))
    return "\n\n".join([*_routes(description), "## Documents", *_documents(description)])


class _Nobody:
    """Handlers that nobody asks: the routes are described, and never called."""

    def __getattr__(self, name: str) -> Any:
        del name
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        del arguments, options
        return self


def _routes(description: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"### {method.upper()} {path}".replace("{", "&#123;").replace("}", "&#125;")
            yield operation.get("summary", "")
            tokens = [name for choice in operation.get("security", ()) for name in choice]
            if tokens:
                yield f"Token: {' or '.join(tokens)}{' (optional)' if {} in operation['security'] else ''}."
            if parameters := operation.get("parameters"):
                rows = [f"| `{one['name']}` | {one['in']} | {_schema(one['schema'])} |" for one in parameters]
                yield "\n".join(["| parameter | in | value |", "|---|---|---|", *rows])
            if message := operation.get("requestBody"):
                yield f"Body: {_contents(message)}."
            rows = [
                f"| {status} | {_contents(answer)} | {_cell(answer.get('description', ''))} |"
                for status, answer in operation["responses"].items()
            ]
            yield "\n".join(["| status | answer | meaning, or kinds of refusal |", "|---|---|---|", *rows])


def _documents(description: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield f"### {name}"
        yield schema.get("description", "").replace("<", "&lt;")
        required = schema.get("required", ())
        rows = [
            f"| `{field}` | {_schema(kind)} | {'' if field in required else 'may be left out'} |"
            for field, kind in schema.get("properties", {}).items()
        ]
        yield "\n".join(["| field | value | |", "|---|---|---|", *rows]) if rows else _schema(schema)


def _contents(described: Mapping[str, Any]) -> str:
    return ", ".join(f"`{kind}`: {_schema(held['schema'])}" for kind, held in described.get("content", {}).items())


def _schema(schema: Mapping[str, Any]) -> str:
    """Return a schema in words. Its links lead to the headings of the documents, which are in lower case."""
    html = schema_text(json.loads(json.dumps(schema)))
    return _cell(re.sub(r'href="#([^"]*)"', lambda found: f'href="#{found[1].lower()}"', html))


def _cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("\n", " ")
