"""The page that shows an API's description: complete, and only what it says."""

from html.parser import HTMLParser
from typing import Any

import pytest

from epochal.runtime.http.api_page import render_page, schema_text

HOSTILE = "<script>alert(1)</script>"
DESCRIPTION: dict[str, Any] = {
    "info": {"title": HOSTILE, "version": "1", "description": "First.\n\nSecond & last."},
    "paths": {
        "/v1/things/{name}": {
            "get": {
                "summary": f"Read {HOSTILE}",
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^<a>$"}}
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                "responses": {
                    "200": {
                        "description": "A thing",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}},
                    },
                    "204": {"description": "None"},
                },
                "security": [{}, {"token": []}],
            }
        }
    },
    "components": {
        "schemas": {
            "Thing": {
                "type": "object",
                "description": "A thing.",
                "required": ["size"],
                "properties": {"size": {"type": "integer", "minimum": 1}, "label": {"enum": [HOSTILE, "b"]}},
            },
            "Empty": {"type": "object"},
        }
    },
}


class Elements(HTMLParser):
    """The elements of a page, and whether each is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_runs_nothing() -> None:
    page = render_page(DESCRIPTION)
    elements = Elements()
    elements.feed(page)
    assert elements.open == []
    assert "script" not in elements.seen
    assert HOSTILE not in page


def test_page_shows_every_part_of_the_description() -> None:
    page = render_page(DESCRIPTION)
    for shown in (
        "/v1/things/{name}", "GET", "token (optional)", "^&lt;a&gt;$", "<td>204</td>", "<p>Second &amp; last.</p>",
        '<a href="#Thing">Thing</a>', 'id="Thing"', 'id="Empty"', "integer (from 1)", "may be left out",
    ):  # fmt: skip
        assert shown in page, shown


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 9}, "integer (from 0, to 9)"),
        ({"type": "string", "maxLength": 5, "default": ""}, "string (at most 5 characters, default )"),
        ({"type": "array", "items": {"type": "null"}}, "list of null"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]}, "list of integer, number"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number by name"),
        ({"type": "object", "additionalProperties": False}, "object"),
        ({"const": "a"}, "<code>&#x27;a&#x27;</code>"),
        ({"enum": list(range(20))}, ", ".join(f"<code>{value}</code>" for value in range(12)) + ", …"),
        ({}, "anything"),
    ],
)
def test_schema_is_told_in_words(schema: dict[str, Any], text: str) -> None:
    assert schema_text(schema) == text
