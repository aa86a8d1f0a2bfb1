"""Long documents, compressed for readers that take that."""

from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.encoded_documents import MIN_COMPRESSED_BYTES, EncodedDocuments, takes_gzip
from epochal.runtime.http.bodies import json_response


async def long_document(
    encoded: EncodedDocuments, name: str, body: bytes, request: Request, cache_control: str = "no-store"
) -> Response:
    """Return the answer with a document, compressed if it is long and its reader takes gzip.

    Args:
        encoded: holds what was compressed for others.
        name: names the document among all that are compressed there.
        body: the document, as JSON.
        request: its reader's.
        cache_control: the answer's `Cache-Control`.
    """
    if len(body) < MIN_COMPRESSED_BYTES:
        return json_response(body, cache_control)
    is_compressed = takes_gzip(request.headers)
    response = json_response(await encoded.compressed(name, body) if is_compressed else body, cache_control)
    response.headers["Vary"] = "Accept-Encoding"
    if is_compressed:
        response.headers["Content-Encoding"] = "gzip"
    return response
