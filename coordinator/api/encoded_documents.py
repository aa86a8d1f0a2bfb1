"""Documents that grow with the members, as they travel: encoded once for all readers, and compressed for those who can.

An outcome or a roster of ten thousand clients has a megabyte, and everybody reads it.
"""

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from epochal.runtime.http.bodies import json_response

MIN_COMPRESSED_BYTES = 4096
"""Size from which on a document is compressed."""
MAX_DOCUMENTS = 16
"""Number of documents that are kept as they travel: those of the last rounds."""
_LEVEL = 1
"""Digests in hex are the most of each document: higher levels take longer, and save nothing."""


def takes_gzip(headers: Headers) -> bool:
    """Return whether the sender of a request reads gzip (RFC 9110, section 12.5.3)."""
    for offered in headers.get("accept-encoding", "").split(","):
        name, _, weight = offered.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


class EncodedDocuments:
    """Documents in the forms in which they are sent, the last used ones.

    Args:
        most: maximum number of them.
    """

    def __init__(self, most: int = MAX_DOCUMENTS) -> None:
        self._most = most
        self._plain: OrderedDict[str, bytes] = OrderedDict()
        self._compressed: OrderedDict[str, asyncio.Future[bytes]] = OrderedDict()

    def plain(self, name: str, encode: Callable[[], bytes]) -> bytes:
        """Return a document that never changes.

        Args:
            name: names it among all others.
            encode: makes its bytes.
        """
        if name not in self._plain:
            self._plain[name] = encode()
            _drop_oldest(self._plain, self._most)
        self._plain.move_to_end(name)
        return self._plain[name]

    async def compressed(self, name: str, body: bytes) -> bytes:
        """Return the bytes of a document as gzip; whoever asks meanwhile gets the same."""
        if name not in self._compressed:
            work = partial(gzip.compress, body, _LEVEL, mtime=0)
            self._compressed[name] = asyncio.get_running_loop().run_in_executor(None, work)
            _drop_oldest(self._compressed, self._most)
        self._compressed.move_to_end(name)
        return await asyncio.shield(self._compressed[name])


def _drop_oldest(kept: OrderedDict[str, bytes] | OrderedDict[str, asyncio.Future[bytes]], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)


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
