"""The table of the limits of readers on the site's page of a volunteer's safety, from their module."""

import ast
from itertools import pairwise
from pathlib import Path

from epochal.state import reader_limits

KIB, MIB = 1024, 1024**2


def table() -> str:
    """Return a row for each limit: its name, its value and what it bounds."""
    body = ast.parse(Path(reader_limits.__file__).read_text(encoding="utf-8")).body
    rows = [
        f"| `{named.targets[0].id}` | {_shown(named.targets[0].id)} | {text.value.value} |"
        for named, text in pairwise(body)
        if isinstance(named, ast.Assign) and isinstance(named.targets[0], ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    ]
    return "\n".join(("| limit | value | of |", "|---|---|---|", *rows))


def _shown(name: str) -> str:
    value: int = getattr(reader_limits, name)
    if name.endswith("_BYTES") and value % KIB == 0:
        return f"{value // MIB:,} MiB" if value % MIB == 0 else f"{value // KIB:,} KiB"
    return f"{value:,}"
