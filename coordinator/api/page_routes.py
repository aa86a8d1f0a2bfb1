"""Routes of the run's page in a browser: `/`, and the files that it loads.

The page itself is for everyone who reaches the coordinator: it holds nothing of the run. What it shows, it asks the
routes of the history for, which know who may see it.
"""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from epochal.coordinator.api.encoded_documents import takes_gzip
from epochal.coordinator.page.page_files import INDEX, PageFile, page_files
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

    return [Route(PAGE, page), Route(f"{FILES}/{{file:path}}", file)]


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
