"""Pages of a service that explain each kind of refusal, error and warning: plain HTML, with nothing loaded or executed.

The rule kept here: a page shows only text of `explanations.toml`. A problem's `help` names its page.
"""

import re
from collections.abc import Iterator
from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from epochal.runtime.explanations import GROUPS, HELP_PATH, Explanation, explanation_of, explanations

PAGE_RULES = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of a page: it holds all that it shows, and loads nothing."""
CACHED_FOR_S = 3600
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
code { font: 0.92em ui-monospace, monospace; overflow-wrap: anywhere; }
dt { margin-top: 0.6rem; }
dd { margin: 0; opacity: 0.85; }
"""


def help_routes() -> list[Route]:
    """Return the routes of the pages: the list of all kinds, and one kind each."""

    async def show(request: Request) -> Response:
        kind = request.path_params.get("kind")
        if kind is None:
            return _page(request, "Refusals, errors and warnings", "\n".join(_list()))
        found = explanation_of(kind)
        if found is None:
            raise HTTPException(404)
        return _page(request, found.words, _body(found))

    return [Route(path, show) for path in (HELP_PATH.rstrip("/"), f"{HELP_PATH}{{kind}}")]


def html_of(text: str) -> str:
    """Return a text as HTML; what is in backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _page(request: Request, title: str, body: str) -> Response:
    up = f"{request.scope.get('root_path', '')}{HELP_PATH.rstrip('/')}"
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} – Epochal</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<main><h1>{escape(title)}</h1>
{body}
</main><p><a href="{escape(up)}">All kinds</a></p></body></html>
"""
    headers = {
        "Content-Security-Policy": PAGE_RULES,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": f"public, max-age={CACHED_FOR_S}",
    }
    return Response(text, headers=headers, media_type="text/html")


def _body(found: Explanation) -> str:
    return (
        f"<p><code>{found.kind}</code></p>\n<h2>Cause</h2>\n<p>{html_of(found.means)}</p>"
        f"\n<h2>What to do</h2>\n<p>{html_of(found.remedy)}</p>"
    )


def _list() -> Iterator[str]:
    for group, title in GROUPS.items():
        yield f"<h2>{title}</h2><dl>"
        for found in explanations().values():
            if found.group == group:
                at = f"help/{found.kind}"
                yield f'<dt><a href="{at}"><code>{found.kind}</code></a></dt><dd>{html_of(found.means)}</dd>'
        yield "</dl>"
