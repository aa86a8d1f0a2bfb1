"""Documents that grow with the members, as they travel: encoded once for all readers, and compressed for those who can.

An outcome or a roster of ten thousand clients has a megabyte, and everybody reads it.
"""

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers

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
