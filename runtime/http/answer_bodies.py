"""Bodies of HTTP answers that are read whole, of servers that may mean harm.

The rule kept here: a body is bounded before memory is taken for it, also that of a compressed answer, of which half a
megabyte may represent gigabytes.
"""

import zlib
from collections.abc import AsyncIterable

import httpx

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer's body, as it arrives and as it is decoded: far above those of documents."""
ACCEPTED_ENCODINGS = "gzip"
"""The client's value of `Accept-Encoding`."""
_ENCODING = "Content-Encoding"
_GZIP_BITS = 16 + zlib.MAX_WBITS


async def bounded_body(pieces: AsyncIterable[bytes]) -> bytes:
    """Return the pieces of a body together. Raise `httpx.RemoteProtocolError` for too long a one."""
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise too_long()
    return bytes(body)


def too_long() -> httpx.RemoteProtocolError:
    """Return the error for a body of more than `MAX_ANSWER_BYTES`."""
    return httpx.RemoteProtocolError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")


def whole_response(status: int, headers: httpx.Headers, body: bytes) -> httpx.Response:
    """Return an answer whose body is as it was received, decoded.

    Raises:
        httpx.DecodingError: the body has another encoding than gzip, or is not gzip.
        httpx.RemoteProtocolError: it is too long.
    """
    encoding = headers.get(_ENCODING, "identity").strip().lower()
    if encoding != "identity":
        headers = httpx.Headers([pair for pair in headers.multi_items() if pair[0].lower() != _ENCODING.lower()])
        body = _decompressed(encoding, body)
    return httpx.Response(status, headers=headers, content=body)


def _decompressed(encoding: str, body: bytes) -> bytes:
    if encoding != ACCEPTED_ENCODINGS:
        raise httpx.DecodingError(f"an answer in the encoding {encoding[:20]!a}, which nobody asked for")
    decoder = zlib.decompressobj(_GZIP_BITS)
    try:
        plain = decoder.decompress(body, MAX_ANSWER_BYTES + 1)
    except zlib.error as error:
        raise httpx.DecodingError(f"an answer that is not gzip: {error}") from error
    if len(plain) > MAX_ANSWER_BYTES:
        raise too_long()
    if not decoder.eof:
        raise httpx.DecodingError("an answer whose gzip breaks off")
    return plain
