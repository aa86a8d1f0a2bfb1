"""Routes of the run's page in a browser: `/`, and the files that it loads.

The page itself is for everyone who reaches the coordinator: it holds nothing of the run. What it shows, it asks the
routes of the history for, which know who may see it.
"""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from epochal.coordinator.api.encoded_documents import takes_gzip
from epochal.coordinator.page.page_files import INDEX, PageFile, page_files
from epochal.runtime.http.openapi import Operation, Operations, Parameter, content, only_get
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal

PAGE = "/"
FILES = "/dashboard"
RULES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: nothing inline, nothing from elsewhere, no frame around it, and no text becomes HTML."""
HEADERS = {
    "Content-Security-Policy": RULES,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def dashboard_routes() -> list[Route]:
    """Return the routes of the page."""

    async def page(request: Request) -> Response:
        if not _takes_html(request.headers.getlist("accept")):
            raise Refused(
                Refusal.NOT_FOUND, "/ is a page for browsers (Accept: text/html); programs read /openapi.json"
            )
        return _sent(page_files()[INDEX], request, "Accept, Accept-Encoding")

    async def file(request: Request) -> Response:
        name: str = request.path_params["file"]
        found = page_files().get(name)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, "the page has no such file")
        return _sent(found, request, "Accept-Encoding")

    routes = [Route(PAGE, page, methods=["GET"]), Route(f"{FILES}/{{file:path}}", file, methods=["GET"])]
    return [only_get(route) for route in routes]


def dashboard_operations() -> Operations:
    """Return the descriptions of the routes."""
    seen = Parameter("If-None-Match", {"type": "string"}, "header")
    same: dict[int | str, Any] = {304: {"description": "The reader has it"}}
    page, file = content("text/html", "A page for people"), {"description": "HTML, CSS, JavaScript or plain text"}
    return {
        ("GET", PAGE): Operation(
            (Refusal.NOT_FOUND,),
            parameters=(seen,),
            answers={200: page, **same},
            summary="The run in a browser; not found for who does not accept HTML",
        ),
        ("GET", f"{FILES}/{{file}}"): Operation(
            (Refusal.NOT_FOUND,),
            parameters=(seen,),
            answers={200: file, **same},
            summary="A file that the page loads",
        ),
    }


def _takes_html(accepted: Iterable[str]) -> bool:
    """Return whether the sender of a request reads HTML (RFC 9110, section 12.5.1), or does not say."""
    offers = [offer for line in accepted for offer in line.split(",") if offer.strip()]
    for offer in offers:
        kind, _, weight = offer.partition(";")
        if kind.strip().lower() in ("text/html", "text/*", "*/*"):
            return weight.replace(" ", "").rstrip("0.") != "q="
    return not offers


def _sent(found: PageFile, request: Request, vary: str) -> Response:
    headers = {**HEADERS, "ETag": found.etag, "Vary": vary}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if not takes_gzip(request.headers):
        return Response(found.plain, headers=headers, media_type=found.media_type)
    headers["Content-Encoding"] = "gzip"
    return Response(found.compressed, headers=headers, media_type=found.media_type)
