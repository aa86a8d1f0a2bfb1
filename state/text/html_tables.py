"""Documents and rows as tables of HTML, for notebooks and pages.

The rule kept here: every text is escaped, because names and reasons are other machines' words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

import numpy as np

from epochal.state.text.visible import visible

MAX_ROWS = 100
"""Maximum number of rows of a table of documents, and of values of a list."""
MAX_CHARS = 1000
"""Maximum length of a text in a document's table."""
MAX_DEPTH = 3
"""Number of tables within each other."""
FIRST_DATE_S, LAST_DATE_S = 1e9, 1e10
"""Seconds between which they are a time since 1970: from 2001 to 2286."""
SHORT = 1000
"""Value from which on a number has no digits after its point."""


def text_html(text: str) -> str:
    """Return a text as HTML."""
    return escape(visible(text))


def rows_html(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int) -> str:
    """Return rows of texts as a table whose first columns are text, and the others numbers."""
    return _table(heads, (map(text_html, row) for row in rows), text_columns)


def document_html(document: Any) -> str:
    """Return a document as a table: a row for each field that has a value, with tables of the documents within."""
    return _cell("", document, MAX_DEPTH + 1)


def documents_html(documents: Sequence[Any]) -> str:
    """Return documents of one class as a table: a column for each field that has a value in one, the first rows."""
    return _of_documents(documents, MAX_DEPTH)


def _of_document(document: Any, depth: int) -> str:
    rows = [(name, value) for name in _names(document) if not _is_empty(value := getattr(document, name))]
    lines = "".join(
        f"<tr><th scope=row>{text_html(name)}</th><td>{_cell(name, value, depth)}</td></tr>" for name, value in rows
    )
    return f"<table><tbody>{lines}</tbody></table>"


def _of_documents(documents: Sequence[Any], depth: int) -> str:
    shown = documents[:MAX_ROWS]
    names = (
        [name for name in _names(shown[0]) if not all(_is_empty(getattr(one, name)) for one in shown)] if shown else []
    )
    table = _table(names, ([_cell(name, getattr(one, name), depth) for name in names] for one in shown), len(names))
    more = len(documents) - len(shown)
    return table + (f"<p>… {more:,} more</p>" if more else "")


def _table(heads: Sequence[str], rows: Iterable[Iterable[str]], text_columns: int) -> str:
    """Return a table of cells that are HTML."""
    kinds = ["" if place < text_columns else " class=number" for place in range(len(heads))]
    head = "".join(f"<th scope=col{kind}>{text_html(name)}</th>" for name, kind in zip(heads, kinds, strict=True))
    lines = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def _cell(name: str, value: Any, depth: int) -> str:
    """Return a field's value as HTML."""
    if callable(getattr(value, "rows", None)):  # columns
        value = tuple(value.rows())
    is_list = isinstance(value, tuple | list)
    if is_list and value and all(map(_is_document, value)):
        return _of_documents(value, depth - 1) if depth > 1 else f"{len(value):,}"
    if _is_document(value):
        return _of_document(value, depth - 1) if depth > 1 else "…"
    if is_list:
        more = f", … {len(value) - MAX_ROWS:,} more" if len(value) > MAX_ROWS else ""
        parts = [(_cell(name, one, depth), isinstance(one, tuple | list)) for one in value[:MAX_ROWS]]
        return ", ".join(f"({text})" if is_list else text for text, is_list in parts) + more
    return text_html(_text(name, value))


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name.endswith("_s") and FIRST_DATE_S <= value < LAST_DATE_S:
            return f"{np.datetime64(int(value), 's')} UTC".replace("T", " ", 1)
        return f"{value:,.0f}" if SHORT <= abs(value) < FIRST_DATE_S else f"{value:.4g}"
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def _names(document: Any) -> list[str]:
    return [one.name for one in fields(document)]


def _is_document(value: Any) -> bool:
    """Return whether a value is a document that has no text of its own, as an interval has."""
    return is_dataclass(value) and not isinstance(value, type) and type(value).__str__ is object.__str__


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == () or value is False
