"""The page that shows an API's description to people: plain HTML, with nothing loaded and nothing executed."""

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

REFERENCE_PREFIX = "#/components/schemas/"
MAX_SHOWN_ENUM = 12
"""Values of an enumeration that are shown one by one."""
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.92em ui-monospace, monospace; }
h1 small { font-weight: normal; opacity: 0.7; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; }
summary { padding: 0.4rem 0.8rem; cursor: pointer; background: var(--faint); }
details > div { padding: 0.2rem 0.8rem 0.8rem; overflow-x: auto; }
.method { display: inline-block; min-width: 4.5em; font-weight: 600; }
.about { opacity: 0.8; }
table { border-collapse: collapse; width: 100%; margin: 0.4rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; border-top: 1px solid var(--line); }
th { font-weight: 600; border-top: 0; }
"""


def render_page(description: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI description."""
    info = description["info"]
    title = escape(info["title"])
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        f"<h1>{title} <small>{escape(info.get('version', ''))}</small></h1>",
        *(f"<p>{escape(line)}</p>" for line in info.get("description", "").split("\n\n") if line),
        '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
        "<h2>Requests</h2>",
        *(
            _operation(method, path, operation)
            for path, methods in description["paths"].items()
            for method, operation in methods.items()
        ),
        "<h2>Documents</h2>",
        *(_document(name, schema) for name, schema in sorted(description["components"]["schemas"].items())),
        "</body></html>",
    ]
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    tokens = [name for choice in operation.get("security", ()) for name in choice]
    optional = {} in operation.get("security", ())
    lines = [f"<p>Token: {escape(' or '.join(tokens))}{' (optional)' if optional else ''}</p>"] if tokens else []
    if parameters := operation.get("parameters"):
        rows = ((escape(one["name"]), one["in"], schema_text(one["schema"])) for one in parameters)
        lines.append(_table(("parameter", "in", "value"), rows))
    if body := operation.get("requestBody"):
        lines.append(f"<p>Body: {_contents(body)}</p>")
    answers = operation["responses"].items()
    rows = ((status, _contents(answer), escape(answer.get("description", ""))) for status, answer in answers)
    lines.append(_table(("status", "answer", "meaning"), rows))
    head = f'<span class="method">{escape(method.upper())}</span><code>{escape(path)}</code>'
    about = f' <span class="about">{escape(operation.get("summary", ""))}</span>'
    return f"<details><summary>{head}{about}</summary><div>{''.join(lines)}</div></details>"


def _document(name: str, schema: Mapping[str, Any]) -> str:
    about = "".join(f"<p>{escape(text)}</p>" for text in schema.get("description", "").split("\n\n") if text)
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    rows = (
        (f"<code>{escape(field)}</code>", schema_text(kind), "" if field in required else "may be left out")
        for field, kind in fields
    )
    table = _table(("field", "value", ""), rows) if fields else f"<p>{schema_text(schema)}</p>"
    head = f"<summary><code>{escape(name)}</code></summary>"
    return f'<details id="{escape(name)}">{head}<div>{about}{table}</div></details>'


def _contents(described: Mapping[str, Any]) -> str:
    found = described.get("content", {}).items()
    return "<br>".join(f"<code>{escape(kind)}</code>: {schema_text(held['schema'])}" for kind, held in found)


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    titles = "".join(f"<th>{title}</th>" for title in head)
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{cells}</table>"


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema in words, as HTML: the type, its bounds, and links to the documents that it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE_PREFIX))
        return f'<a href="#{name}">{name}</a>'
    for key, word in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if key in schema:
            return word.join(schema_text(one) for one in schema[key])
    if "const" in schema:
        return f"<code>{escape(repr(schema['const']))}</code>"
    if "enum" in schema:
        shown = schema["enum"][:MAX_SHOWN_ENUM]
        more = ", …" if len(schema["enum"]) > len(shown) else ""
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in shown) + more
    return _typed(schema)


def _typed(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "anything")
    if kind == "array" and "prefixItems" in schema:
        return f"list of {', '.join(schema_text(one) for one in schema['prefixItems'])}"
    if kind == "array":
        return f"list of {schema_text(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {schema_text(schema['additionalProperties'])} by name"
    bounds = ", ".join(_bounds(schema))
    return f"{escape(str(kind))}{f' ({bounds})' if bounds else ''}"


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    words = {
        "minimum": "from {}", "maximum": "to {}", "exclusiveMinimum": "above {}", "exclusiveMaximum": "below {}",
        "minLength": "at least {} characters", "maxLength": "at most {} characters", "pattern": "<code>{}</code>",
        "default": "default {}",
    }  # fmt: skip
    for key, word in words.items():
        if schema.get(key) is not None:
            yield word.format(escape(str(schema[key])))
