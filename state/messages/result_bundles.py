"""A page of results with the bytes of small ones: two lines of JSON, and the bytes.

```
ResultsPage                 the page
["9f3c…", "11aa…"]          digests of those of its results whose bytes follow, in the page's order
bytes, bytes                as many of each as the page says
```

It saves a witness a request for each result. Bytes that do not come along are asked for alone.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from epochal.state.errors import InvalidDocument
from epochal.state.messages.requests import ResultsPage
from epochal.state.wire import Sha256, canonical_json, parse_document, sha256_hex, strict_json

MAX_BUNDLED_BYTES = 256 * 1024
"""Maximum size of the bytes that come with a page."""
MEDIA_TYPE = "application/octet-stream"
_END_OF_LINE = b"\n"


PageAndBytes: TypeAlias = tuple[ResultsPage, Mapping[Sha256, bytes]]
"""A page of results, and the bytes of some of them by digest."""


def encoded_bundle(page: bytes, blobs: Sequence[tuple[Sha256, bytes]]) -> bytes:
    """Return the message.

    Args:
        page: the page's canonical JSON.
        blobs: digest and bytes of results of it.
    """
    digests = canonical_json([sha256 for sha256, _ in blobs])
    return b"".join((page, _END_OF_LINE, digests, _END_OF_LINE, *(data for _, data in blobs)))


def parse_bundle(body: bytes) -> PageAndBytes:
    """Return the page in a message, and the bytes, each compared with its digest.

    Raises:
        InvalidDocument: it is no such message; the sender's fault.
    """
    first, has_first, rest = body.partition(_END_OF_LINE)
    second, has_second, data = rest.partition(_END_OF_LINE)
    if not (has_first and has_second):
        raise InvalidDocument(
            "a page with bytes is two lines of JSON, each of which ends with a line feed, and the bytes"
        )
    page = parse_document(ResultsPage, first)
    sizes = {result.result_sha256: result.size_bytes for result in page.results}
    try:
        digests = strict_json(second)
    except ValueError as error:
        raise InvalidDocument(f"the digests of a page's bytes cannot be read: {error}") from error
    if not isinstance(digests, list) or not sizes.keys() >= set(map(str, digests)):
        raise InvalidDocument("a page comes with the bytes of results that it does not list")
    blobs: dict[Sha256, bytes] = {}
    start = 0
    for digest in digests:
        piece = data[start : start + sizes[digest]]
        start += len(piece)
        if sha256_hex(piece) != digest:
            raise InvalidDocument(f"bytes that come with a page do not hash to {digest}")
        blobs[digest] = piece
    if start != len(data):
        raise InvalidDocument(f"{len(data) - start} bytes follow those that a page names")
    return page, blobs
